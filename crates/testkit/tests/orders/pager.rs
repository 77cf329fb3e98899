//! The pager's core, with as much of a cache, a device and copy workers as it can observe: the
//! life of a copy (on the device, exported, in host memory, loaded, on the disk, discarded;
//! leased and looked up meanwhile).
//!
//! Invariants after each message: the core's own check passes. The budgets hold. Every part
//! gets the messages recorded here. A copy that is looked up or moving is not discarded. Each
//! job takes its copy from where it is. From every state, all work finishes, with every lookup
//! answered and nothing left over.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::SaltDigest;
use motet_core::config::{DiskConfig, PagerConfig, RemoteConfig};
use motet_core::pager::{
    CopyRange, Label, Lookup, Message, OffloadCandidate, PagerEvent, Precision, Task,
};
use motet_model::oracle::OracleConfig;
use motet_model::{LayerKind, SegmentSize};
use motet_protocol::KeyDigest;
use motet_protocol::lease::LeaseCount;
use motet_protocol::{CopyId, SegmentId, SequenceId, TokenId};
use motet_testkit::copy_machine::CopyMachine;
use motet_testkit::explorer::World;
use motet_testkit::pager_harness::{PagerHarness, PagerPeer};
use motet_testkit::transfer_queue::PaperTransferQueue;

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

const KEY: KeyDigest = KeyDigest::of(SaltDigest([3; 32]));
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
    /// The remote tier answers its oldest question.
    Answer,
    /// The tokens of this segment may be needed by other processes.
    Share(usize),
    /// The remote tier drops everything.
    DropRemote,
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
    pager: PagerHarness<()>,
    queue: PaperTransferQueue<()>,
    cache: Cache,
    tiers: Tiers,
    now: Duration,
    /// Lease counts of each segment on the device; its name is new after a reset.
    lease_counts: Vec<LeaseCount>,
    segments_made: u64,
}

/// The cache's knowledge of its transfers, which the pager's events reach at once.
#[derive(Default)]
struct Cache {
    /// Offload candidates without an answer, and whether the pager asked for them.
    offloading: BTreeMap<SegmentId, bool>,
    loads: BTreeMap<SequenceId, LoadState>,
    order: Vec<Act>,
}

/// The tiers below the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiers {
    Host,
    HostAndDisk,
    /// Both, and labels for two of three copies only.
    FewLabels,
    /// Host memory, and a remote tier that has the first two segments.
    Remote,
}

impl World for PagerWorld {
    type Act = Act;
    type Setup = Tiers;

