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

use crate::model::{DeviceMemory, Model, ModelError, ModelSpec, Readout, Span, Want};
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
    /// Tokens are taken out of a slot: it keeps the first `kept` segments of its path,
    /// and in its tail what followed them and is not removed.
    Remove {
        /// The slot.
        slot: SlotId,
        /// Segments of its path that stay.
        kept: usize,
        /// Which of its tokens.
        removed: Range<usize>,
    },
    /// Two segments in a row become one.
    Merge {
        /// The first, which is gone afterwards.
        upper: SegmentId,
        /// The second, which is gone afterwards.
        lower: SegmentId,
        /// The name of what holds both.
        segment: SegmentId,
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
                let whole = self
                    .segments
                    .remove(&segment)
                    .expect("a held segment is split");
                let (first, second) = model.split(&whole, at)?;
                let halves = [Rc::new(first), Rc::new(second)];
                for slot in self.slots.values_mut() {
                    if let Some(i) = slot.path.iter().position(|s| Rc::ptr_eq(s, &whole)) {
                        slot.path.splice(i..=i, halves.clone());
                    }
                }
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
            Edit::Remove { .. } | Edit::Merge { .. } => todo!(),
            // A slot that was part of a failed step is gone already.
            Edit::Close { slot } => drop(self.slots.remove(&slot)),
            Edit::Drop { segment } => drop(self.segments.remove(&segment)),
        }
        Ok(())
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
