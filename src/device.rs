//! The device thread: the one place where plans meet arrays.
//!
//! It owns the [`Model`] and every array that the model hands out, and keeps the
//! only table that turns ids into arrays. Work comes in over a bounded channel and
//! one outcome goes back for each; between the two nothing is awaited or locked.
//!
//! **Invariant.** What the thread holds is a function of the work it was sent:
//! edits are carried out in order, before the step that comes with them.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};

use crate::model::{
    DeviceMemory, Model, ModelError, ModelSpec, Readout, Segment, Span, Tail, Want,
};
use crate::{SegmentId, SlotId, TokenId};

/// Work that may be under way at once. The scheduler keeps to it.
pub const WORK_IN_FLIGHT_MAX: usize = 1;

/// A change to what the device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A new slot on a path of sealed segments, with an empty tail.
    Open {
        /// The slot.
        slot: SlotId,
        /// Its path, from the first token on.
        path: Vec<SegmentId>,
    },
    /// The first tokens of a slot's tail become a segment at the end of its path.
    Seal {
        /// The slot.
        slot: SlotId,
        /// How many tokens.
        tokens: usize,
        /// The segment's name.
        segment: SegmentId,
    },
    /// The first tokens of a slot's tail are given up for sealed segments that hold the
    /// same, at the end of its path.
    Adopt {
        /// The slot.
        slot: SlotId,
        /// How many tokens.
        tokens: usize,
        /// The segments, in order.
        path: Vec<SegmentId>,
    },
    /// A segment becomes two, in every path that it is part of.
    Split {
        /// The segment, which is gone afterwards.
        segment: SegmentId,
        /// Tokens in the upper part.
        at: usize,
        /// The upper part's name.
        upper: SegmentId,
        /// The lower part's name.
        lower: SegmentId,
    },
    /// Two segments become one, in every path that `lower` follows `upper` in.
    Merge {
        /// The upper part, which is gone afterwards.
        upper: SegmentId,
        /// The lower part, which is gone afterwards.
        lower: SegmentId,
        /// The whole's name.
        segment: SegmentId,
    },
    /// A segment gives way to another of the same tokens, in every path that it is part
    /// of.
    Replace {
        /// The segment, which is gone afterwards.
        segment: SegmentId,
        /// The other, which holds all that it does.
        by: SegmentId,
    },
    /// Tokens are taken out of a slot, and what follows them moves in: see
    /// [`Model::remove`].
    Remove {
        /// The slot.
        slot: SlotId,
        /// Segments at the start of its path that stay; what the others held is the
        /// tail's from now on.
        kept: usize,
        /// The tokens, as offsets in the slot.
        removed: Range<usize>,
    },
    /// The slot and its tail are given up.
    Close {
        /// The slot.
        slot: SlotId,
    },
    /// The segment is given up; paths that it is part of keep it until they close.
    Drop {
        /// The segment.
        segment: SegmentId,
    },
}

/// One message to the device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Changes to carry out first.
    pub edits: Vec<Edit>,
    /// The spans of the step; none is no step.
    pub spans: Vec<PlannedSpan>,
}

/// One sequence's part of a planned step.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSpan {
    /// Where the sequence's state is.
    pub slot: SlotId,
    /// Tokens to evaluate.
    pub tokens: Vec<TokenId>,
    /// What is wanted of it.
    pub want: Want,
}

/// The device's answer to one [`Work`].
#[derive(Debug)]
pub struct Outcome {
    /// One readout per span, or why there is none.
    pub result: Result<Vec<Readout>, Failure>,
    /// How long the device worked.
    pub busy: Duration,
    /// The device's own count of bytes.
    pub memory: DeviceMemory,
}

/// What a failed [`Work`] has cost.
#[derive(Debug)]
pub enum Failure {
    /// The step failed. The tails of its slots are lost, all else is as it was.
    Step(ModelError),
    /// An edit failed or the model panicked. The device has dropped every slot and
    /// every segment and goes on empty.
    Reset(String),
}

/// The scheduler's end of the device thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Device {
    work: Sender<Work>,
    /// Outcomes, in the order of the work.
    pub outcomes: mpsc::Receiver<Outcome>,
}

