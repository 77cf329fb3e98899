//! Whole hand-overs: what is single-owner in the house (a core, the device's table) is owned
//! by one thread that is sent messages; around it are the words that really are shared.
//!
//! | file | what changes hands | threads |
//! |---|---|---|
//! | `fork.rs` | a prefix: forked, given back by its last user, evicted | the cache's, a forker, the pager's |
//! | `offload.rs` | a segment that is copied out under a lease, while others lease it | the cache's, the scheduler's, the pager's |
//! | `budget.rs` | places and tokens of the house: taken, given back, shut down | a caller's, a sequence's, a drain's |
//! | `cancellation.rs` | a sequence: its caller leaves while its outcome comes | the scheduler's, the device's, the caller's |
//!
//! The shells themselves speak over kameo and tokio, which loom does not see: loom's
//! channels take their place here, and cores, words and shelves are the product's own.

mod budget;
mod cache_owner;
mod ending;
#[path = "../../tests/orders/fake_device.rs"]
#[allow(dead_code, reason = "orders ask more of it")]
mod fake_device;
mod fork;
mod page_out;
mod paged;
