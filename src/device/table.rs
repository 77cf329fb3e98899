//! Which arrays the ids stand for, and which steps are under way.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::slice;

use rustc_hash::{FxHashMap, FxHashSet};

use super::dock::{Dock, dock};
use super::edit::{Stakes, changed_slot, read, stakes};
use super::turn::{Progress, Turn, turn};
use motet_core::protocol::{
    DrawerStart, Edit, Failure, GrammarError, Input, Lost, ModelError, PlannedSpan, Readout,
    WORK_IN_FLIGHT_MAX, Want, Work,
};
use motet_core::{CopyId, SegmentId, SlotId, TokenId};
use motet_model::sampling::Drawer;
use motet_model::{Feed, Model, Parcel, Span};

/// Works in a row of which an edit may fail: then the device is not trusted any more.
const FAILING_WORKS_MAX: u32 = 8;

/// The device without its thread, so that simulations can drive it.
///
/// Each work is launched, drawn and landed, in this order. Two may be under way: the
/// second is launched when the first is drawn, and drawn when the first has landed.
pub struct Table<M: Model> {
    pub(super) segments: FxHashMap<SegmentId, Rc<M::Segment>>,
    pub(super) slots: FxHashMap<SlotId, DeviceSlot<M>>,
    under_way: VecDeque<UnderWay<M>>,
    /// Work launched so far.
    launches: u64,
    /// Resets so far, its own and those that its sender has asked for.
    epoch: u64,
    /// What the edits of the last work have cost, or of the one that has landed last.
    lost: Lost,
    /// Segments and slots that edits have lost, until they are dropped and closed.
    pub(super) absent: Absent,
    /// Works in a row of which an edit has failed.
    failing_works: u32,
    /// Where segments leave and arrive.
    pub(super) dock: Dock<Parcel<M>>,
    /// Copies of tails that steps under way may still make worthless.
    parting: Vec<Parting<M>>,
}

/// A copy of a tail, which is handed over when what was launched before it has landed.
struct Parting<M: Model> {
    /// The last launch before it.
    after: u64,
    copy: CopyId,
    parcel: Parcel<M>,
}

/// What is not there, although whoever sends work believes so or did until lately.
#[derive(Default)]
pub(super) struct Absent {
    pub(super) segments: FxHashSet<SegmentId>,
    pub(super) slots: FxHashSet<SlotId>,
}

pub(super) struct DeviceSlot<M: Model> {
    pub(super) path: Vec<Rc<M::Segment>>,
    pub(super) tail: M::Tail,
    /// None where draws are plain.
    pub(super) drawer: Option<Drawer>,
    pub(super) last: Last,
}

/// What a slot's last span drew.
#[derive(Clone, Copy)]
pub(super) enum Last {
    Nothing,
    Token(TokenId),
    /// What span number `span` of launch number `launch` draws.
    UnderWay {
        launch: u64,
        span: usize,
    },
}

struct UnderWay<M: Model> {
    launch: u64,
    drawers: Vec<DrawerStart>,
    spans: Vec<PlannedSpan>,
    /// Where in the step spans stood whose slots are absent, ascending.
    left_out: Vec<usize>,
    /// What its edits have cost.
    lost: Lost,
    stage: Stage<M>,
}

enum Stage<M: Model> {
    Launched(M::Flight),
    /// Drawn; some spans' drawers failed, and this is why.
    Drawn(M::Flight, Vec<(usize, GrammarError)>),
    /// Without a flight: this is the answer.
    Over(Result<Vec<Readout>, Failure>),
}

