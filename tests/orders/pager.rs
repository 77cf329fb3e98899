//! The pager's core, and as much of a cache, a device and copy threads as it can tell: the
//! life of a copy (on the device, leaving, in host memory, returning, on the disk, gone; held
//! and wanted meanwhile).
//!
//! After each message: the core's own check, budgets, and what is written here of who is
//! told what. What is wanted or moves is not given up; no job is of a copy that is not
//! where the job takes it from; and from wherever an order has led, all comes to rest,
//! with every question answered and nothing left over.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use motet::config::{DiskConfig, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{Extent, LayerKind};
use motet::{CopyId, SegmentId, SequenceId, TokenId};
use motet_core::cache::SaltDigest;
use motet_core::lease::LeaseWord;
use motet_core::pager::{
    Done, Effect, Job, JobError, Label, Lane, Message, Offer, PagerCore, Piece, Precision, Task,
    Told, Want,
};

use crate::explorer::World;

/// Two segments in a row, and another beside the second.
const SEGMENTS: [(&[TokenId], usize); 3] = [
    (&[1, 2, 3, 4], 0),
    (&[1, 2, 3, 4, 5, 6, 7, 8], 4),
    (&[1, 2, 3, 4, 9, 9, 9, 9], 4),
];
const SEGMENT_TOKENS: usize = 4;
/// From here every order is tried.
pub(crate) const BEGINNINGS: [&[Act]; 6] = [
    &[],
    // One copy in host memory, and in the last of these on the disk only.
    &[Act::Offer(0), Act::End(0, true)],
    &[Act::Offer(0), Act::End(0, true), Act::End(0, true)],
    &[
        Act::Offer(0),
        Act::End(0, true),
        Act::Offer(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Want(0),
    ],
    &[
        Act::Offer(0),
        Act::End(0, true),
        Act::End(0, true),
        Act::Offer(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Offer(2),
        Act::End(0, true),
        Act::End(0, true),
    ],
    // A parcel is made.
    &[
        Act::Offer(0),
        Act::End(0, true),
        Act::Offer(1),
        Act::End(0, true),
        Act::End(0, true),
        Act::Want(0),
        Act::Fetch(0),
        Act::Make,
    ],
];

const SALT: SaltDigest = SaltDigest([3; 32]);
const PAGE: usize = 4096;
/// Two copies, of three.
const TIER_BYTES: usize = 2 * PAGE;
const PATIENCE: Duration = Duration::from_secs(1);

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// This segment is offered.
    Offer(usize),
    /// This sequence begins; the second wants another end than the first.
    Want(usize),
    Fetch(usize),
    Cancel(usize),
    /// A parcel that is being made lies where the device takes it in; the pager has not
    /// heard of it.
    Make,
    /// The job that has been out longest but so many ends, well or not.
    End(usize, bool),
    Reset,
    Clear,
    /// Longer than a disk may take goes by.
    Wait,
}

/// How far a sequence is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wish {
    Asked,
    Found(Vec<Piece>),
    Fetching(Vec<Piece>),
}

pub(crate) struct Pages {
    core: PagerCore,
    now: Duration,
    /// Who leases each segment on the device; its name is new after a reset.
    words: Vec<LeaseWord>,
    segments_made: u64,
    /// Segments that are offered and not answered for, and whether they were asked for.
    offered: BTreeMap<SegmentId, bool>,
    wishes: BTreeMap<SequenceId, Wish>,
    /// Jobs that are out, oldest first.
    jobs: Vec<Job>,
    host: BTreeSet<CopyId>,
    disk: BTreeSet<CopyId>,
    /// Copies that were leaving a device that has lost everything.
    lost: BTreeSet<CopyId>,
    /// Parcels that wait for the device.
    parcels: BTreeMap<CopyId, usize>,
    /// One of them was put there by the job that is out.
    made: bool,
    order: Vec<Act>,
}

