//! When a sequence reached its stages.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::time::Instant;

/// The times of a sequence so far, each since its submission:
/// [`SequenceHandle::times`](crate::SequenceHandle::times).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceTimes {
    /// Time from the submission until now.
    pub since_submit: Duration,
    /// Time until its first slot: what it waited in the queue.
    pub started: Option<Duration>,
    /// Time until its first token. From the slot to here its prompt was computed.
    pub first_token: Option<Duration>,
    /// Time until it finished or failed.
    pub ended: Option<Duration>,
}

/// The moments at which a sequence reached its stages. The sequence's actor writes each once; the
/// handles read them.
#[derive(Debug)]
pub(crate) struct Milestones {
    submitted_at: Instant,
    started: OnceLock<Instant>,
    first_token: OnceLock<Instant>,
    ended: OnceLock<Instant>,
}

impl Milestones {
    /// A sequence that is submitted now.
    pub(crate) fn new() -> Self {
        Self {
            submitted_at: Instant::now(),
            started: OnceLock::new(),
            first_token: OnceLock::new(),
            ended: OnceLock::new(),
        }
    }

    pub(crate) fn submitted_at(&self) -> Instant {
        self.submitted_at
    }

    /// The sequence has a slot. Only the first slot counts.
    pub(crate) fn start(&self, now: Instant) {
        self.started.get_or_init(|| now);
    }

    pub(crate) fn started_at(&self) -> Option<Instant> {
        self.started.get().copied()
    }

    /// The sequence has a token. Only the first token counts.
    pub(crate) fn token(&self, now: Instant) {
        self.first_token.get_or_init(|| now);
    }

    pub(crate) fn first_token_at(&self) -> Option<Instant> {
        self.first_token.get().copied()
    }

    /// The sequence has finished or failed. Only the first end counts.
    pub(crate) fn end(&self, now: Instant) {
        self.ended.get_or_init(|| now);
    }

    pub(crate) fn times(&self) -> SequenceTimes {
        let since = |moment: &OnceLock<Instant>| {
            Some(moment.get()?.saturating_duration_since(self.submitted_at))
        };
        SequenceTimes {
            since_submit: self.submitted_at.elapsed(),
            started: since(&self.started),
            first_token: since(&self.first_token),
            ended: since(&self.ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_milestone_keeps_its_first_moment() {
        let milestones = Milestones::new();
        assert_eq!(milestones.times().started, None);
        let at = |seconds| milestones.submitted_at() + Duration::from_secs(seconds);
        let marks: [fn(&Milestones, Instant); 3] =
            [Milestones::start, Milestones::token, Milestones::end];
        for (mark, seconds) in marks.into_iter().zip(1..) {
            mark(&milestones, at(seconds));
            mark(&milestones, at(seconds + 10));
        }
        let times = milestones.times();
        let reached = [times.started, times.first_token, times.ended];
        assert_eq!(
            reached,
            [1, 2, 3].map(|seconds| Some(Duration::from_secs(seconds)))
        );
    }
}
