//! The pager's core, with as much of a cache, a device and copy workers as it can observe: the
//! life of a copy (on the device, exported, in host memory, loaded, on the disk, discarded;
//! leased and looked up meanwhile).
//!
//! Invariants after each message: the core's own check passes. The budgets hold. Every part
//! gets the messages recorded here. A copy that is looked up or moving is not discarded. Each
//! job takes its copy from where it is. From every state, all work finishes, with every lookup
//! answered and nothing left over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use motet::config::{DiskConfig, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, SegmentSize};
use motet::{CopyId, SegmentId, SequenceId, TokenId};
use motet_core::cache::SaltDigest;
use motet_core::lease::LeaseCount;
use motet_core::pager::{
    CopyQueue, CopyRange, Done, Effect, Job, JobError, Label, Lookup, Message, OffloadCandidate,
    PagerCore, PagerEvent, Precision, Task,
};

use crate::explorer::World;

/// Two segments in a row, and another beside the second.
const SEGMENTS: [(&[TokenId], usize); 3] = [
    (&[1, 2, 3, 4], 0),
    (&[1, 2, 3, 4, 5, 6, 7, 8], 4),
    (&[1, 2, 3, 4, 9, 9, 9, 9], 4),
];
const SEGMENT_TOKENS: usize = 4;
/// The explorer tries every order from these beginnings.
pub(crate) const BEGINNINGS: [&[Act]; 6] = [
    &[],
    // One copy in host memory; in the last of these, on the disk only.
    &[Act::OffloadCandidate(0), Act::End(0, true)],
    &[
        Act::OffloadCandidate(0),
        Act::End(0, true),
        Act::End(0, true),
    ],
    &[
        Act::OffloadCandidate(0),
        Act::End(0, true),
        Act::OffloadCandidate(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Lookup(0),
    ],
    &[
        Act::OffloadCandidate(0),
        Act::End(0, true),
        Act::End(0, true),
        Act::OffloadCandidate(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::OffloadCandidate(2),
        Act::End(0, true),
        Act::End(0, true),
    ],
    // A detached state is being made.
    &[
        Act::OffloadCandidate(0),
        Act::End(0, true),
        Act::OffloadCandidate(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Lookup(0),
        Act::Load(0),
        Act::Make,
    ],
];

const SALT: SaltDigest = SaltDigest([3; 32]);
const PAGE: usize = 4096;
/// Two copies, of three.
const TIER_BYTES: usize = 2 * PAGE;
const TIMEOUT: Duration = Duration::from_secs(1);

/// One possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// This segment becomes an offload candidate.
    OffloadCandidate(usize),
    /// This sequence is looked up; the second needs another end than the first.
    Lookup(usize),
    Load(usize),
    Cancel(usize),
    /// The detached state in progress reaches the transfer queue; the pager is not notified
    /// yet.
    Make,
    /// A job ends, with success or failure; it is selected by its age among the pending jobs.
    End(usize, bool),
    Reset,
    Clear,
    /// Longer than a disk may take goes by.
    Wait,
}

/// Progress of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LoadState {
    Asked,
    Hit(Vec<CopyRange>),
    Loading(Vec<CopyRange>),
}

pub(crate) struct PagerWorld {
    core: PagerCore,
    now: Duration,
    /// Lease counts of each segment on the device; its name is new after a reset.
    lease_counts: Vec<LeaseCount>,
    segments_made: u64,
    /// Offload candidates without an answer, and whether the pager asked for them.
    offloading: BTreeMap<SegmentId, bool>,
    loads: BTreeMap<SequenceId, LoadState>,
    /// Pending jobs, oldest first.
    jobs: Vec<Job>,
    host: BTreeSet<CopyId>,
    disk: BTreeSet<CopyId>,
    /// Copies that a device was exporting when it lost everything.
    lost: BTreeSet<CopyId>,
    /// Detached states that wait for the device.
    detached_states: BTreeMap<CopyId, usize>,
    /// The pending job has put one of them there.
    is_unpack_finished: bool,
    order: Vec<Act>,
}

/// Whether there is a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiers {
    Host,
    HostAndDisk,
    /// Both, and labels for two of three copies only.
    FewLabels,
}

impl World for PagerWorld {
    type Act = Act;
    type Setup = Tiers;

