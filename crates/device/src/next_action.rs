//! The next action of the device thread: a pure function, so that it can be tested alone.

/// Progress of work in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its tokens are still to be sampled.
    Submitted,
    /// It can finish.
    Sampled,
}

/// The next action of the device thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Wait for work and submit it.
    Receive,
    /// Wait for work until the oldest step is ready. If work comes first, submit it.
    ReceiveOrFinish,
    /// Sample the last work's tokens.
    Sample,
    /// Wait for the oldest work and send its outcome.
    Finish,
    /// End: no work is left, and none will come.
    End,
}

/// Returns the next action with this work in flight, oldest first. `may_receive` is whether
/// more work may arrive.
pub(super) fn next_action(in_flight: &[Progress], may_receive: bool) -> NextAction {
    match in_flight {
        [] if may_receive => NextAction::Receive,
        [] => NextAction::End,
        [Progress::Submitted] => NextAction::Sample,
        [Progress::Sampled] if may_receive => NextAction::ReceiveOrFinish,
        // The last work is sampled when the one before it has finished.
        [..] => NextAction::Finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives the thread's loop and returns one letter for each action: `r` for work received,
    /// `s` for sampled, `f` for finished. Work arrives whenever `has_next_work` returns true.
    fn run_actions(works: usize, mut has_next_work: impl FnMut() -> bool) -> String {
        let mut in_flight: Vec<Progress> = Vec::new();
        let mut letters = String::new();
        let mut received = 0;
        loop {
            match next_action(&in_flight, received < works) {
                NextAction::End => return letters,
                NextAction::ReceiveOrFinish if !has_next_work() => {
                    // The step was ready first.
                    in_flight.remove(0);
                    letters.push('f');
                }
                NextAction::Receive | NextAction::ReceiveOrFinish => {
                    received += 1;
                    in_flight.push(Progress::Submitted);
                    letters.push('r');
                }
                NextAction::Sample => {
                    *in_flight.last_mut().expect("some work") = Progress::Sampled;
                    letters.push('s');
                }
                NextAction::Finish => {
                    assert_eq!(in_flight.remove(0), Progress::Sampled);
                    letters.push('f');
                }
            }
            assert!(in_flight.len() <= 2);
        }
    }

    #[test]
    fn next_step_is_submitted_before_the_last_finishes_and_sampled_after() {
        assert_eq!(run_actions(3, || true), "rsrfsrfsf");
    }

    #[test]
    fn step_finishes_without_next_work() {
        assert_eq!(run_actions(3, || false), "rsfrsfrsf");
        let mut times = [true, false, true].into_iter().cycle();
        let mixed = run_actions(6, || times.next().expect("a cycle"));
        assert_eq!(mixed.matches('f').count(), 6);
    }
}