    fn new(tiers: Tiers) -> Self {
        let with_disk = matches!(tiers, Tiers::HostAndDisk | Tiers::FewLabels);
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
            remote: (tiers == Tiers::Remote).then(|| RemoteConfig {
                shares_salted: true,
                grid_tokens: SEGMENT_TOKENS,
                answer_timeout: TIMEOUT,
                timeout: TIMEOUT,
                ..RemoteConfig::default()
            }),
            ..PagerConfig::default()
        };
        // A device that lost everything reports the end of a pack in any case.
        let mut copies = CopyMachine::new(TIER_BYTES, TIER_BYTES).reporting_cancelled_packs();
        for (tokens, start) in SEGMENTS.into_iter().take(2) {
            let label = Label::new(KEY, tokens, start, 0, Precision::Full, 100);
            copies.store_remotely(&label, ());
        }
        let mut world = Self {
            pager: PagerHarness::new(&oracle.spec(), &config, |_| 100, copies, Vec::new()),
            queue: PaperTransferQueue::default(),
            cache: Cache::default(),
            tiers,
            now: Duration::ZERO,
            lease_counts: Vec::new(),
            segments_made: 0,
        };
        world.fill_device();
        world
    }

    fn possible(&self) -> Vec<Act> {
        let is_free = |at: &usize| {
            let segment = self.lease_counts[*at].segment();
            !self.cache.offloading.contains_key(&segment)
        };
        let mut acts: Vec<Act> = (0..SEGMENTS.len())
            .filter(is_free)
            .map(Act::OffloadCandidate)
            .collect();
        for number in 0..2 {
            acts.extend(match self.cache.loads.get(&sequence(number)) {
                None => vec![Act::Lookup(number)],
                Some(LoadState::Hit(_)) => vec![Act::Load(number), Act::Cancel(number)],
                Some(_) => vec![Act::Cancel(number)],
            });
        }
        let copies = self.pager.copies();
        acts.extend(copies.can_unpack().then_some(Act::Make));
        for (at, job) in copies.jobs().iter().enumerate() {
            acts.push(Act::End(at, true));
            acts.extend(copies.can_fail(job).then_some(Act::End(at, false)));
        }
        if self.tiers == Tiers::Remote {
            acts.extend((!copies.asks().is_empty()).then_some(Act::Answer));
            acts.extend([Act::Share(1), Act::Share(2), Act::DropRemote]);
        }
        acts.extend([Act::Reset, Act::Clear, Act::Wait]);
        acts
    }

    fn happen(&mut self, act: Act) {
        self.cache.order.push(act);
        self.now += Duration::from_millis(1);
        match act {
            Act::OffloadCandidate(at) => self.offload(at),
            Act::Lookup(number) => {
                self.cache.loads.insert(sequence(number), LoadState::Asked);
                self.send(Message::Lookup(Lookup {
                    sequence: sequence(number),
                    key: KEY,
                    tokens: SEGMENTS[number + 1].0.into(),
                    resident: Vec::new(),
                    seen_tokens: 0,
                    token_time: None,
                }));
            }
            Act::Load(number) => {
                let sequence = sequence(number);
                let load_state = self.cache.loads.get_mut(&sequence).expect("it was found");
                let LoadState::Hit(copy_ranges) = load_state else {
                    panic!("it was found")
                };
                *load_state = LoadState::Loading(std::mem::take(copy_ranges));
                self.send(Message::Load { sequence });
            }
            Act::Cancel(number) => {
                let sequence = sequence(number);
                self.cache.loads.remove(&sequence);
                self.send(Message::Cancel { sequence });
            }
            Act::Make => assert!(self.pager.unpack(&mut self.queue), "one is made"),
            Act::End(job, well) => {
                let copies = self.pager.copies();
                let ended = &copies.jobs()[job];
                // A copy that the remote tier has dropped is not fetched.
                let well = well && (ended.task != Task::Fetch || copies.is_in_remote(&ended.label));
                let (now, queue) = (self.now, &mut self.queue);
                self.pager.end_job(now, job, well, queue, &mut self.cache);
                self.check();
            }
            Act::Reset => {
                self.cache.offloading.clear();
                self.cache.loads.clear();
                self.queue.discard_imports();
                self.fill_device();
                self.send(Message::Reset);
                assert!(
                    !self.queue.has_imports(),
                    "{}: nothing waits for a discarded copy",
                    self.cache
                );
            }
            Act::Clear => self.send(Message::Clear { salt: None }),
            Act::Answer => {
                let (now, queue) = (self.now, &mut self.queue);
                self.pager.answer(now, 0, queue, &mut self.cache);
                self.check();
            }
            Act::Share(at) => self.send(Message::Share {
                key: KEY,
                tokens: SEGMENTS[at].0.into(),
            }),
            Act::DropRemote => self.pager.copies_mut().drop_remote(),
            Act::Wait => {
                self.now += TIMEOUT * 20;
                self.send(Message::TimePassed);
            }
        }
    }

    fn describe(&self, text: &mut String) {
        let Self {
            pager,
            queue,
            cache,
            tiers: _,
            now,
            lease_counts,
            segments_made: _,
        } = self;
        let Cache {
            offloading,
            loads,
            order: _,
        } = cache;
        write!(
            text,
            "{pager:?} {queue:?} now: {now:?}, {lease_counts:?} {offloading:?} {loads:?}"
        )
        .expect("writing to memory cannot fail");
    }

    fn come_to_rest(mut self) {
        for _ in 0..100 {
            let is_hit = |(_, load_state): &(&SequenceId, &LoadState)| {
                matches!(load_state, LoadState::Hit(_))
            };
            let hit = self.cache.loads.iter().find(is_hit);
            if let Some(number) = hit.map(|(sequence, _)| sequence.0 as usize - 1) {
                self.happen(Act::Load(number));
            } else if !self.pager.copies().jobs().is_empty() {
                self.happen(Act::End(0, true));
            } else if !self.pager.copies().asks().is_empty() {
                self.happen(Act::Answer);
            } else if self.pager.wakes_at().is_some() {
                self.happen(Act::Wait);
            } else {
                break;
            }
        }
        let Cache {
            offloading, loads, ..
        } = &self.cache;
        assert!(loads.is_empty(), "{}: {loads:?} get no answer", self.cache);
        assert!(
            offloading.is_empty(),
            "{}: {offloading:?} have no answer",
            self.cache
        );
        assert!(self.queue.is_empty(), "{}: {:?}", self.cache, self.queue);
        self.pager.check_end();
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
        let segment = lease_count.segment();
        self.cache.offloading.insert(segment, false);
        let (tokens, start) = SEGMENTS[at];
        let candidate = OffloadCandidate {
            lease: lease_count.lease().expect("it is on the device"),
            key: KEY,
            tokens: Arc::from(tokens),
            segment_size: SegmentSize::whole(tokens.len() - start),
            retention: 0,
        };
        self.send(Message::OffloadCandidate(candidate));
    }

    fn send(&mut self, message: Message) {
        let (now, queue) = (self.now, &mut self.queue);
        self.pager.send(now, message, queue, &mut self.cache);
        self.check();
    }

    /// A segment is leased exactly as long as its bytes are pending.
    fn check(&self) {
        for lease_count in &self.lease_counts {
            let leaves = self.cache.offloading.get(&lease_count.segment()) == Some(&true);
            assert_eq!(
                lease_count.leases() > 0,
                leaves,
                "{}: {lease_count:?}",
                self.cache
            );
        }
    }
}

