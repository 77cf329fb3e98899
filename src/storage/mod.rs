//! Copies outside the device: the tiers that store them, and the workers that copy them.

pub mod copy_worker;
mod simulated;
pub mod tiers;
