//! The state that several threads share, one primitive in each file.
//!
//! Everything else in Motet has one owner and receives messages. Each primitive is
//! model-checked by the module of the same name in `loom_tests/`. These checks also prove that
//! they can fail: with `--cfg motet_injected_bug` each is repeated with injected bugs, and loom
//! must find every one. Some bugs do in two steps what must be one; others weaken a memory
//! ordering. The two lock-guarded states of the pager, the transfer queue and host memory, are
//! checked in the same way.
//!
//! | primitive | shared by | answers |
//! |---|---|---|
//! | [`admission`] | callers, sequences | how many requests and waiting prompt tokens the engine holds |
//! | [`cancel`] | a caller's stream, the scheduler | whether the caller or the scheduler ended a sequence |
//! | [`credits`] | the scheduler, a caller's stream | how far a sequence is ahead of its reader, and which side ends its pause |
//! | [`gate`] | the thread that runs a kernel, its workers | which workers may still take part in a loop |
//! | [`heartbeat`] | the scheduler, health checks | since when the device has been busy with its work |
//! | [`lease`] | the cache, the pager | whether a segment may be evicted |
//! | `page_pool` (feature `pages`) | the threads that copy states, the threads that drop them | which memory is idle, and how much is in use |
//! | [`parking`] | a sleeping thread, threads that wake it | whether it must be woken |
//! | [`admission::users`] | callers, sequences | the requests and tokens of each user |

pub mod admission;
pub mod cancel;
pub mod credits;
pub mod gate;
pub mod heartbeat;
pub mod injected;
pub mod lease;
#[cfg(feature = "pages")]
pub mod page_pool;
pub mod parking;
pub mod primitives;