    fn new(tiers: Tiers) -> Self {
        let with_disk = tiers != Tiers::Host;
        let labels = if tiers == Tiers::FewLabels { 2 } else { 4 };
        let oracle = OracleConfig::with_layers(&[LayerKind::Full]);
        let config = PagerConfig {
            host_bytes_max: TIER_BYTES,
            label_bytes_max: Some(labels * Label::host_bytes(SEGMENT_TOKENS)),
            disk: with_disk.then(|| DiskConfig {
                folder: "never touched".into(),
                bytes_max: TIER_BYTES,
            }),
            disk_timeout: TIMEOUT,
            ..PagerConfig::default()
        };
        let sizes = |_: SegmentSize| (100, Precision::Full);
        let mut world = Self {
            core: PagerCore::new(oracle.spec(), config, Box::new(sizes), Vec::new()),
            now: Duration::ZERO,
            lease_counts: Vec::new(),
            segments_made: 0,
            offloading: BTreeMap::new(),
            loads: BTreeMap::new(),
            jobs: Vec::new(),
            host: BTreeSet::new(),
            disk: BTreeSet::new(),
            lost: BTreeSet::new(),
            detached_states: BTreeMap::new(),
            is_unpack_finished: false,
            order: Vec::new(),
        };
        world.fill_device();
        world
    }

    fn possible(&self) -> Vec<Act> {
        let free = |at: &usize| {
            !self
                .offloading
                .contains_key(&self.lease_counts[*at].segment())
        };
        let mut acts: Vec<Act> = (0..SEGMENTS.len())
            .filter(free)
            .map(Act::OffloadCandidate)
            .collect();
        for number in 0..2 {
            acts.extend(match self.loads.get(&SequenceId(number as u64 + 1)) {
                None => vec![Act::Lookup(number)],
                Some(LoadState::Hit(_)) => vec![Act::Load(number), Act::Cancel(number)],
                Some(_) => vec![Act::Cancel(number)],
            });
        }
        let unpacks = self.jobs.iter().any(|job| job.task == Task::Unpack);
        acts.extend((unpacks && !self.is_unpack_finished).then_some(Act::Make));
        for (at, job) in self.jobs.iter().enumerate() {
            acts.push(Act::End(at, true));
            // A finished unpack cannot fail.
            let fails = job.task != Task::Unpack || !self.is_unpack_finished;
            acts.extend(fails.then_some(Act::End(at, false)));
        }
        acts.extend([Act::Reset, Act::Clear, Act::Wait]);
        acts
    }

    fn happen(&mut self, act: Act) {
        self.order.push(act);
        self.now += Duration::from_millis(1);
        let sequence = |number: usize| SequenceId(number as u64 + 1);
        match act {
            Act::OffloadCandidate(at) => self.offload(at),
            Act::Lookup(number) => {
                self.loads.insert(sequence(number), LoadState::Asked);
                let lookup = Lookup {
                    sequence: sequence(number),
                    salt: SALT,
                    tokens: SEGMENTS[number + 1].0.into(),
                    resident: Vec::new(),
                    seen_tokens: 0,
                    token_time: None,
                };
                self.send(Message::Lookup(lookup));
            }
            Act::Load(number) => {
                let load_state = self.loads.get_mut(&sequence(number)).expect("it was found");
                let LoadState::Hit(copy_ranges) = load_state else {
                    panic!("it was found")
                };
                *load_state = LoadState::Loading(std::mem::take(copy_ranges));
                self.send(Message::Load {
                    sequence: sequence(number),
                });
            }
            Act::Cancel(number) => {
                self.loads.remove(&sequence(number));
                self.send(Message::Cancel {
                    sequence: sequence(number),
                });
            }
            Act::Make => {
                let unpacks = |job: &&Job| job.task == Task::Unpack;
                let job = self.jobs.iter().find(unpacks).expect("one is made");
                *self.detached_states.entry(job.copy).or_default() += 1;
                self.is_unpack_finished = true;
            }
            Act::End(job, well) => self.end(job, well),
            Act::Reset => {
                self.offloading.clear();
                self.loads.clear();
                self.detached_states.clear();
                self.fill_device();
                self.send(Message::Reset);
                assert!(
                    self.detached_states.is_empty(),
                    "{self}: nothing waits for a discarded copy"
                );
                // A pack in progress is reported in any case.
                let packs = self.jobs.iter().filter(|job| job.task == Task::Pack);
                self.lost.extend(packs.map(|job| job.copy));
            }
            Act::Clear => self.send(Message::Clear { salt: None }),
            Act::Wait => {
                self.now += TIMEOUT * 20;
                self.send(Message::TimePassed);
            }
        }
    }

