//! Copies outside the device: the tiers that keep them, and the workers that move them.

pub mod copy_worker;
mod simulated;
pub mod tiers;