impl Device {
    /// Starts the thread and builds the model on it. The receiver resolves when the
    /// thread is gone and everything it held is freed.
    ///
    /// # Errors
    ///
    /// What `build` said, or that it panicked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the thread once the model is built.
    pub async fn start<M: Model>(
        build: impl FnOnce() -> Result<M, ModelError> + Send + 'static,
    ) -> Result<(Self, oneshot::Receiver<()>, ModelSpec), ModelError> {
        let (work_sender, work) = bounded(WORK_IN_FLIGHT_MAX);
        let (outcome_sender, outcomes) = mpsc::channel(WORK_IN_FLIGHT_MAX);
        let (ready_sender, ready) = oneshot::channel();
        let (gone_sender, gone) = oneshot::channel();
        std::thread::Builder::new()
            .name("motet-device".into())
            .spawn(move || {
                run(build, ready_sender, work, outcome_sender);
                // Nobody may be waiting for the end any more.
                gone_sender.send(()).ok();
            })
            .map_err(|error| ModelError::Device(format!("no thread for the device: {error}")))?;
        let spec = ready
            .await
            .map_err(|_| ModelError::Device("the model panicked while loading".into()))??;
        let device = Self {
            work: work_sender,
            outcomes,
        };
        Ok((device, gone, spec))
    }

    /// Sends work; its outcome follows. False when the thread is gone.
    ///
    /// # Panics
    ///
    /// When more than [`WORK_IN_FLIGHT_MAX`] would be under way.
    #[must_use]
    pub fn send(&self, work: Work) -> bool {
        match self.work.try_send(work) {
            Ok(()) => true,
            Err(crossbeam_channel::TrySendError::Disconnected(_)) => false,
            Err(crossbeam_channel::TrySendError::Full(_)) => {
                panic!("the scheduler sends no more work than may be under way")
            }
        }
    }
}

fn run<M: Model>(
    build: impl FnOnce() -> Result<M, ModelError>,
    ready: oneshot::Sender<Result<ModelSpec, ModelError>>,
    work: Receiver<Work>,
    outcomes: mpsc::Sender<Outcome>,
) {
    let mut model = match build() {
        Ok(model) => model,
        Err(error) => {
            // The starter may have given up waiting.
            ready.send(Err(error)).ok();
            return;
        }
    };
    if ready.send(Ok(model.spec().clone())).is_err() {
        return;
    }
    let mut table = Table::new();
    for work in work {
        let started = Instant::now();
        let result = table.carry_out(&mut model, work);
        let outcome = Outcome {
            result,
            busy: started.elapsed(),
            memory: model.memory(),
        };
        if outcomes.try_send(outcome).is_err() {
            return;
        }
    }
}

/// Which arrays the ids stand for: the device without its thread, for simulations.
pub struct Table<M: Model> {
    segments: FxHashMap<SegmentId, Rc<M::Segment>>,
    slots: FxHashMap<SlotId, DeviceSlot<M>>,
}

struct DeviceSlot<M: Model> {
    path: Vec<Rc<M::Segment>>,
    tail: M::Tail,
}

