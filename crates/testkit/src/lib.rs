//! The harness of the cores: every driver that tests or measures the scheduler's, the cache's or
//! the pager's core without actors and threads is built from these parts.
//!
//! A driver chooses what happens (a seed, a fuzzer's bytes, every order, a thread of loom). The
//! parts here carry it out: they deliver messages, follow effects, and check after each message
//! what holds for every driver. A new message of a core is therefore added once.
//!
//! # Vocabulary
//!
//! | word | meaning |
//! |---|---|
//! | harness | a core with as much of its surroundings as it can observe, and the loop that carries its effects out |
//! | peer | the other side of a core that a harness does not contain |
//! | on paper | plain values in the place of arrays, files and threads |
//! | message, event, effect | what a core receives, and what it wants done: the cores' own words |
//! | live | a sequence with a slot |
//! | job | a movement of a copy: it starts, and ends with success or failure when the driver says so |
//! | act, world, setup, beginning | one possible event; a system of them; its configuration; the acts that an exploration starts after |
//! | come to rest | all work in flight finishes, and nothing is left over |
//!
//! # Parts
//!
//! | module | content |
//! |---|---|
//! | [`paper_device`] | a device on paper: the tokens of each segment and slot, all edits checked |
//! | [`transfer_queue`] | states between the device and the copy workers, on paper |
//! | [`copy_machine`] | the copy workers, host memory, the disk and the remote tier, on paper |
//! | [`core_harness`] | the scheduler's core and the cache's, and the messages between them |
//! | [`cache_harness`] | the cache's core, its device, and its sequences |
//! | [`block_follower`] | what a router knows of the cache's blocks |
//! | [`pager_harness`] | the pager's core and its copy machine |
//! | [`remote`] | a tier that several processes share, in memory, with faults |
//! | [`explorer`] | every order of a few acts, breadth first |
//! | [`naive`] | a naive model of the cache: plain token lists, and the pins that hold them |
//! | [`logits`] | rows of logits, compared |
//! | [`formula`] | weights by a formula of a tensor's name |
//! | [`folder`] | a folder for files that is removed with the test |
//! | [`forward_state`] | the methods of a model that wraps another |

#![forbid(unsafe_code)]

pub mod block_follower;
pub mod cache_harness;
pub mod copy_machine;
pub mod core_harness;
pub mod explorer;
pub mod folder;
pub mod formula;
mod forward;
pub mod logits;
pub mod naive;
pub mod pager_harness;
pub mod paper_device;
pub mod remote;
pub mod transfer_queue;