/// Whether there is a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiers {
    Host,
    HostAndDisk,
    /// Both, and two of three copies are as many as may be known of.
    FewLabels,
}

impl World for Pages {
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
            disk_patience: PATIENCE,
            ..PagerConfig::default()
        };
        let sizes = |_: Extent| (100, Precision::Full);
        let mut world = Self {
            core: PagerCore::new(oracle.spec(), config, Box::new(sizes), Vec::new()),
            now: Duration::ZERO,
            words: Vec::new(),
            segments_made: 0,
            offered: BTreeMap::new(),
            wishes: BTreeMap::new(),
            jobs: Vec::new(),
            host: BTreeSet::new(),
            disk: BTreeSet::new(),
            lost: BTreeSet::new(),
            parcels: BTreeMap::new(),
            made: false,
            order: Vec::new(),
        };
        world.fill_device();
        world
    }

    fn possible(&self) -> Vec<Act> {
        let free = |at: &usize| !self.offered.contains_key(&self.words[*at].segment());
        let mut acts: Vec<Act> = (0..SEGMENTS.len()).filter(free).map(Act::Offer).collect();
        for number in 0..2 {
            acts.extend(match self.wishes.get(&SequenceId(number as u64 + 1)) {
                None => vec![Act::Want(number)],
                Some(Wish::Found(_)) => vec![Act::Fetch(number), Act::Cancel(number)],
                Some(_) => vec![Act::Cancel(number)],
            });
        }
        let unpacks = self.jobs.iter().any(|job| job.task == Task::Unpack);
        acts.extend((unpacks && !self.made).then_some(Act::Make));
        for (at, job) in self.jobs.iter().enumerate() {
            acts.push(Act::End(at, true));
            // What is made is made.
            let fails = job.task != Task::Unpack || !self.made;
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
            Act::Offer(at) => self.offer(at),
            Act::Want(number) => {
                self.wishes.insert(sequence(number), Wish::Asked);
                let want = Want {
                    sequence: sequence(number),
                    salt: SALT,
                    tokens: SEGMENTS[number + 1].0.into(),
                    resident: Vec::new(),
                    seen_tokens: 0,
                    token_time: None,
                };
                self.tell(Message::Want(want));
            }
            Act::Fetch(number) => {
                let wish = self
                    .wishes
                    .get_mut(&sequence(number))
                    .expect("it was found");
                let Wish::Found(pieces) = wish else {
                    panic!("it was found")
                };
                *wish = Wish::Fetching(std::mem::take(pieces));
                self.tell(Message::Fetch {
                    sequence: sequence(number),
                });
            }
            Act::Cancel(number) => {
                self.wishes.remove(&sequence(number));
                self.tell(Message::Cancel {
                    sequence: sequence(number),
                });
            }
            Act::Make => {
                let unpacks = |job: &&Job| job.task == Task::Unpack;
                let job = self.jobs.iter().find(unpacks).expect("one is made");
                *self.parcels.entry(job.copy).or_default() += 1;
                self.made = true;
            }
            Act::End(job, well) => self.end(job, well),
            Act::Reset => {
                self.offered.clear();
                self.wishes.clear();
                self.parcels.clear();
                self.fill_device();
                self.tell(Message::Reset);
                assert!(
                    self.parcels.is_empty(),
                    "{self}: nothing waits for what is no more"
                );
                // What is being packed just now is heard of all the same.
                let packs = self.jobs.iter().filter(|job| job.task == Task::Pack);
                self.lost.extend(packs.map(|job| job.copy));
            }
            Act::Clear => self.tell(Message::Clear { salt: None }),
            Act::Wait => {
                self.now += PATIENCE * 20;
                self.tell(Message::Tick);
            }
        }
    }

    fn describe(&self, text: &mut String) {
        let Self {
            core,
            now,
            words,
            segments_made: _,
            offered,
            wishes,
            jobs,
            host,
            disk,
            lost,
            parcels,
            made,
            order: _,
        } = self;
        let places = (host, disk, lost, parcels, made);
        write!(
            text,
            "{core:?} now: {now:?}, {words:?} {offered:?} {wishes:?} {jobs:?} {places:?}"
        )
        .expect("memory takes all");
    }

    fn come_to_rest(mut self) {
        for _ in 0..100 {
            let found = |(_, wish): &(&SequenceId, &Wish)| matches!(wish, Wish::Found(_));
            let found = self
                .wishes
                .iter()
                .find(found)
                .map(|(sequence, _)| sequence.0);
            if let Some(sequence) = found {
                self.happen(Act::Fetch(sequence as usize - 1));
            } else if !self.jobs.is_empty() {
                self.happen(Act::End(0, true));
            } else if self.core.wakes_at().is_some() {
                self.happen(Act::Wait);
            } else {
                break;
            }
        }
        assert!(self.jobs.is_empty(), "{self}: jobs come to an end");
        assert!(
            self.wishes.is_empty(),
            "{self}: {:?} never hear",
            self.wishes
        );
        assert!(
            self.offered.is_empty(),
            "{self}: {:?} are not answered for",
            self.offered
        );
        assert!(
            self.core.is_idle() && self.parcels.is_empty(),
            "{self}: {:?}",
            self.parcels
        );
        let stats = self.core.stats();
        assert_eq!(
            stats.host_copies,
            self.host.len(),
            "{self}: what is in host memory"
        );
        assert_eq!(
            stats.disk_copies,
            self.disk.len(),
            "{self}: what is on the disk"
        );
        let all = self.host.union(&self.disk).count();
        assert_eq!(stats.copies, all, "{self}: a copy is somewhere");
    }
}

