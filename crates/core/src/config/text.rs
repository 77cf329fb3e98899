//! Settings of text processing: how prompts are rendered and tokenised.

use std::num::NonZero;

use super::ConfigError;
use super::bounds::positive;

/// Settings of rendering and tokenising. Prompts of more than a few kB are processed on threads
/// of their own, in turns by user, so that no caller's text delays the actors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextConfig {
    /// Upper bound on the texts that are rendered and tokenised at once, each on a thread for
    /// blocking work. The default is a quarter of the cores. One thread processes about a
    /// megabyte of prose per second. More threads take cores from the device, where that is the
    /// CPU.
    pub threads: usize,
    /// Upper bound on the texts that wait for these threads; further texts are rejected at
    /// once. Choose the longest acceptable wait, times the rate at which texts are processed.
    pub queue_max: usize,
    /// Upper bound on the bytes of waiting texts, and so on the memory that they hold. A longer
    /// text is accepted when no other waits.
    pub queue_bytes_max: usize,
    /// Upper bound, in contexts, on the text and the tokens of a prompt that may lose its
    /// middle ([`ContextLimit::Shift`](motet_protocol::ContextLimit::Shift)). A longer prompt
    /// is rejected. Tokens beyond one context are tokenised and then dropped, so a larger bound
    /// costs time and gains nothing.
    pub shift_contexts_max: usize,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            threads: cores().div_ceil(4),
            queue_max: 256,
            queue_bytes_max: 64 << 20,
            shift_contexts_max: 4,
        }
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

impl TextConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        positive("text.threads", self.threads)?;
        positive("text.queue_max", self.queue_max)?;
        positive("text.queue_bytes_max", self.queue_bytes_max)?;
        positive("text.shift_contexts_max", self.shift_contexts_max)
    }
}
