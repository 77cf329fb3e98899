//! How text is turned into tokens beside the actors.

use std::num::NonZero;

use super::{ConfigError, positive};

/// Settings of rendering and tokenising. Prompts of more than a few kB are rendered and
/// tokenised on threads of their own, in turns by user, so that no caller's text holds the
/// actors up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextConfig {
    /// Texts that are rendered and tokenised at once, each on a thread for blocking work; a
    /// quarter of the cores unless set. One does about a megabyte of prose a second. More take
    /// the cores from the device, where that is the CPU.
    pub threads: usize,
    /// Texts that may wait for these threads; more are refused at once. Choose how long a
    /// caller may wait, times texts done in that time.
    pub queue_max: usize,
    /// Bytes of the texts that wait. A longer text is taken when no other waits. It bounds
    /// the memory that waiting texts hold.
    pub queue_bytes_max: usize,
    /// A prompt that may lose its middle
    /// ([`ContextLimit::Shift`](crate::protocol::ContextLimit::Shift)) may have as much text,
    /// or as many tokens, as so many contexts; a longer one is refused. What is beyond one context is
    /// tokenised and then forgotten, so that more costs time and buys nothing.
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
