//! The device's side of Motet: the only table from ids to arrays, and the transfer queue between
//! the device and the copy workers.
//!
//! | file | contents |
//! |---|---|
//! | `draft_model.rs` | a draft model, and the texts that it has read |
//! | `table/` | the arrays behind the ids, and the steps in flight |
//! | `next_action.rs` | the next action of the thread that drives the table |
//! | `transfer_queue.rs` | segments that the device exports, and states that it imports |
//!
//! Nothing here starts a thread or waits for work: the engine does, and so do tests and
//! simulations of the cores.
//!
//! **Invariant.** The table's state is a function of the work that it received: edits are
//! carried out in order, before the step that comes with them.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `motet_protocol::time`

mod draft_model;
mod next_action;
mod table;
#[cfg(test)]
mod tests;
mod transfer_queue;

pub use draft_model::{DraftModel, ModelDrafter, draft_or_drop};
pub use next_action::NextAction;
pub use table::{Table, panic_text};
pub use transfer_queue::{
    DeviceEnd, Export, ExportQueue, HostEnd, ImportQueue, NextExport, transfer_queue,
};