impl PagerPeer<()> for Cache {
    fn on_event(
        &mut self,
        event: PagerEvent,
        _: &CopyMachine<()>,
        queue: &mut PaperTransferQueue<()>,
    ) {
        match event {
            PagerEvent::Export { segment, copy } => {
                let asked = self.offloading.get_mut(&segment);
                let asked = asked.unwrap_or_else(|| panic!("an offload candidate"));
                assert!(!std::mem::replace(asked, true), "it is asked for once");
                queue.export(copy, ());
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
                let waits = matches!(before, Some(LoadState::Asked | LoadState::Loading(_)));
                assert!(waits || self.resets(), "{self}: {before:?} gets a miss");
            }
            PagerEvent::Loaded { sequence, .. } => {
                let Some(LoadState::Loading(copy_ranges)) = self.loads.remove(&sequence) else {
                    panic!("{self}: a loaded copy was requested")
                };
                for copy_range in copy_ranges {
                    let state = queue.take_import(copy_range.copy);
                    assert!(state.is_some(), "{self}: one detached state each");
                }
            }
            // The removal of its file may be queued.
            PagerEvent::Lost { .. } | PagerEvent::Cancelled { .. } => {}
            PagerEvent::Reset => assert!(self.resets()),
            PagerEvent::Placed { .. } => unreachable!("the cache does not follow copies"),
            PagerEvent::Gone => unreachable!("it is here"),
        }
    }

    fn on_forget(&mut self, copy: CopyId, copies: &CopyMachine<()>) {
        let fails = matches!(self.order.last(), Some(Act::End(_, false)));
        let mut loads = self.loads.values();
        let is_awaited = loads.any(|load_state| load_state.copies().any(|one| one == copy));
        assert!(
            !is_awaited || fails,
            "{self}: {copy} is looked up, and discarded"
        );
        assert!(
            !copies.is_moving(copy) || fails || self.resets(),
            "{self}: {copy} moves, and is discarded"
        );
    }
}

impl Cache {
    /// Whether the last act is a reset.
    fn resets(&self) -> bool {
        self.order.last() == Some(&Act::Reset)
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

impl std::fmt::Display for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "after {:?}", self.order)
    }
}

fn sequence(number: usize) -> SequenceId {
    SequenceId(number as u64 + 1)
}
