//! One step: a forward pass over the packed rows of its spans.
//!
//! | file | content |
//! |---|---|
//! | `activations.rs` | the memory that a step needs beside weights and cached state |
//! | `sample.rs` | tokens sampled from logits |
//! | `prompt_logprobs.rs` | log probabilities of a prompt's tokens |
//! | `in_flight.rs` | a step that the device works on, and its results |
//! | `batch.rs` | the spans, packed: their tokens, and the rows that results are wanted of |
//! | `decoder.rs` | the interface to a model's layers |
//! | `forward.rs` | the loop over the layers |

pub(crate) mod activations;
pub(crate) mod batch;
pub(crate) mod decoder;
pub(crate) mod forward;
pub(crate) mod in_flight;
pub(crate) mod prompt_logprobs;
mod sample;
