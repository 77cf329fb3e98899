//! What a core that takes the place of another must know.
//!
//! A [`PagerCore`](super::PagerCore) may panic, and is thrown away then. Here stands what
//! cannot be made anew: where each copy is, what the copy threads are at, and what the cache
//! still waits to hear. It is kept by whoever feeds the core, from what goes in and what
//! comes out, so that what a panic has swallowed has not happened: a message that was being
//! handled stands here as one without an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::message::{Done, Effect, Job, Lane, Message, Task, Told};
use crate::lease::Lease;
use crate::pager::Label;
use crate::{CopyId, SegmentId, SequenceId};

/// Copies, jobs and conversations, as the threads and the cache know them.
#[derive(Debug, Default)]
pub struct Ledger {
    pub(super) copies: BTreeMap<CopyId, Standing>,
    /// Copies that were given up and whose files are still to be removed.
    pub(super) lost: BTreeSet<CopyId>,
    /// Segments that the cache was promised word of; as many as it offers at once.
    pub(super) offers: Vec<Offered>,
    /// Newcomers of the cache that wait for what they want.
    pub(super) wants: BTreeSet<SequenceId>,
    /// Cancels that are not confirmed, oldest first.
    pub(super) cancels: Vec<SequenceId>,
    /// Parcels at the dock that the cache has not been told of.
    pub(super) parcels: Vec<CopyId>,
    /// The copy of which a parcel is being made.
    pub(super) unpacks: Option<CopyId>,
    /// What the disk is at.
    pub(super) disk: Option<(CopyId, Task)>,
    /// The cache waits to hear that a reset is known.
    pub(super) reset_due: bool,
    /// The last name that a copy was given.
    pub(super) made: u64,
}

/// A copy, and where it is.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) label: Arc<Label>,
    pub(super) priority: u8,
    /// The device is to hand it over, or has.
    pub(super) is_leaving: bool,
    pub(super) in_host: bool,
    pub(super) on_disk: bool,
    /// The cache has it handed over no more.
    pub(super) is_withdrawn: bool,
    /// The cache was cleared: it is to be given up when nothing holds it.
    pub(super) is_doomed: bool,
}

/// A segment that was offered and not answered for.
#[derive(Debug)]
pub(super) struct Offered {
    /// Beside the core's own: it outlives the core.
    pub(super) lease: Lease,
    priority: u8,
    /// What it becomes, if the cache was told to hand it over.
    pub(super) copy: Option<CopyId>,
}

impl Offered {
    fn segment(&self) -> SegmentId {
        self.lease.segment()
    }
}

impl Ledger {
    /// Of a pager that has these copies on its disk, and nothing else.
    #[must_use]
    pub fn new(found: &[(CopyId, Label)]) -> Self {
        let standing = |(name, label): &(CopyId, Label)| {
            let standing = Standing {
                on_disk: true,
                ..Standing::new(Arc::new(label.clone()))
            };
            (*name, standing)
        };
        Self {
            copies: found.iter().map(standing).collect(),
            made: found.iter().map(|(name, _)| name.0).max().unwrap_or(0),
            ..Self::default()
        }
    }

    /// The core is about to take in this message.
    pub fn hears(&mut self, message: &Message) {
        match message {
            Message::Offer(offer) => self.offers.push(Offered {
                lease: offer.lease.clone(),
                priority: offer.priority,
                copy: None,
            }),
            Message::Want(want) => drop(self.wants.insert(want.sequence)),
            Message::Cancel { sequence } => {
                self.wants.remove(sequence);
                self.cancels.push(*sequence);
            }
            Message::Spare { sequence, copies } => {
                self.cancels.push(*sequence);
                // They are the pager's again.
                self.parcels.extend(copies);
            }
            Message::Withdraw { copy } => {
                if let Some(standing) = self.copies.get_mut(copy) {
                    standing.is_withdrawn = standing.is_leaving;
                }
            }
            Message::Clear { salt } => {
                for standing in self.copies.values_mut() {
                    let of_salt = salt.is_none_or(|salt| salt == standing.label.salt);
                    standing.is_doomed |= of_salt;
                }
            }
            Message::GiveUp { copies } => {
                for copy in copies {
                    if let Some(standing) = self.copies.get_mut(copy) {
                        standing.is_doomed = true;
                    }
                }
            }
            Message::Reset => self.reset_due = true,
            Message::Done(done) => self.done(done),
            Message::Fetch { .. } | Message::Foretell { .. } | Message::Tick => {}
        }
    }