    fn describe(&self, text: &mut String) {
        let Self {
            core,
            now,
            lease_counts,
            segments_made: _,
            offloading,
            loads,
            jobs,
            host,
            disk,
            lost,
            detached_states,
            is_unpack_finished,
            order: _,
        } = self;
        let places = (host, disk, lost, detached_states, is_unpack_finished);
        write!(
            text,
            "{core:?} now: {now:?}, {lease_counts:?} {offloading:?} {loads:?} {jobs:?} {places:?}"
        )
        .expect("writing to memory cannot fail");
    }

    fn come_to_rest(mut self) {
        for _ in 0..100 {
            let found = |(_, load_state): &(&SequenceId, &LoadState)| {
                matches!(load_state, LoadState::Hit(_))
            };
            let found = self
                .loads
                .iter()
                .find(found)
                .map(|(sequence, _)| sequence.0);
            if let Some(sequence) = found {
                self.happen(Act::Load(sequence as usize - 1));
            } else if !self.jobs.is_empty() {
                self.happen(Act::End(0, true));
            } else if self.core.wakes_at().is_some() {
                self.happen(Act::Wait);
            } else {
                break;
            }
        }
        assert!(self.jobs.is_empty(), "{self}: jobs end");
        assert!(
            self.loads.is_empty(),
            "{self}: {:?} get no answer",
            self.loads
        );
        assert!(
            self.offloading.is_empty(),
            "{self}: {:?} have no answer",
            self.offloading
        );
        assert!(
            self.core.is_idle() && self.detached_states.is_empty(),
            "{self}: {:?}",
            self.detached_states
        );
        let stats = self.core.stats();
        assert_eq!(
            stats.host_copies,
            self.host.len(),
            "{self}: copies in host memory"
        );
        assert_eq!(
            stats.disk_copies,
            self.disk.len(),
            "{self}: copies on the disk"
        );
        let all = self.host.union(&self.disk).count();
        assert_eq!(stats.copies, all, "{self}: a copy is somewhere");
    }
}

impl PagerWorld {
    fn fill_device(&mut self) {
        self.lease_counts = SEGMENTS
            .map(|_| ())
            .into_iter()
            .map(|()| {
                self.segments_made += 1;
                LeaseCount::new(SegmentId(self.segments_made))
            })
            .collect();
    }

    fn offload(&mut self, at: usize) {
        let lease_count = &self.lease_counts[at];
        self.offloading.insert(lease_count.segment(), false);
        let (tokens, start) = SEGMENTS[at];
        let candidate = OffloadCandidate {
            lease: lease_count.lease().expect("it is on the device"),
            salt: SALT,
            tokens: Arc::from(tokens),
            segment_size: SegmentSize::whole(tokens.len() - start),
            priority: 0,
        };
        self.send(Message::OffloadCandidate(candidate));
    }

    fn end(&mut self, job: usize, well: bool) {
        let job = self.jobs.remove(job);
        let copy = job.copy;
        match job.task {
            Task::Pack if self.lost.contains(&copy) => {}
            Task::Pack | Task::Read if well => drop(self.host.insert(copy)),
            Task::Write if well => drop(self.disk.insert(copy)),
            Task::Unpack if std::mem::take(&mut self.is_unpack_finished) => {}
            Task::Unpack if well => *self.detached_states.entry(copy).or_default() += 1,
            _ => {}
        }
        // A copy that could not be read is gone from the disk.
        if job.task == Task::Read && !well {
            self.disk.remove(&copy);
        }
        self.send(Message::Done(Done {
            copy,
            task: job.task,
            result: if well {
                Ok(())
            } else {
                Err(JobError {
                    what: "a fault".into(),
                    is_lost: true,
                })
            },
            took: Duration::from_micros(1),
            bytes: 100,
        }));
    }

    fn send(&mut self, message: Message) {
        let effects = self.core.handle(self.now, message);
        for effect in effects {
            match effect {
                Effect::Notify(pager_event) => self.pager_event(pager_event),
                Effect::Do(job) => self.begin(job),
                Effect::Forget(copy) => self.forget(copy),
                Effect::Discard(copy) => self.take_detached(copy),
                Effect::DiscardAll => self.detached_states.clear(),
            }
        }
        self.check();
    }

    fn take_detached(&mut self, copy: CopyId) {
        if let Some(detached_states) = self.detached_states.get_mut(&copy) {
            *detached_states -= 1;
            if *detached_states == 0 {
                self.detached_states.remove(&copy);
            }
        }
    }