impl<M: Model> Table<M> {
    /// A device that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::with_dock(dock().0)
    }

    /// The same, where segments leave and arrive.
    #[must_use]
    pub fn with_dock(dock: Dock<Parcel<M>>) -> Self {
        Self {
            segments: FxHashMap::default(),
            slots: FxHashMap::default(),
            under_way: VecDeque::new(),
            launches: 0,
            epoch: 0,
            lost: Lost::default(),
            absent: Absent::default(),
            failing_works: 0,
            dock,
            parting: Vec::new(),
        }
    }

    /// Segments and slots that it holds.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.segments.len(), self.slots.len())
    }

    /// Work that is under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Whether the work that was launched last is still to be drawn.
    #[must_use]
    pub fn is_to_draw(&self) -> bool {
        let last = self.under_way.back();
        last.is_some_and(|work| matches!(work.stage, Stage::Launched(_)))
    }

    /// What comes next; `more` is whether work may still come.
    pub(super) fn turn(&self, more: bool) -> Turn {
        let mut progress = [Progress::Drawn; WORK_IN_FLIGHT_MAX];
        let under_way = &mut progress[..self.under_way()];
        if let (Some(last), true) = (under_way.last_mut(), self.is_to_draw()) {
            *last = Progress::Launched;
        }
        turn(under_way, more)
    }

    /// Whether the oldest work would land without waiting. True where there is none.
    #[must_use]
    pub fn is_ready(&self, model: &M) -> bool {
        self.under_way.front().is_none_or(|work| match &work.stage {
            Stage::Launched(flight) | Stage::Drawn(flight, _) => model.is_ready(flight),
            Stage::Over(_) => true,
        })
    }

    /// Whether the oldest work is over, and has only to be answered for.
    pub(super) fn is_over(&self) -> bool {
        let oldest = self.under_way.front();
        oldest.is_some_and(|work| matches!(work.stage, Stage::Over(_)))
    }

    /// Carries out edits, then sends the step to the device. What fails is told when the
    /// work lands. A panic of the model is caught.
    ///
    /// # Panics
    ///
    /// When [`WORK_IN_FLIGHT_MAX`] are under way, or the last is not drawn.
    pub fn launch(&mut self, model: &mut M, mut work: Work) {
        assert!(
            self.under_way.len() < WORK_IN_FLIGHT_MAX && !self.is_to_draw(),
            "work is launched on top of one that is drawn"
        );
        self.launches += 1;
        self.lost = Lost::default();
        if work.epoch > self.epoch {
            self.drop_all();
            self.epoch = work.epoch;
        }
        let mut left_out = Vec::new();
        let stage = if work.epoch == self.epoch {
            let edits = std::mem::take(&mut work.edits);
            let launched = self.guarded(|table| {
                table.carry_out_edits(model, edits)?;
                left_out = table.leave_absent_out(&mut work.spans);
                table.fly(model, &work.spans)
            });
            match launched {
                Ok(Some(flight)) => Stage::Launched(flight),
                Ok(None) => Stage::Over(Ok(Vec::new())),
                Err(failure) => Stage::Over(Err(failure)),
            }
        } else {
            Stage::Over(Err(Failure::Dropped))
        };
        self.under_way.push_back(UnderWay {
            launch: self.launches,
            drawers: work.drawers,
            spans: work.spans,
            left_out,
            lost: std::mem::take(&mut self.lost),
            stage,
        });
    }

    /// What the edits of the work have cost that has landed last, unless it was asked for.
    pub fn take_lost(&mut self) -> Lost {
        std::mem::take(&mut self.lost)
    }

    /// Has the last work's tokens drawn, if that is to be done.
    ///
    /// # Panics
    ///
    /// When the work before it has not landed.
    pub fn draw(&mut self, model: &mut M) {
        if !self.is_to_draw() {
            return;
        }
        assert!(
            self.under_way.len() == 1,
            "work is drawn when the work before it has landed"
        );
        let mut work = self.under_way.pop_back().expect("some work is to be drawn");
        let Stage::Launched(mut flight) = work.stage else {
            unreachable!("it is to be drawn")
        };
        let drawers = std::mem::take(&mut work.drawers);
        let drawn = self.guarded(|table| {
            table.start(drawers);
            let (drawings, failed) = table.drawings(&work.spans);
            model.draw(&mut flight, drawings).map_err(Failure::Step)?;
            Ok(failed)
        });
        work.stage = match drawn {
            Ok(failed) => Stage::Drawn(flight, failed),
            Err(failure) => {
                self.lose(&work.spans);
                Stage::Over(Err(failure))
            }
        };
        self.under_way.push_back(work);
    }

    /// Waits for the oldest work and answers it: one readout per span.
    ///
    /// # Errors
    ///
    /// [`Failure`] says what is lost.
    ///
    /// # Panics
    ///
    /// When no work is under way, or the oldest is not drawn.
    pub fn land(&mut self, model: &mut M) -> Result<Vec<Readout>, Failure> {
        let work = self.under_way.pop_front().expect("some work is under way");
        let launch = work.launch;
        let result = self.land_work(model, work);
        let is_well = result.is_ok();
        let parted = self.guarded(|table| {
            let parted = table.part(launch, is_well);
            parted.map_err(|error| Failure::Reset(error.to_string()))
        });
        parted.and(result)
    }

    fn land_work(&mut self, model: &mut M, work: UnderWay<M>) -> Result<Vec<Readout>, Failure> {
        self.lost = work.lost;
        let result = match work.stage {
            Stage::Launched(_) => panic!("work is drawn before it lands"),
            Stage::Over(result) => return result.map(|told| with_left_out(told, &work.left_out)),
            Stage::Drawn(flight, failed) => self.guarded(|table| {
                let mut readouts = model.land(flight).map_err(Failure::Step)?;
                assert_eq!(
                    readouts.len(),
                    work.spans.len(),
                    "a step answers every span"
                );
                table.accept(work.launch, &work.spans, &readouts);
                for (span, why) in failed {
                    readouts[span] = Readout::Failed(why);
                }
                Ok(with_left_out(readouts, &work.left_out))
            }),
        };
        if result.is_err() {
            self.lose(&work.spans);
            // What was launched on top of it may have read what it did not write.
            for mut later in std::mem::take(&mut self.under_way) {
                self.lose(&later.spans);
                if !matches!(later.stage, Stage::Over(Ok(_) | Err(Failure::Reset(_)))) {
                    later.stage = Stage::Over(Err(Failure::Dropped));
                }
                self.under_way.push_back(later);
            }
        }
        result
    }

    /// Launches, draws and lands one work while no other is under way.
    ///
    /// # Errors
    ///
    /// As for [`land`](Table::land).
    ///
    /// # Panics
    ///
    /// When other work is under way.
    pub fn carry_out(&mut self, model: &mut M, work: Work) -> Result<Vec<Readout>, Failure> {
        assert!(self.under_way.is_empty(), "no other work is under way");
        self.launch(model, work);
        self.draw(model);
        self.land(model)
    }

    /// Catches a panic of the model, and drops everything when a reset follows.
    fn guarded<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let done = catch_unwind(AssertUnwindSafe(|| part(self)));
        let result = done.unwrap_or_else(|panic| {
            let reason = format!("the model panicked: {}", panic_text(&*panic));
            Err(Failure::Reset(reason))
        });
        if matches!(result, Err(Failure::Reset(_))) {
            self.drop_all();
            self.epoch += 1;
        }
        result
    }

    /// Hands a copy of a slot's tail over, when the steps under way have landed: one that fails
    /// makes the tail worthless, and the copy with it.
    pub(super) fn part_with(
        &mut self,
        copy: CopyId,
        parcel: Result<Parcel<M>, ModelError>,
    ) -> Result<(), ModelError> {
        match (parcel, self.under_way.back()) {
            (Ok(parcel), Some(before)) => {
                self.parting.push(Parting {
                    after: before.launch,
                    copy,
                    parcel,
                });
                Ok(())
            }
            (parcel, _) => self.dock.leave(copy, parcel),
        }
    }

    /// This launch has landed, well or not.
    fn part(&mut self, launch: u64, is_well: bool) -> Result<(), ModelError> {
        let due = |parting: &mut Parting<M>| parting.after <= launch || !is_well;
        let due: Vec<Parting<M>> = self.parting.extract_if(.., due).collect();
        for Parting { copy, parcel, .. } in due {
            let failed = || ModelError::Device("the step before it has failed".into());
            let parcel = is_well.then_some(parcel).ok_or_else(failed);
            self.dock.leave(copy, parcel)?;
        }
        Ok(())
    }

    fn drop_all(&mut self) {
        self.segments.clear();
        self.slots.clear();
        self.parting.clear();
        self.dock.clear();
        self.lost = Lost::default();
        self.absent = Absent::default();
        self.failing_works = 0;
    }

    /// Carries out edits. One that fails costs what it touched; all is lost where the device
    /// cannot be trusted any more.
    fn carry_out_edits(&mut self, model: &mut M, edits: Vec<Edit>) -> Result<(), Failure> {
        if edits.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for edit in edits {
            let stakes = stakes(&edit);
            let edited = match self.lacks(&edit) {
                true => Err(ModelError::Device("what it needs was lost".into())),
                false => self.edit(model, edit),
            };
            match edited {
                Ok(()) => {}
                Err(error) if error.spares_the_rest() => {
                    let reason = failed.get_or_insert_with(|| error.to_string());
                    self.lose_stakes(stakes, reason);
                }
                Err(error) => return Err(Failure::Reset(error.to_string())),
            }
        }
        let Some(reason) = failed else {
            self.failing_works = 0;
            return Ok(());
        };
        self.failing_works += 1;
        match self.failing_works <= FAILING_WORKS_MAX {
            true => Ok(()),
            false => Err(Failure::Reset(format!(
                "edits failed in {} works in a row: {reason}",
                self.failing_works
            ))),
        }
    }

    /// Whether what an edit begins with was lost.
    fn lacks(&self, edit: &Edit) -> bool {
        let slot = changed_slot(edit);
        slot.is_some_and(|slot| self.absent.slots.contains(&slot))
            || read(edit).any(|segment| self.absent.segments.contains(&segment))
    }

    /// An edit has failed: what it was to change or to make is not there.
    fn lose_stakes(&mut self, stakes: Stakes, reason: &str) {
        if self.lost.is_empty() {
            reason.clone_into(&mut self.lost.reason);
        }
        for segment in stakes.used_up {
            self.segments.remove(&segment);
            self.absent.segments.remove(&segment);
        }
        if let Some(slot) = stakes.slot {
            self.slots.remove(&slot);
            match stakes.closes {
                true => drop(self.absent.slots.remove(&slot)),
                false if self.absent.slots.insert(slot) => self.lost.slots.push(slot),
                false => {}
            }
        }
        self.absent.segments.extend(&stakes.made);
        self.lost.segments.extend(stakes.made);
    }

    /// Takes spans out of a step whose slots are absent. Says where they stood.
    fn leave_absent_out(&self, spans: &mut Vec<PlannedSpan>) -> Vec<usize> {
        if self.absent.slots.is_empty() {
            return Vec::new();
        }
        let is_absent = |span: &PlannedSpan| self.absent.slots.contains(&span.slot);
        let places = (0..).zip(&*spans).filter(|(_, span)| is_absent(span));
        let left_out = places.map(|(place, _)| place).collect();
        spans.retain(|span| !is_absent(span));
        left_out
    }

    /// Launches a step; none where there are no spans. Its slots are taken out of the
    /// table meanwhile, so that a failed launch takes them along.
    fn fly(
        &mut self,
        model: &mut M,
        planned: &[PlannedSpan],
    ) -> Result<Option<M::Flight>, Failure> {
        if planned.is_empty() {
            return Ok(None);
        }
        let taken = planned.iter().map(|span| self.slots.remove(&span.slot));
        let taken: Vec<Option<DeviceSlot<M>>> = taken.collect();
        let slots: Option<Vec<DeviceSlot<M>>> = taken.into_iter().collect();
        // Those that are not there were lost with the step before.
        let mut slots = slots.ok_or(Failure::Dropped)?;
        let before = self.under_way.back();
        let lasts: Vec<Last> = slots.iter().map(|slot| slot.last).collect();
        let pairs = planned.iter().zip(&lasts);
        let mut spans: Vec<Span<'_, M>> = pairs
            .zip(&mut slots)
            .map(|((span, last), slot)| Span {
                tokens: feed(&span.input, last, before),
                path: &slot.path,
                tail: &mut slot.tail,
                want: span.want.clone(),
            })
            .collect();
        let flight = model.launch(&mut spans).map_err(Failure::Step)?;
        for (index, (planned, mut slot)) in planned.iter().zip(slots).enumerate() {
            slot.last = match planned.want {
                Want::Token(_) => Last::UnderWay {
                    launch: self.launches,
                    span: index,
                },
                Want::Nothing | Want::Logits => Last::Nothing,
            };
            let twin = self.slots.insert(planned.slot, slot);
            assert!(twin.is_none(), "a slot is stepped once");
        }
        Ok(Some(flight))
    }

    fn lose(&mut self, spans: &[PlannedSpan]) {
        for span in spans {
            self.slots.remove(&span.slot);
        }
    }
}

