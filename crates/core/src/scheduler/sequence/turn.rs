//! A sequence's part in the turn of its class.

use crate::scheduler::policy::turns::{TURN_TOKENS, TURN_WAIT_STEPS_MAX};

/// The rest of the turn that a sequence started in, if any.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Tokens that it must still generate. Until then it keeps its slot.
    tokens_left: usize,
    /// Steps for which it has waited for memory.
    waited_steps: usize,
}

impl Turn {
    /// Whether it started in a turn that has not ended.
    pub(super) fn is_running(&self) -> bool {
        self.tokens_left > 0
    }

    pub(super) fn begin(&mut self) {
        self.tokens_left = TURN_TOKENS;
        self.waited_steps = 0;
    }

    pub(super) fn end(&mut self) {
        self.tokens_left = 0;
    }

    /// Counts a generated token. Returns whether the turn ends with it; its end is then recorded
    /// with [`end`](Self::end).
    pub(super) fn count_token(&mut self) -> bool {
        let ends = self.tokens_left == 1;
        if self.tokens_left > 1 {
            self.tokens_left -= 1;
        }
        ends
    }

    /// Counts a step that it has waited for memory. Returns whether it has waited too long.
    pub(super) fn wait_for_memory(&mut self) -> bool {
        self.waited_steps += 1;
        self.waited_steps >= TURN_WAIT_STEPS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_ends_after_its_tokens() {
        let mut turn = Turn::default();
        assert!(!turn.count_token());
        turn.begin();
        let ends: Vec<bool> = (0..TURN_TOKENS).map(|_| turn.count_token()).collect();
        assert_eq!(ends.iter().position(|end| *end), Some(TURN_TOKENS - 1));
        assert!(turn.is_running(), "until its end is recorded");
        turn.end();
        assert!(!turn.is_running());
    }

    #[test]
    fn turn_is_given_up_after_waiting() {
        let mut turn = Turn::default();
        turn.begin();
        let steps = (1..).find(|_| turn.wait_for_memory());
        assert_eq!(steps, Some(TURN_WAIT_STEPS_MAX));
    }
}
