//! The parts of running answers, for the page: kinds and counts, never content.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use motet::SequenceId;
use serde::Serialize;

/// Most changes that wait for the page; beyond that the oldest are left out.
const CHANGES_MAX: usize = 64;

/// A part of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// Thoughts before the answer.
    Reasoning,
    /// Text for the reader.
    Text,
    /// A call of a tool.
    Call,
}

/// The running answers whose parts are known: those of conversations.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    state: Mutex<State>,
    calls: AtomicU64,
    reasoned: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    answers: HashMap<SequenceId, Arc<Counts>>,
    changes: VecDeque<(SequenceId, Part)>,
}

/// The parts of one answer so far.
#[derive(Debug, Default)]
struct Counts {
    /// The part that is written, by [`PARTS`]; 0 before the first.
    part: AtomicU8,
    /// Pieces of reasoning; about one for each token.
    reasoning: AtomicU32,
    calls: AtomicU32,
}

/// The parts, by the number that stands for each, less 1.
const PARTS: [Part; 3] = [Part::Reasoning, Part::Text, Part::Call];

/// A view of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct AnswerView {
    /// The part that is written now.
    pub(crate) part: Option<Part>,
    /// Pieces of reasoning so far.
    pub(crate) reasoning: u32,
    /// Calls so far, the one that is written included.
    pub(crate) calls: u32,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Sums {
    /// Calls that began.
    pub(crate) calls: u64,
    /// Answers with reasoning.
    pub(crate) reasoned: u64,
}

/// An answer that the page may show, until this is dropped.
#[derive(Debug)]
pub(crate) struct ObservedAnswer {
    activity: Arc<Activity>,
    sequence: SequenceId,
    counts: Arc<Counts>,
}

impl Activity {
    /// Adds the answer of a sequence.
    pub(crate) fn observe(self: &Arc<Self>, sequence: SequenceId) -> ObservedAnswer {
        let counts = Arc::new(Counts::default());
        let known = Arc::clone(&counts);
        self.state().answers.insert(sequence, known);
        ObservedAnswer {
            activity: Arc::clone(self),
            sequence,
            counts,
        }
    }

    /// The parts of a running answer; nothing of a sequence that is not a conversation's.
    pub(crate) fn answer(&self, sequence: SequenceId) -> AnswerView {
        let state = self.state();
        let counts = state.answers.get(&sequence);
        counts.map_or(AnswerView::default(), |counts| counts.view())
    }

    /// The parts that answers began since the last call, oldest first.
    pub(crate) fn take_changes(&self) -> Vec<(SequenceId, Part)> {
        self.state().changes.drain(..).collect()
    }

    pub(crate) fn sums(&self) -> Sums {
        Sums {
            calls: self.calls.load(Ordering::Relaxed),
            reasoned: self.reasoned.load(Ordering::Relaxed),
        }
    }

    fn change(&self, sequence: SequenceId, part: Part) {
        let mut state = self.state();
        if state.changes.len() == CHANGES_MAX {
            state.changes.pop_front();
        }
        state.changes.push_back((sequence, part));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl Counts {
    fn view(&self) -> AnswerView {
        let part = usize::from(self.part.load(Ordering::Relaxed));
        AnswerView {
            part: part.checked_sub(1).map(|part| PARTS[part]),
            reasoning: self.reasoning.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
        }
    }
}

impl ObservedAnswer {
    /// The answer has more reasoning.
    pub(crate) fn reasoning(&self) {
        if self.counts.reasoning.fetch_add(1, Ordering::Relaxed) == 0 {
            self.activity.reasoned.fetch_add(1, Ordering::Relaxed);
        }
        self.go_on(Part::Reasoning);
    }

    /// The answer has more text.
    pub(crate) fn text(&self) {
        self.go_on(Part::Text);
    }

    /// A call begins.
    pub(crate) fn call(&self) {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        self.activity.calls.fetch_add(1, Ordering::Relaxed);
        self.set(Part::Call);
        self.activity.change(self.sequence, Part::Call);
    }

    /// Continues a part, or begins it.
    fn go_on(&self, part: Part) {
        if self.set(part) {
            self.activity.change(self.sequence, part);
        }
    }

    /// Returns whether the part is another than before.
    fn set(&self, part: Part) -> bool {
        let number = PARTS.iter().position(|known| *known == part);
        let number = number.expect("every part is listed") as u8 + 1;
        self.counts.part.swap(number, Ordering::Relaxed) != number
    }
}

impl Drop for ObservedAnswer {
    fn drop(&mut self) {
        self.activity.state().answers.remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: SequenceId = SequenceId(1);

    #[test]
    fn parts_are_counted_and_their_beginnings_reported() {
        let activity = Arc::new(Activity::default());
        assert_eq!(activity.answer(ONE), AnswerView::default());
        let answer = activity.observe(ONE);
        assert_eq!(activity.answer(ONE).part, None);
        answer.reasoning();
        answer.reasoning();
        answer.text();
        answer.call();
        answer.call();
        let view = AnswerView {
            part: Some(Part::Call),
            reasoning: 2,
            calls: 2,
        };
        assert_eq!(activity.answer(ONE), view);
        let began = [Part::Reasoning, Part::Text, Part::Call, Part::Call];
        assert_eq!(activity.take_changes(), began.map(|part| (ONE, part)));
        assert_eq!(activity.take_changes(), []);
        drop(answer);
        assert_eq!(activity.answer(ONE), AnswerView::default());
        let sums = Sums {
            calls: 2,
            reasoned: 1,
        };
        assert_eq!(activity.sums(), sums);
    }

    #[test]
    fn changes_that_no_page_takes_are_bounded() {
        let activity = Arc::new(Activity::default());
        let answer = activity.observe(ONE);
        for _ in 0..CHANGES_MAX {
            answer.text();
            answer.reasoning();
        }
        answer.call();
        let changes = activity.take_changes();
        assert_eq!(changes.len(), CHANGES_MAX);
        assert_eq!(changes.last(), Some(&(ONE, Part::Call)), "the newest stay");
    }
}
