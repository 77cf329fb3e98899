//! The scheduler's policies: pure functions and counters of plain values.
//!
//! | file | contents |
//! |---|---|
//! | [`mod@plan`] | what runs in the next step |
//! | [`waiting`] | which sequence starts next, and which one is preempted |
//! | [`turns`] | what lower classes get while a higher one saturates |
//! | [`fairness`] | the service that each user has received |
//! | [`step_cost`] | what a step costs, learned |
//! | [`row_cost`] | what a small step costs by its number of rows, measured |
//! | [`draft_rows`] | how many draft rows join a step |
//! | [`draft_round`] | whether the draft model drafts before a step |

pub mod draft_round;
pub mod draft_rows;
pub mod fairness;
pub mod plan;
pub mod row_cost;
pub mod step_cost;
pub mod turns;
pub mod waiting;

#[cfg(test)]
mod uniform;
#[cfg(test)]
use uniform::uniform;
