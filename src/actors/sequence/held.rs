//! Log probabilities of tokens whose text is held back.
//!
//! A token's log probabilities become certain with its text: as soon as the reader may see the
//! first byte of the text. A token that completes no text of its own (it ends within a
//! character) goes with the text that follows. Log probabilities of tokens whose whole text a
//! stop string removes are dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::request::TokenLogprobs;

/// The log probabilities of one sequence that its reader may not see yet.
#[derive(Debug, Default)]
pub(super) struct HeldLogprobs {
    /// Where each token's text begins, in bytes of the output.
    held: VecDeque<(usize, Arc<TokenLogprobs>)>,
    completed_bytes: usize,
    visible_bytes: usize,
}

impl HeldLogprobs {
    /// Those of an output of whose text so many bytes are held back already.
    pub(super) fn after(held_bytes: usize) -> Self {
        Self {
            completed_bytes: held_bytes,
            ..Self::default()
        }
    }

    /// Adds the log probabilities of the next token, which has completed this many bytes of
    /// text.
    pub(super) fn push(&mut self, logprobs: Option<Arc<TokenLogprobs>>, completed_bytes: usize) {
        let begins = self.completed_bytes;
        self.completed_bytes += completed_bytes;
        self.held.extend(logprobs.map(|some| (begins, some)));
    }

    /// Marks this many more bytes as visible, and returns the log probabilities that became
    /// certain.
    pub(super) fn show(&mut self, bytes: usize) -> Vec<TokenLogprobs> {
        self.visible_bytes += bytes;
        let visible_bytes = self.visible_bytes;
        let mut visible = Vec::new();
        while let Some((_, logprobs)) = self
            .held
            .pop_front_if(|(begins, _)| *begins < visible_bytes)
        {
            visible.push(Arc::unwrap_or_clone(logprobs));
        }
        visible
    }

    /// Returns the rest: no text is held back any more.
    pub(super) fn show_all(&mut self) -> Vec<TokenLogprobs> {
        let rest = self.held.drain(..);
        rest.map(|(_, logprobs)| Arc::unwrap_or_clone(logprobs))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_text::StopStrings;

    /// Checks how many log probabilities each piece of text releases, and then the end.
    fn check(pieces: &[&str], stop: &str, expected: &[usize]) {
        let mut stops = StopStrings::new([stop]).unwrap().matcher();
        let mut held = HeldLogprobs::default();
        let mut out = Vec::new();
        let mut stopped = false;
        for (index, piece) in pieces.iter().enumerate() {
            let logprobs = TokenLogprobs {
                logprob: -(index as f32),
                top: Vec::new(),
            };
            held.push(Some(Arc::new(logprobs)), piece.len());
            let released = stops.push(piece);
            stopped = released.stopped_by.is_some();
            out.push(held.show(released.text.len()));
        }
        if !stopped {
            out.push(held.show_all());
        }
        let counts: Vec<usize> = out.iter().map(Vec::len).collect();
        assert_eq!(counts, expected, "{pieces:?}, {stop:?}");
        let order: Vec<f32> = out.iter().flatten().map(|l| -l.logprob).collect();
        let in_order = (0..order.len()).map(|index| index as f32);
        assert_eq!(order, in_order.collect::<Vec<_>>());
    }

    #[test]
    fn logprobs_are_released_with_their_text() {
        check(&["Hello", " world", "!"], "!", &[1, 1, 0]);
        check(&["Hello", " ", "there", "STOP"], "STOP", &[1, 1, 1, 0]);
        check(&["Hello", " world", "END"], "END", &[1, 1, 0]);
        let stopped = ["Text", " ", "with", " ", "stop", " ", "word"];
        check(&stopped, "stop word", &[1, 1, 1, 1, 0, 0, 0]);
        // The text turns out not to be the stop string.
        check(&["a", "st", "op", "x"], "stopped", &[1, 0, 0, 3, 0]);
        // Held back until the end.
        check(&["a", "st"], "stop", &[1, 0, 1]);
        // The stop string takes a part of a token whose beginning was visible.
        check(&["ab", "cd"], "bcd", &[1, 0]);
        // A token within a character goes with the rest of the character.
        check(&["a", "", "é"], "x", &[1, 0, 2, 0]);
    }
}