impl<M: Model> DeviceSlot<M> {
    pub(super) fn new(path: Vec<Rc<M::Segment>>, tail: M::Tail) -> Self {
        Self {
            path,
            tail,
            drawer: None,
            last: Last::Nothing,
        }
    }
}

/// Readouts with nothing where a span was left out.
fn with_left_out(mut readouts: Vec<Readout>, left_out: &[usize]) -> Vec<Readout> {
    for place in left_out {
        readouts.insert(*place, Readout::Nothing);
    }
    readouts
}

/// What a span is fed: the scheduler's tokens, or what its slot's last span drew, which
/// may be under way still.
fn feed<'a, M: Model>(
    input: &'a Input,
    last: &'a Last,
    before: Option<&'a UnderWay<M>>,
) -> Feed<'a, M> {
    match (input, last) {
        (Input::Known(tokens), _) => Feed::Known(tokens),
        (Input::Drawn, Last::Token(token)) => Feed::Known(slice::from_ref(token)),
        (Input::Drawn, Last::UnderWay { launch, span }) => {
            let before = before.filter(|before| before.launch == *launch);
            match &before
                .expect("what is under way is what was launched before")
                .stage
            {
                Stage::Drawn(flight, _) => Feed::Drawn(flight, *span),
                Stage::Launched(_) | Stage::Over(_) => unreachable!("its slots would be lost"),
            }
        }
        (Input::Drawn, Last::Nothing) => panic!("the slot's last span drew nothing"),
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
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