impl Pages {
    fn fill_device(&mut self) {
        self.words = SEGMENTS
            .map(|_| ())
            .into_iter()
            .map(|()| {
                self.segments_made += 1;
                LeaseWord::new(SegmentId(self.segments_made))
            })
            .collect();
    }

    fn offer(&mut self, at: usize) {
        let word = &self.words[at];
        self.offered.insert(word.segment(), false);
        let (tokens, start) = SEGMENTS[at];
        let offer = Offer {
            lease: word.lease().expect("it is on the device"),
            salt: SALT,
            tokens: Arc::from(tokens),
            extent: Extent::whole(tokens.len() - start),
            priority: 0,
        };
        self.tell(Message::Offer(offer));
    }

    fn end(&mut self, job: usize, well: bool) {
        let job = self.jobs.remove(job);
        let copy = job.copy;
        match job.task {
            Task::Pack if self.lost.contains(&copy) => {}
            Task::Pack | Task::Read if well => drop(self.host.insert(copy)),
            Task::Write if well => drop(self.disk.insert(copy)),
            Task::Unpack if std::mem::take(&mut self.made) => {}
            Task::Unpack if well => *self.parcels.entry(copy).or_default() += 1,
            _ => {}
        }
        // What could not be read is gone from the disk.
        if job.task == Task::Read && !well {
            self.disk.remove(&copy);
        }
        self.tell(Message::Done(Done {
            copy,
            task: job.task,
            result: match well {
                true => Ok(()),
                false => Err(JobError {
                    what: "a fault".into(),
                    is_lost: true,
                }),
            },
            took: Duration::from_micros(1),
            bytes: 100,
        }));
    }

    fn tell(&mut self, message: Message) {
        let effects = self.core.handle(self.now, message);
        for effect in effects {
            match effect {
                Effect::Tell(told) => self.told(told),
                Effect::Do(job) => self.begin(job),
                Effect::Forget(copy) => self.forget(copy),
                Effect::Discard(copy) => self.take_parcel(copy),
                Effect::DiscardAll => self.parcels.clear(),
            }
        }
        self.check();
    }

    fn take_parcel(&mut self, copy: CopyId) {
        if let Some(parcels) = self.parcels.get_mut(&copy) {
            *parcels -= 1;
            if *parcels == 0 {
                self.parcels.remove(&copy);
            }
        }
    }

