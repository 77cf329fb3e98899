//! Runs of the scheduler.
//!
//! Policies are measured in a virtual engine: the real cores of the scheduler and the cache and
//! the device's real table, the oracle as model, and a clock that only the cost of a step
//! advances. Its results are the same in every run. Costs of the engine itself and of a real
//! device are measured on a whole engine.
//!
//! | file | content |
//! |---|---|
//! | `harness/` | the virtual engine |
//! | `fair.rs` | two users, one greedy |
//! | `priority.rs` | an urgent class above a background |
//! | `preemption.rs` | less memory than the load needs |
//! | `cache_off.rs` | the cost of a cache without hits |
//! | `host.rs` | the engine's cost for each sequence and step |
//! | `overload.rs` | ten times more than can be served |
//! | `stall.rs` | long prompts beside decoding sequences |
//! | `stall_virtual.rs` | the same in the virtual engine |
//! | `hybrid/` | chats on a model that cannot resume after any token |
//! | `held.rs` | cached bytes after the load generator's load |
//! | `system_prompt.rs` | users who share a system prompt |
//! | `trace.rs` | hit rates on a trace of real requests |
//! | `idle.rs` | how long the device waits |

pub(crate) mod cache_off;
pub(crate) mod fair;
mod harness;
pub(crate) mod held;
pub(crate) mod host;
pub(crate) mod hybrid;
pub(crate) mod idle;
pub(crate) mod overload;
pub(crate) mod preemption;
pub(crate) mod priority;
pub(crate) mod stall;
pub(crate) mod stall_virtual;
pub(crate) mod system_prompt;
pub(crate) mod trace;
