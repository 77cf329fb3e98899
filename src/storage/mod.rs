//! Copies outside the device: the tiers that store them, and the workers that copy them.

pub mod copy_worker;
#[cfg(motet_injected)]
mod simulated;
pub mod tiers;
