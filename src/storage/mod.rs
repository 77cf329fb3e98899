//! Copies outside the device: the tiers that keep them, and the workers that move them.

pub mod carrier;
mod simulated;
pub mod tiers;
