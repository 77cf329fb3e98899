//! The tiers below the device: the copies that they keep, and the damage that they detect.

mod budget;
mod crashes;
mod damage;
mod faulty;
mod folder;
mod killed;
mod memory;
mod mistakes;
mod ownership;
mod round_trips;
mod timings;
