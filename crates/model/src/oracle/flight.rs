//! Steps under way on a device that is only simulated.
//!
//! A step is computed as it is launched; what takes time is the device that it
//! pretends to run on, which works on one flight after another. A flight is ready
//! when its own cost has passed since the launch, or since the flight before it was
//! ready, whichever came later.

use std::thread;
use std::time::{Duration, Instant};

use super::vocabulary::Vocabulary;
use crate::sampling::Drawing;
use motet_core::TokenId;
use motet_core::protocol::{ModelError, Readout};

/// Shorter waits are spun, since a sleep overshoots by about as much.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// A step of the oracle that is under way.
#[derive(Debug)]
pub struct OracleFlight {
    pub(super) answers: Vec<Answer>,
    pub(super) ready: Ready,
    /// Why it will not land well.
    pub(super) fault: Option<ModelError>,
}

/// What a span will be answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// What is known since the launch.
    Known(Readout),
    /// A token drawn from the logits of this row.
    ToDraw(u64),
}

/// When a flight is ready; free flights always are, whatever the clock says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ready(Option<Instant>);

impl OracleFlight {
    /// The token that this span drew.
    ///
    /// # Panics
    ///
    /// When it wanted none, or the flight was not drawn: the caller's mistake.
    pub(super) fn token(&self, span: usize) -> TokenId {
        let readout = match &self.answers[span] {
            Answer::Known(readout) => readout.token(),
            Answer::ToDraw(_) => None,
        };
        readout.expect("a span is fed by one that has drawn")
    }

    pub(super) fn draw(&mut self, vocabulary: &Vocabulary, drawings: Vec<Drawing>) {
        let mut drawings = drawings.into_iter();
        for answer in &mut self.answers {
            if let Answer::ToDraw(row) = *answer {
                let drawing = drawings.next().expect("a drawing for each wanted token");
                *answer = Answer::Known(vocabulary.draw(row, &drawing));
            }
        }
        let surplus = drawings.next();
        assert!(surplus.is_none(), "a drawing for each wanted token");
    }

    pub(super) fn readouts(self) -> Vec<Readout> {
        let known = |answer| match answer {
            Answer::Known(readout) => readout,
            Answer::ToDraw(_) => panic!("a flight is drawn before it lands"),
        };
        self.answers.into_iter().map(known).collect()
    }
}

impl Ready {
    /// When what costs so much is done after this.
    pub(super) fn and(self, cost: Duration) -> Ready {
        if cost.is_zero() {
            return self;
        }
        let now = Instant::now();
        Ready(Some(self.0.map_or(now, |ready| ready.max(now)) + cost))
    }

    pub(super) fn is_now(self) -> bool {
        self.0.is_none_or(|ready| ready <= Instant::now())
    }

    pub(super) fn wait(self) {
        let Some(ready) = self.0 else {
            return;
        };
        let left = ready.saturating_duration_since(Instant::now());
        if left >= SLEEP_MIN {
            thread::sleep(left);
        }
        while Instant::now() < ready {
            std::hint::spin_loop();
        }
    }
}
