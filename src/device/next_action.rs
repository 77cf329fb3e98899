//! What the device thread does next: a pure function, so that tests can ask it.

/// How far work under way has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Its tokens are still to be drawn.
    Submitted,
    /// It can land.
    Sampled,
}

/// What the device thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextAction {
    /// Wait for work and launch it.
    Receive,
    /// Wait for work until the oldest flight is ready. If work comes first, launch it.
    ReceiveOrFinish,
    /// Have the last work's tokens drawn.
    Sample,
    /// Wait for the oldest flight and answer it.
    Finish,
    /// Nothing is left, and nothing will come.
    End,
}

/// What comes next, with this work under way, oldest first; `may_receive` is whether any may
/// still come.
pub(super) fn next_action(in_flight: &[Progress], may_receive: bool) -> NextAction {
    match in_flight {
        [] if may_receive => NextAction::Receive,
        [] => NextAction::End,
        [Progress::Submitted] => NextAction::Sample,
        [Progress::Sampled] if may_receive => NextAction::ReceiveOrFinish,
        // The last is drawn when the one before it has landed.
        [..] => NextAction::Finish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives the thread's loop; `letters` say what it did: work `n` is received as `r`,
    /// drawn as `d`, landed as `l`. Work comes whenever `has_next_work` says so.
    fn run_actions(works: usize, mut has_next_work: impl FnMut() -> bool) -> String {
        let mut in_flight: Vec<Progress> = Vec::new();
        let mut letters = String::new();
        let mut received = 0;
        loop {
            match next_action(&in_flight, received < works) {
                NextAction::End => return letters,
                NextAction::ReceiveOrFinish if !has_next_work() => {
                    // The flight was ready first.
                    in_flight.remove(0);
                    letters.push('l');
                }
                NextAction::Receive | NextAction::ReceiveOrFinish => {
                    received += 1;
                    in_flight.push(Progress::Submitted);
                    letters.push('r');
                }
                NextAction::Sample => {
                    *in_flight.last_mut().expect("some work") = Progress::Sampled;
                    letters.push('d');
                }
                NextAction::Finish => {
                    assert_eq!(in_flight.remove(0), Progress::Sampled);
                    letters.push('l');
                }
            }
            assert!(in_flight.len() <= 2);
        }
    }

    #[test]
    fn next_step_is_submitted_before_the_last_finishes_and_sampled_after() {
        assert_eq!(run_actions(3, || true), "rdrldrldl");
    }

    #[test]
    fn step_finishes_without_next_work() {
        assert_eq!(run_actions(3, || false), "rdlrdlrdl");
        let mut times = [true, false, true].into_iter().cycle();
        let mixed = run_actions(6, || times.next().expect("a cycle"));
        assert_eq!(mixed.matches('l').count(), 6);
    }
}
