//! Copies of Motet's state outside the device: the [tiers] that store them, and the
//! [copy workers](copy_worker) that move them.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `motet_protocol::time`

pub mod copy_worker;
pub mod tiers;