    fn begin(&mut self, job: Job) {
        let copy_queue = job.task.copy_queue();
        let alike =
            |other: &&Job| other.task.copy_queue() == copy_queue && other.task != Task::Pack;
        let busy = self.jobs.iter().filter(alike).count();
        assert!(
            job.task == Task::Pack || busy == 0,
            "{self}: a thread does one thing at a time"
        );
        let there = match job.task {
            Task::Pack => !self.host.contains(&job.copy),
            Task::Unpack | Task::Write => self.host.contains(&job.copy),
            Task::Read => self.disk.contains(&job.copy),
            // It may be gone already.
            Task::Remove => true,
        };
        assert!(there, "{self}: {job:?} is of a copy that is elsewhere");
        if job.task == Task::Remove {
            self.disk.remove(&job.copy);
        }
        assert!(copy_queue == CopyQueue::Memory || self.core.stats().disk_bytes <= TIER_BYTES);
        self.jobs.push(job);
    }

    fn forget(&mut self, copy: CopyId) {
        let leaves = self
            .jobs
            .iter()
            .any(|job| job.copy == copy && job.task == Task::Pack);
        let gone = self.host.remove(&copy);
        assert!(gone || leaves, "{self}: a removed copy was there");
        let is_waited_for = self
            .loads
            .values()
            .any(|load_state| load_state.copies().any(|one| one == copy));
        let fails = matches!(self.order.last(), Some(Act::End(_, false)));
        assert!(
            !is_waited_for || fails,
            "{self}: {copy} is looked up, and discarded"
        );
        let moves = self
            .jobs
            .iter()
            .any(|job| job.copy == copy && job.task != Task::Remove);
        let resets = self.order.last() == Some(&Act::Reset);
        assert!(
            !moves || fails || resets,
            "{self}: {copy} moves, and is discarded"
        );
    }

    fn pager_event(&mut self, pager_event: PagerEvent) {
        match pager_event {
            PagerEvent::Export { segment, .. } => {
                let asked = self.offloading.get_mut(&segment);
                let asked = asked.unwrap_or_else(|| panic!("an offload candidate"));
                assert!(!std::mem::replace(asked, true), "it is asked for once");
            }
            PagerEvent::Offloaded { segment, .. } | PagerEvent::Rejected { segment } => {
                let answered = self.offloading.remove(&segment);
                assert!(answered.is_some(), "{self}: a candidate is answered once");
            }
            PagerEvent::Hit {
                sequence,
                copy_ranges,
            } => {
                let before = self.loads.insert(sequence, LoadState::Hit(copy_ranges));
                assert_eq!(
                    before,
                    Some(LoadState::Asked),
                    "{self}: each lookup is answered"
                );
            }
            PagerEvent::Miss { sequence, .. } | PagerEvent::Retry { sequence } => {
                let before = self.loads.remove(&sequence);
                // Sequences that joined a load ended by a reset are notified as well, and
                // ignore it.
                let resets = self.order.last() == Some(&Act::Reset);
                let waits = matches!(before, Some(LoadState::Asked | LoadState::Loading(_)));
                assert!(waits || resets, "{self}: {before:?} gets a miss");
            }
            PagerEvent::Loaded { sequence, .. } => {
                let Some(LoadState::Loading(copy_ranges)) = self.loads.remove(&sequence) else {
                    panic!("{self}: a loaded copy was requested")
                };
                for copy_range in copy_ranges {
                    assert!(
                        self.detached_states.contains_key(&copy_range.copy),
                        "{self}: one detached state each"
                    );
                    self.take_detached(copy_range.copy);
                }
            }
            // The removal of its file may be queued.
            PagerEvent::Lost { .. } | PagerEvent::Cancelled { .. } => {}
            PagerEvent::Reset => assert_eq!(self.order.last(), Some(&Act::Reset)),
            PagerEvent::Gone => unreachable!("it is here"),
        }
    }

    fn check(&self) {
        self.core.check_integrity();
        let stats = self.core.stats();
        assert!(
            stats.host_bytes <= TIER_BYTES && stats.disk_bytes <= TIER_BYTES,
            "{self}"
        );
        // A segment is leased exactly as long as its bytes are pending.
        for lease_count in &self.lease_counts {
            let leaves = self.offloading.get(&lease_count.segment()) == Some(&true);
            assert_eq!(lease_count.leases() > 0, leaves, "{self}: {lease_count:?}");
        }
    }
}

impl LoadState {
    fn copies(&self) -> impl Iterator<Item = CopyId> + '_ {
        let copy_ranges = match self {
            Self::Asked => &[][..],
            Self::Hit(copy_ranges) | Self::Loading(copy_ranges) => copy_ranges,
        };
        copy_ranges.iter().map(|copy_range| copy_range.copy)
    }
}

impl std::fmt::Display for PagerWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {:?}", self.order)
    }
}