    fn begin(&mut self, job: Job) {
        let lane = job.task.lane();
        let alike = |other: &&Job| other.task.lane() == lane && other.task != Task::Pack;
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
        assert!(lane == Lane::Memory || self.core.stats().disk_bytes <= TIER_BYTES);
        self.jobs.push(job);
    }

    fn forget(&mut self, copy: CopyId) {
        let leaves = self
            .jobs
            .iter()
            .any(|job| job.copy == copy && job.task == Task::Pack);
        let gone = self.host.remove(&copy);
        assert!(gone || leaves, "{self}: what is forgotten was there");
        let wanted = self
            .wishes
            .values()
            .any(|wish| wish.copies().any(|one| one == copy));
        let fails = matches!(self.order.last(), Some(Act::End(_, false)));
        assert!(!wanted || fails, "{self}: {copy} is wanted, and given up");
        let moves = self
            .jobs
            .iter()
            .any(|job| job.copy == copy && job.task != Task::Remove);
        let resets = self.order.last() == Some(&Act::Reset);
        assert!(
            !moves || fails || resets,
            "{self}: {copy} moves, and is given up"
        );
    }

    fn told(&mut self, told: Told) {
        match told {
            Told::Take { segment, .. } => {
                let asked = self.offered.get_mut(&segment);
                let asked = asked.unwrap_or_else(|| panic!("a segment that was offered"));
                assert!(!std::mem::replace(asked, true), "it is asked for once");
            }
            Told::Kept { segment, .. } | Told::Refused { segment } => {
                let answered = self.offered.remove(&segment);
                assert!(answered.is_some(), "{self}: an offer is answered once");
            }
            Told::Found { sequence, pieces } => {
                let before = self.wishes.insert(sequence, Wish::Found(pieces));
                assert_eq!(before, Some(Wish::Asked), "{self}: who asked is answered");
            }
            Told::Nothing { sequence, .. } | Told::Again { sequence } => {
                let before = self.wishes.remove(&sequence);
                // Those who joined one that a reset has ended are told, and do not mind.
                let resets = self.order.last() == Some(&Act::Reset);
                let waits = matches!(before, Some(Wish::Asked | Wish::Fetching(_)));
                assert!(waits || resets, "{self}: {before:?} is told to do without");
            }
            Told::Arrived { sequence, .. } => {
                let Some(Wish::Fetching(pieces)) = self.wishes.remove(&sequence) else {
                    panic!("{self}: what arrives is fetched")
                };
                for piece in pieces {
                    assert!(
                        self.parcels.contains_key(&piece.copy),
                        "{self}: a parcel each"
                    );
                    self.take_parcel(piece.copy);
                }
            }
            // Its file may be waiting for its turn to go.
            Told::Lost { .. } | Told::Cancelled { .. } => {}
            Told::Reset => assert_eq!(self.order.last(), Some(&Act::Reset)),
            Told::Gone => unreachable!("it is here"),
        }
    }

    fn check(&self) {
        self.core.check_integrity();
        let stats = self.core.stats();
        assert!(
            stats.host_bytes <= TIER_BYTES && stats.disk_bytes <= TIER_BYTES,
            "{self}"
        );
        // A segment is leased exactly as long as its bytes are to come.
        for word in &self.words {
            let leaves = self.offered.get(&word.segment()) == Some(&true);
            assert_eq!(word.leases() > 0, leaves, "{self}: {word:?}");
        }
    }
}

impl Wish {
    fn copies(&self) -> impl Iterator<Item = CopyId> + '_ {
        let pieces = match self {
            Self::Asked => &[][..],
            Self::Found(pieces) | Self::Fetching(pieces) => pieces,
        };
        pieces.iter().map(|piece| piece.copy)
    }
}

impl std::fmt::Display for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {:?}", self.order)
    }
}
