//! The tiers below the device: what they keep, and what they never believe.

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
