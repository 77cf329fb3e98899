//! The few words that several threads share, one primitive a file.
//!
//! Everything else in Motet has one owner and hears of the world by messages.
//! Each file here is model-checked by the module of the same name in `loom_tests/`, which
//! also proves that the check can fail: with `--cfg motet_injected_bug` it is repeated with
//! each of several mistakes, some in two steps where there should be one, some in the order
//! of memory, and loom must find each. So are the two shelves on which the pager's
//! bytes change hands, each behind a lock: the dock, and
//! host memory.
//!
//! | primitive | shared by | settles |
//! |---|---|---|
//! | [`admission`] | callers, sequences | how many requests and waiting prompt tokens are in the house |
//! | [`cancel`] | a caller's stream, the scheduler | who ended a sequence first |
//! | [`credits`] | the scheduler, a caller's stream | how far a sequence is ahead of its reader, and who ends its pause |
//! | [`gate`] | who runs a kernel, its workers | who may still take part in a loop |
//! | [`heartbeat`] | the scheduler, who asks for health | since when the device has been at its work |
//! | [`lease`] | the cache, the pager | whether a segment may be evicted |
//! | [`parking`] | a thread that sleeps, who wakes it | whether it must be woken |
//! | [`users`] | callers, sequences | how much of the house each user has |

pub mod admission;
pub mod cancel;
pub mod credits;
pub mod gate;
pub mod heartbeat;
pub mod injected;
pub mod lease;
pub mod parking;
pub mod primitives;