    /// This is about to be done, as the core says.
    pub fn says(&mut self, effect: &Effect) {
        match effect {
            Effect::Tell(told) => self.told(told),
            Effect::Do(job) => self.begun(job),
            Effect::Forget(copy) => {
                self.offers.retain(|offered| offered.copy != Some(*copy));
                self.change(*copy, |standing| {
                    standing.is_leaving = false;
                    standing.in_host = false;
                });
            }
            Effect::Discard(copy) => {
                let at = self.parcels.iter().position(|parcel| parcel == copy);
                at.map(|at| self.parcels.swap_remove(at));
            }
            Effect::DiscardAll => self.parcels.clear(),
        }
    }

    /// Parcels at the dock that are nobody's if there is no pager any more.
    #[must_use]
    pub fn parcels(&self) -> &[CopyId] {
        &self.parcels
    }

    fn told(&mut self, told: &Told) {
        match told {
            Told::Take { segment, copy } => {
                let new = |one: &&mut Offered| one.segment() == *segment && one.copy.is_none();
                let offered = self.offers.iter_mut().find(new);
                let offered = offered.expect("what is to be handed over was offered");
                offered.copy = Some(*copy);
                let priority = offered.priority;
                self.change(*copy, |standing| standing.priority = priority);
            }
            Told::Kept { segment, .. } | Told::Refused { segment } => self.answered(*segment),
            Told::Nothing { sequence, .. } | Told::Again { sequence } => {
                self.wants.remove(sequence);
            }
            Told::Arrived { sequence, copies } => {
                self.wants.remove(sequence);
                // From now on the cache's, which takes them in or spares them.
                for copy in copies {
                    let at = self.parcels.iter().position(|parcel| parcel == copy);
                    at.map(|at| self.parcels.swap_remove(at));
                }
            }
            Told::Cancelled { sequence } => {
                let at = self.cancels.iter().position(|one| one == sequence);
                at.map(|at| self.cancels.remove(at));
            }
            Told::Reset => {
                self.offers.clear();
                self.wants.clear();
                self.cancels.clear();
                self.reset_due = false;
            }
            Told::Lost { copy } => {
                // What is known of it is given up at once, however long its file stays.
                let lost = self.copies.remove(copy);
                let has_file = lost.is_some_and(|standing| standing.on_disk);
                self.lost.extend(has_file.then_some(*copy));
            }
            Told::Found { .. } | Told::Gone => {}
        }
    }

    /// Word of a segment: the offer that has just come, or else the one whose copying is
    /// over.
    fn answered(&mut self, segment: SegmentId) {
        let is_over = |one: &Offered| {
            let copy = one.copy.and_then(|copy| self.copies.get(&copy));
            one.segment() == segment && !copy.is_some_and(|copy| copy.is_leaving)
        };
        let at = self.offers.iter().rposition(is_over);
        at.map(|at| self.offers.remove(at));
    }

    fn begun(&mut self, job: &Job) {
        let copy = job.copy;
        match job.task {
            Task::Pack => {
                self.made = self.made.max(copy.0);
                let standing = Standing {
                    is_leaving: true,
                    ..Standing::new(Arc::clone(&job.label))
                };
                self.copies.insert(copy, standing);
            }
            Task::Unpack => self.unpacks = Some(copy),
            task => {
                debug_assert_eq!(task.lane(), Lane::Disk);
                self.disk = Some((copy, task));
            }
        }
        if job.task == Task::Remove {
            self.lost.remove(&copy);
            self.change(copy, |standing| standing.on_disk = false);
        }
    }

    /// A copy thread has done a job.
    fn done(&mut self, done: &Done) {
        let (copy, is_well) = (done.copy, done.result.is_ok());
        match done.task {
            Task::Unpack => {
                self.unpacks = None;
                self.parcels.extend(is_well.then_some(copy));
            }
            Task::Pack => {}
            Task::Read | Task::Write | Task::Remove => self.disk = None,
        }
        self.change(copy, |standing| match done.task {
            // One that was withdrawn is not kept.
            Task::Pack if standing.is_leaving => {
                standing.is_leaving = false;
                standing.in_host = is_well;
            }
            Task::Read => standing.in_host = is_well,
            Task::Write => standing.on_disk = is_well,
            Task::Pack | Task::Unpack | Task::Remove => {}
        });
    }

    /// Changes a copy, if it is there, and forgets one that is nowhere.
    fn change(&mut self, copy: CopyId, change: impl FnOnce(&mut Standing)) {
        let Some(standing) = self.copies.get_mut(&copy) else {
            return;
        };
        change(standing);
        let is_there = standing.is_leaving || standing.in_host || standing.on_disk;
        let comes = self.disk == Some((copy, Task::Write));
        if !is_there && !comes {
            self.copies.remove(&copy);
        }
    }
}

impl Standing {
    fn new(label: Arc<Label>) -> Self {
        Self {
            label,
            priority: 0,
            is_leaving: false,
            in_host: false,
            on_disk: false,
            is_withdrawn: false,
            is_doomed: false,
        }
    }
}