impl<M: Model> Table<M> {
    /// A device that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segments: FxHashMap::default(),
            slots: FxHashMap::default(),
        }
    }

    /// Segments and slots that it holds.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.segments.len(), self.slots.len())
    }

    /// Carries out edits, then the step. A panic of the model is caught.
    ///
    /// # Errors
    ///
    /// [`Failure`] says what is lost.
    pub fn carry_out(&mut self, model: &mut M, work: Work) -> Result<Vec<Readout>, Failure> {
        let done = catch_unwind(AssertUnwindSafe(|| {
            for edit in work.edits {
                self.edit(model, edit)
                    .map_err(|error| Failure::Reset(error.to_string()))?;
            }
            self.step(model, &work.spans).map_err(Failure::Step)
        }));
        let result = done.unwrap_or_else(|panic| Err(Failure::Reset(panic_text(&*panic))));
        if matches!(result, Err(Failure::Reset(_))) {
            *self = Self::new();
        }
        result
    }

    fn edit(&mut self, model: &mut M, edit: Edit) -> Result<(), ModelError> {
        match edit {
            Edit::Open { slot, path } => {
                let path: Vec<_> = path
                    .iter()
                    .map(|id| Rc::clone(&self.segments[id]))
                    .collect();
                let tail = model.tail(&path)?;
                self.slots.insert(slot, DeviceSlot { path, tail });
            }
            Edit::Seal {
                slot,
                tokens,
                segment,
            } => {
                let slot = self.slots.get_mut(&slot).expect("an open slot is sealed");
                let sealed = Rc::new(model.seal(&mut slot.tail, tokens)?);
                slot.path.push(Rc::clone(&sealed));
                self.segments.insert(segment, sealed);
            }
            Edit::Split {
                segment,
                at,
                upper,
                lower,
            } => {
                let whole = self.take_segment(segment);
                let (first, second) = model.split(&whole, at)?;
                let halves = [Rc::new(first), Rc::new(second)];
                self.replace(&[whole], &halves);
                let [first, second] = halves;
                self.segments.insert(upper, first);
                self.segments.insert(lower, second);
            }
            Edit::Adopt { slot, tokens, path } => {
                let slot = self.slots.get_mut(&slot).expect("an open slot adopts");
                drop(model.seal(&mut slot.tail, tokens)?);
                let held = path.iter().map(|id| Rc::clone(&self.segments[id]));
                slot.path.extend(held);
            }
            Edit::Merge {
                upper,
                lower,
                segment,
            } => {
                let halves = [self.take_segment(upper), self.take_segment(lower)];
                let whole = Rc::new(model.merge(&halves[0], &halves[1])?);
                self.replace(&halves, &[Rc::clone(&whole)]);
                self.segments.insert(segment, whole);
            }
            Edit::Replace { segment, by } => {
                let old = self.take_segment(segment);
                let new = Rc::clone(&self.segments[&by]);
                self.replace(&[old], &[new]);
            }
            Edit::Remove {
                slot,
                kept,
                removed,
            } => self.remove(model, slot, kept, removed)?,
            // A slot that was part of a failed step is gone already.
            Edit::Close { slot } => drop(self.slots.remove(&slot)),
            Edit::Drop { segment } => drop(self.segments.remove(&segment)),
        }
        Ok(())
    }

    fn remove(
        &mut self,
        model: &mut M,
        id: SlotId,
        kept: usize,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let slot = self.slots.remove(&id);
        let mut slot = slot.expect("tokens are removed from an open slot");
        let tokens = |path: &[Rc<M::Segment>]| path.iter().map(|held| held.tokens()).sum();
        let kept_tokens: usize = tokens(&slot.path[..kept]);
        let all: usize = tokens(&slot.path) + slot.tail.tokens();
        if removed == (kept_tokens..all) {
            // Back to the end of a segment, which every layer kind can.
            drop(slot.tail);
            slot.path.truncate(kept);
            slot.tail = model.tail(&slot.path)?;
        } else {
            model.remove(&slot.path, kept, &mut slot.tail, removed)?;
            slot.path.truncate(kept);
        }
        self.slots.insert(id, slot);
        Ok(())
    }

    fn take_segment(&mut self, segment: SegmentId) -> Rc<M::Segment> {
        let held = self.segments.remove(&segment);
        held.expect("a segment is cut or merged while it is held")
    }

    /// Puts `new` where paths hold `old`, one after another.
    fn replace(&mut self, old: &[Rc<M::Segment>], new: &[Rc<M::Segment>]) {
        for slot in self.slots.values_mut() {
            let same = |held: &[Rc<M::Segment>]| {
                let mut pairs = held.iter().zip(old);
                pairs.all(|(held, old)| Rc::ptr_eq(held, old))
            };
            if let Some(at) = slot.path.windows(old.len()).position(same) {
                slot.path.splice(at..at + old.len(), new.iter().cloned());
            }
        }
    }

    /// Runs a step. Its slots are taken out of the table meanwhile, so that a
    /// failed step takes them along.
    fn step(&mut self, model: &mut M, planned: &[PlannedSpan]) -> Result<Vec<Readout>, ModelError> {
        if planned.is_empty() {
            return Ok(Vec::new());
        }
        let mut slots: Vec<DeviceSlot<M>> = planned
            .iter()
            .map(|span| {
                self.slots
                    .remove(&span.slot)
                    .expect("an open slot is stepped once")
            })
            .collect();
        let mut spans: Vec<Span<'_, M>> = planned
            .iter()
            .zip(&mut slots)
            .map(|(span, slot)| Span {
                tokens: &span.tokens,
                path: &slot.path,
                tail: &mut slot.tail,
                want: span.want.clone(),
            })
            .collect();
        let readouts = model.step(&mut spans)?;
        assert_eq!(readouts.len(), planned.len(), "a step answers every span");
        for (span, slot) in planned.iter().zip(slots) {
            self.slots.insert(span.slot, slot);
        }
        Ok(readouts)
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "the model panicked: {}",
        text.unwrap_or_else(|| "no message".into())
    )
}

impl<M: Model> Default for Table<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Model> std::fmt::Debug for Table<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (segments, slots) = self.held();
        write!(f, "Table({segments} segments, {slots} slots)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::oracle::{Oracle, OracleConfig, Soloist};

    const SLOT: SlotId = SlotId(1);
    const TWIN: SlotId = SlotId(2);

    fn span(slot: SlotId, tokens: &[TokenId]) -> PlannedSpan {
        PlannedSpan {
            slot,
            tokens: tokens.to_vec(),
            want: Want::Logits,
        }
    }

    fn work(edits: Vec<Edit>, spans: Vec<PlannedSpan>) -> Work {
        Work { edits, spans }
    }

    /// A table with two slots on segments 1 and 2, of two tokens each; the first has
    /// a tail of two more.
    fn table(oracle: &mut Oracle) -> Table<Oracle> {
        let mut table = Table::new();
        let open = |slot, path| Edit::Open { slot, path };
        let seal = |segment| Edit::Seal {
            slot: SLOT,
            tokens: 2,
            segment: SegmentId(segment),
        };
        for (edits, tokens) in [
            (vec![open(SLOT, vec![])], &[1, 2, 3, 4][..]),
            (vec![seal(1), seal(2)], &[5, 6]),
            (vec![open(TWIN, vec![SegmentId(1), SegmentId(2)])], &[]),
        ] {
            let spans = match tokens {
                [] => vec![],
                tokens => vec![span(SLOT, tokens)],
            };
            table.carry_out(oracle, work(edits, spans)).expect("done");
        }
        table
    }

    /// Logits after `next`, when these tokens were evaluated and `removed` of them
    /// taken out again.
    fn truth(config: &OracleConfig, tokens: &[TokenId], removed: Range<usize>) -> Readout {
        let mut soloist = Soloist::new(config);
        for &token in tokens {
            soloist.evaluate(token);
        }
        soloist.remove(removed);
        soloist.evaluate(9);
        let mut logits = Vec::new();
        soloist.push_logits(&mut logits);
        Readout::Logits(logits)
    }

    #[test]
    fn merged_segments_are_one_in_every_path() {
        let config = OracleConfig::default();
        let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
        let mut table = table(&mut oracle);
        assert_eq!(table.held(), (2, 2));
        let merge = Edit::Merge {
            upper: SegmentId(1),
            lower: SegmentId(2),
            segment: SegmentId(3),
        };
        let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
        let found = table.carry_out(&mut oracle, work(vec![merge], spans));
        let expected = [
            truth(&config, &[1, 2, 3, 4, 5, 6], 6..6),
            truth(&config, &[1, 2, 3, 4], 4..4),
        ];
        assert_eq!(found.expect("done"), expected);
        assert_eq!(table.held(), (1, 2));
        assert_eq!(config.counters.now().segments_alive, 1);
    }

    #[test]
    fn tokens_are_removed_from_one_slot_only() {
        let config = OracleConfig::default();
        let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
        let mut table = table(&mut oracle);
        let remove = Edit::Remove {
            slot: SLOT,
            kept: 1,
            removed: 3..5,
        };
        let spans = vec![span(SLOT, &[9]), span(TWIN, &[9])];
        let found = table.carry_out(&mut oracle, work(vec![remove], spans));
        let expected = [
            truth(&config, &[1, 2, 3, 4, 5, 6], 3..5),
            truth(&config, &[1, 2, 3, 4], 4..4),
        ];
        assert_eq!(found.expect("done"), expected);
    }

    #[test]
    fn an_edit_that_the_model_refuses_resets() {
        let config = OracleConfig::default();
        let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
        let mut table = table(&mut oracle);
        let remove = Edit::Remove {
            slot: SLOT,
            kept: 2,
            removed: 3..5,
        };
        let found = table.carry_out(&mut oracle, work(vec![remove], vec![]));
        let Err(Failure::Reset(message)) = found else {
            panic!("expected a reset, got {found:?}");
        };
        assert!(message.contains("tokens 3..5 of 6"), "{message}");
        assert_eq!(table.held(), (0, 0));
    }
}
