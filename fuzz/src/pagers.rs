//! Messages to the pager's core, as a cache and copy workers may send them.
//!
//! The input decides when the pager's events reach the cache, so that they cross messages that
//! the cache has sent meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use motet::config::{DiskConfig, PagerConfig, RemoteConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::{CopyId, SequenceId, TokenId};
use motet_core::cache::SaltDigest;
use motet_core::pager::{
    CopyQueue, CopyRange, Job, JobError, Label, Lookup, Message, OffloadCandidate, PagerEvent,
    Precision, PrefixDigest, Task,
};
use motet_protocol::SegmentId;
use motet_protocol::lease::LeaseCount;
use motet_protocol::{ActiveAdapter, AdapterKey, KeyDigest};
use motet_testkit::copy_machine::CopyMachine;
use motet_testkit::pager_harness::{PagerHarness, PagerPeer};
use motet_testkit::transfer_queue::PaperTransferQueue;

use super::input::FuzzInput;

const KINDS: [&[LayerKind]; 4] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 5 }],
    &[LayerKind::Recurrent],
    &[LayerKind::Full, LayerKind::Recurrent],
];
const SEQUENCES: usize = 5;
/// Most offload candidates of a cache at once.
const OFFLOADS_MAX: usize = 8;
const MESSAGES_MAX: usize = 400;
/// Copies then take between one page and six.
const TOKEN_BYTES: usize = 700;
const PAGE_BYTES: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(1);

struct Pagers {
    pager: PagerHarness<()>,
    queue: PaperTransferQueue<()>,
    now: Duration,
    cache: Cache,
    segments_made: u64,
    sent: Sent,
}

/// The pager's events, and what is needed to check them.
struct Sent {
    spec: ModelSpec,
    /// Those that the cache has not received.
    events: VecDeque<PagerEvent>,
    /// Lease counts of segments that the pager leases, or has leased and released.
    leased: BTreeMap<SegmentId, LeaseCount>,
    returned: Vec<LeaseCount>,
    /// The last lookup of each sequence.
    last_lookups: BTreeMap<SequenceId, Lookup>,
}

/// The cache's knowledge of its transfers with the pager.
#[derive(Default)]
struct Cache {
    /// Offload candidates, and whether they are still on the device.
    offloading: BTreeMap<SegmentId, bool>,
    loads: BTreeMap<SequenceId, LoadState>,
    /// Pending confirmations of cancels and discards.
    unconfirmed: BTreeMap<SequenceId, usize>,
    resets_unconfirmed: usize,
}

#[derive(Debug, PartialEq)]
enum LoadState {
    Asked,
    Hit(Vec<CopyRange>),
    Loading(Vec<CopyRange>),
}

/// The core is consistent after any message, sends each sequence only its own state, stays
/// within its bytes, and finishes all work with nothing left over.
pub fn pager(input: &[u8]) {
    let mut input = FuzzInput(input);
    let mut pagers = Pagers::new(&mut input);
    for _ in 0..MESSAGES_MAX {
        if input.is_empty() {
            break;
        }
        pagers.apply_operation(&mut input);
    }
    pagers.end();
}

impl Pagers {
    fn new(input: &mut FuzzInput<'_>) -> Self {
        let oracle = OracleConfig::with_layers(KINDS[input.below(KINDS.len())]);
        let spec = oracle.spec();
        let host_bytes_max = PAGE_BYTES * (1 + input.below(16));
        let disk_bytes_max = input.bit().then(|| PAGE_BYTES * (1 + input.below(16)));
        let config = PagerConfig {
            host_bytes_max,
            // At least for all that are found.
            label_bytes_max: Some(Label::host_bytes(12) * (4 + input.below(16))),
            disk: disk_bytes_max.map(|bytes_max| DiskConfig {
                folder: "never touched".into(),
                bytes_max,
            }),
            disk_timeout: TIMEOUT,
            remote: input.bit().then(|| RemoteConfig {
                shares_salted: input.bit(),
                grid_tokens: 4,
                answer_timeout: TIMEOUT,
                timeout: TIMEOUT,
                ..RemoteConfig::default()
            }),
            ..PagerConfig::default()
        };
        let mut copies = CopyMachine::new(host_bytes_max, disk_bytes_max.unwrap_or(0));
        let mut found: Vec<(CopyId, Label)> = Vec::new();
        for number in 0..input.below(4) {
            let (label, _) = label(input);
            let is_duplicate = found.iter().any(|(_, one)| *one == label);
            let copy = CopyId(number as u64 + 1);
            if !is_duplicate && copies.find(copy, &label, ()) {
                found.push((copy, label));
            }
        }
        let bytes = |segment_size: SegmentSize| TOKEN_BYTES * segment_size.tokens;
        Self {
            pager: PagerHarness::new(&spec, &config, bytes, copies, found),
            queue: PaperTransferQueue::default(),
            now: Duration::ZERO,
            cache: Cache::default(),
            segments_made: 0,
            sent: Sent {
                spec,
                events: VecDeque::new(),
                leased: BTreeMap::new(),
                returned: Vec::new(),
                last_lookups: BTreeMap::new(),
            },
        }
    }

    fn apply_operation(&mut self, input: &mut FuzzInput<'_>) {
        self.now += Duration::from_millis(1);
        let sequence = SequenceId(input.below(SEQUENCES) as u64);
        match input.below(20) {
            0..=3 => self.offload(input),
            4..=5 => self.lookup(sequence, input),
            6..=7 => self.load(sequence),
            8 => self.cancel(sequence),
            9..=12 => self.deliver_event(),
            13..=16 => self.advance(input),
            17 => {
                let (of, tokens) = label(input);
                let resident = input.below(1 + tokens.len());
                self.send(Message::Prefetch {
                    key: of.key,
                    tokens,
                    resident,
                });
            }
            // An offload candidate is cut or discarded.
            18 => {
                let mut offloading = self.cache.offloading.values_mut();
                if let Some(on_device) = offloading.nth(input.below(OFFLOADS_MAX)) {
                    *on_device = false;
                }
            }
            _ => match input.below(7) {
                4 => {
                    let (of, tokens) = label(input);
                    let key = of.key;
                    self.send(Message::Share { key, tokens });
                }
                5 => {
                    // Another process stores a copy.
                    let (label, _) = label(input);
                    let copies = self.pager.copies_mut();
                    if !copies.is_in_remote(&label) {
                        copies.store_remotely(&label, ());
                    }
                }
                6 => self.pager.copies_mut().drop_remote(),
                0 => self.reset(),
                1 => {
                    let salt = input.bit().then(|| salt(input));
                    self.send(Message::Clear { salt });
                }
                _ => self.wait(),
            },
        }
    }

    fn offload(&mut self, input: &mut FuzzInput<'_>) {
        let (label, tokens) = label(input);
        if self.cache.offloading.len() == OFFLOADS_MAX {
            return;
        }
        self.segments_made += 1;
        let lease_count = LeaseCount::new(SegmentId(self.segments_made));
        let lease = lease_count.lease().expect("it is not evicted");
        self.cache.offloading.insert(lease_count.segment(), true);
        self.sent.leased.insert(lease_count.segment(), lease_count);
        self.send(Message::OffloadCandidate(OffloadCandidate {
            lease,
            key: label.key,
            segment_size: label.segment_size(),
            tokens,
            retention: input.byte() % 3,
        }));
    }

    fn lookup(&mut self, sequence: SequenceId, input: &mut FuzzInput<'_>) {
        let (of, tokens) = label(input);
        let resident = input.below(1 + tokens.len());
        let seen_tokens = resident + input.below(1 + tokens.len() - resident);
        let lookup = Lookup {
            sequence,
            key: of.key,
            resident: (resident > 0)
                .then(|| SegmentSize::whole(resident))
                .into_iter()
                .collect(),
            tokens,
            seen_tokens,
            token_time: input
                .bit()
                .then(|| Duration::from_micros(1 << input.below(12))),
        };
        // A waiting sequence makes no lookup, nor does one that may be taken for a cancelled
        // one.
        let unconfirmed = self.cache.unconfirmed.contains_key(&sequence);
        if !unconfirmed && !self.cache.loads.contains_key(&sequence) {
            self.cache.loads.insert(sequence, LoadState::Asked);
            self.sent.last_lookups.insert(sequence, lookup.clone());
            self.send(Message::Lookup(lookup));
        }
    }

    fn load(&mut self, sequence: SequenceId) {
        if let Some(load_state) = self.cache.loads.get_mut(&sequence)
            && let LoadState::Hit(copy_ranges) = load_state
        {
            *load_state = LoadState::Loading(std::mem::take(copy_ranges));
            self.send(Message::Load { sequence });
        }
    }

    fn cancel(&mut self, sequence: SequenceId) {
        if self.cache.loads.remove(&sequence).is_some() {
            *self.cache.unconfirmed.entry(sequence).or_default() += 1;
            self.send(Message::Cancel { sequence });
        }
    }

    fn reset(&mut self) {
        self.cache = Cache {
            resets_unconfirmed: self.cache.resets_unconfirmed + 1,
            ..Cache::default()
        };
        let leased = std::mem::take(&mut self.sent.leased);
        self.sent.returned.extend(leased.into_values());
        self.send(Message::Reset);
    }

    /// Longer than a disk may take, or pauses.
    fn wait(&mut self) {
        self.now += TIMEOUT * 20;
        self.send(Message::TimePassed);
    }

    /// Advances one of the workers: a job ends, with success or failure, or a detached state is
    /// made.
    fn advance(&mut self, input: &mut FuzzInput<'_>) {
        let took = Duration::from_micros(1 << input.below(10));
        let result = match input.below(8) {
            0 => Err(JobError {
                what: "a fault".into(),
                is_lost: input.bit(),
            }),
            _ => Ok(()),
        };
        let copies = self.pager.copies();
        let at = match input.below(5) {
            0 => self.first_job(|job| job.task == Task::Pack),
            1 => self.first_job(|job| job.task.copy_queue() != CopyQueue::Memory),
            3 if !copies.asks().is_empty() => return self.answer(0),
            2 if copies.can_unpack() => {
                self.pager.unpack(&mut self.queue);
                return;
            }
            _ => self.first_job(is_of_memory_worker),
        };
        if let Some(at) = at {
            let can_fail = copies.can_fail(&copies.jobs()[at]);
            self.end_job(at, if can_fail { result } else { Ok(()) }, took);
        }
    }

    /// Ends the first possible job successfully. Returns false if there is none.
    fn end_one(&mut self) -> bool {
        let at = self
            .first_job(is_of_memory_worker)
            .or_else(|| self.first_job(|job| job.task.copy_queue() == CopyQueue::Disk))
            .or_else(|| self.first_job(|_| true));
        if let Some(at) = at {
            self.end_job(at, Ok(()), Duration::from_micros(1));
            return true;
        }
        let asks = !self.pager.copies().asks().is_empty();
        if asks {
            self.answer(0);
        }
        asks
    }

    fn first_job(&self, selected: impl Fn(&Job) -> bool) -> Option<usize> {
        let copies = self.pager.copies();
        let can_end = |job: &Job| selected(job) && copies.can_end(job, &self.queue);
        copies.jobs().iter().position(can_end)
    }

    fn answer(&mut self, at: usize) {
        let queue = &mut self.queue;
        self.pager.answer(self.now, at, queue, &mut self.sent);
    }

    fn end_job(&mut self, at: usize, result: Result<(), JobError>, took: Duration) {
        let job = &self.pager.copies().jobs()[at];
        let is_gone = job.task == Task::Fetch && !self.pager.copies().is_in_remote(&job.label);
        let result = match is_gone {
            true => Err(JobError {
                what: "it is not there".into(),
                is_lost: true,
            }),
            false => result,
        };
        let done = self.pager.end_quietly(at, result, took, &mut self.queue);
        self.send(Message::Done(done));
    }

    fn send(&mut self, message: Message) {
        let queue = &mut self.queue;
        self.pager.send(self.now, message, queue, &mut self.sent);
        for lease_count in self.sent.leased.values() {
            assert_eq!(lease_count.leases(), 1, "an offload candidate is leased");
        }
        for lease_count in self.sent.returned.drain(..) {
            assert_eq!(lease_count.leases(), 0, "an answered one is not");
        }
    }

    /// Delivers the oldest event to the cache.
    fn deliver_event(&mut self) {
        let Some(event) = self.sent.events.pop_front() else {
            return;
        };
        if self.cache.resets_unconfirmed > 0 {
            self.cache.resets_unconfirmed -= usize::from(event == PagerEvent::Reset);
            return;
        }
        let loads = &mut self.cache.loads;
        match event {
            PagerEvent::Export { segment, copy } => {
                if self.cache.offloading[&segment] {
                    if self.pager.copies().awaits_export(copy) {
                        self.queue.export(copy, ());
                    }
                } else {
                    self.cache.offloading.remove(&segment);
                    self.sent.return_lease(segment);
                    self.send(Message::CancelExport { copy });
                }
            }
            PagerEvent::Offloaded { segment, .. } | PagerEvent::Rejected { segment } => {
                let offloading = self.cache.offloading.remove(&segment);
                assert!(offloading.is_some(), "a candidate is answered once");
            }
            PagerEvent::Hit {
                sequence,
                copy_ranges,
            } => {
                if let Some(load_state) = loads.get_mut(&sequence) {
                    assert_eq!(
                        *load_state,
                        LoadState::Asked,
                        "only a sequence that asked is answered"
                    );
                    *load_state = LoadState::Hit(copy_ranges);
                }
            }
            PagerEvent::Miss { sequence, .. } | PagerEvent::Retry { sequence } => {
                let load_state = loads.remove(&sequence);
                assert!(
                    !matches!(load_state, Some(LoadState::Hit(_))),
                    "a sequence without a load gets no miss"
                );
            }
            PagerEvent::Loaded { sequence, copies } => self.loaded(sequence, copies),
            PagerEvent::Cancelled { sequence } => {
                let unconfirmed = self.cache.unconfirmed.get_mut(&sequence);
                let unconfirmed = unconfirmed.expect("only the current lookup is answered");
                *unconfirmed -= 1;
                if *unconfirmed == 0 {
                    self.cache.unconfirmed.remove(&sequence);
                }
            }
            PagerEvent::Lost { .. } => {}
            PagerEvent::Placed { .. } => unreachable!("the cache does not follow copies"),
            PagerEvent::Reset | PagerEvent::Gone => {
                unreachable!("it was not reset, and it is here")
            }
        }
    }

    /// The device imports the detached states, except those that it has got meanwhile.
    fn loaded(&mut self, sequence: SequenceId, copies: Vec<CopyId>) {
        let discarded = match self.cache.loads.remove(&sequence) {
            None => copies,
            Some(load_state) => {
                let LoadState::Loading(copy_ranges) = load_state else {
                    panic!("a loaded copy was requested")
                };
                let loaded_copies: Vec<CopyId> = copy_ranges
                    .iter()
                    .map(|copy_range| copy_range.copy)
                    .collect();
                assert_eq!(
                    loaded_copies, copies,
                    "the loaded copies are the requested ones"
                );
                for copy in &copies {
                    assert!(self.queue.is_waiting(*copy), "one detached state each");
                }
                // One in five is discarded, so that both cases occur.
                let (discarded, taken) = copies.into_iter().partition(|copy| copy.0 % 5 == 0);
                let taken: Vec<CopyId> = taken;
                for copy in taken {
                    self.queue.take_import(copy);
                }
                discarded
            }
        };
        if !discarded.is_empty() {
            *self.cache.unconfirmed.entry(sequence).or_default() += 1;
            let copies = discarded;
            self.send(Message::Discard { sequence, copies });
        }
    }

    /// Ends all work in flight successfully, then discards all copies.
    fn end(mut self) {
        self.run_until_idle();
        assert!(self.cache.loads.is_empty(), "each lookup is answered");
        assert!(self.cache.unconfirmed.is_empty(), "and each cancel");
        assert!(
            self.cache.offloading.is_empty() && self.sent.leased.is_empty(),
            "candidates are answered"
        );
        self.pager.check_end();
        self.send(Message::Clear { salt: None });
        self.run_until_idle();
        let stats = self.pager.stats();
        assert_eq!(
            (stats.copies, stats.host_bytes, stats.disk_bytes),
            (0, 0, 0),
            "nothing is left"
        );
        self.pager.check_end();
        assert!(!self.queue.has_imports(), "detached states are left over");
    }

    fn run_until_idle(&mut self) {
        loop {
            self.now += Duration::from_millis(1);
            let mut loads = self.cache.loads.iter();
            let found = loads.find(|(_, load_state)| matches!(load_state, LoadState::Hit(_)));
            if let Some((sequence, _)) = found {
                self.load(*sequence);
            } else if !self.sent.events.is_empty() {
                self.deliver_event();
            } else if self.end_one() {
                // It was reported.
            } else if self.pager.wakes_at().is_some() {
                self.wait();
            } else {
                return;
            }
        }
    }
}

impl PagerPeer<()> for Sent {
    fn on_event(
        &mut self,
        event: PagerEvent,
        copies: &CopyMachine<()>,
        _: &mut PaperTransferQueue<()>,
    ) {
        self.check(&event, copies);
        self.events.push_back(event);
    }
}

impl Sent {
    /// Checks that an event is true when it is sent.
    fn check(&mut self, event: &PagerEvent, copies: &CopyMachine<()>) {
        match event {
            PagerEvent::Offloaded { segment, copy } => {
                self.return_lease(*segment);
                assert!(copies.has(*copy), "an accepted copy is somewhere");
            }
            PagerEvent::Rejected { segment } => self.return_lease(*segment),
            PagerEvent::Lost { copy } => {
                assert!(!copies.is_in_host(*copy), "it is lost")
            }
            PagerEvent::Hit {
                sequence,
                copy_ranges,
            } => {
                let lookup = &self.last_lookups[sequence];
                let mut at: usize = lookup
                    .resident
                    .iter()
                    .map(|segment_size| segment_size.tokens)
                    .sum();
                let mut path = lookup.resident.clone();
                for copy_range in copy_ranges {
                    let label = copies.label(copy_range.copy);
                    assert_eq!(label.key, lookup.key.at(label.start + 1), "keys never mix");
                    assert!(
                        copy_range.end
                            <= label
                                .start
                                .saturating_add(lookup.key.tokens_alike(label.start)),
                        "a copy is used up to where an adapter begins"
                    );
                    let (before, own) = lookup.tokens[..copy_range.end].split_at(label.start);
                    assert!(
                        label.before == PrefixDigest::of(lookup.key, before)
                            && label.tokens[..own.len()] == *own,
                        "a copy of the sequence's own tokens"
                    );
                    assert_eq!(
                        (copy_range.start, copy_range.segment_size),
                        (label.start, label.segment_size())
                    );
                    assert!(
                        copy_range.start <= at && at < copy_range.end,
                        "they follow each other"
                    );
                    path.push(SegmentSize {
                        tokens: copy_range.end - at,
                        state_lag: copy_range.segment_size.state_lag,
                    });
                    at = copy_range.end;
                }
                assert!(at > lookup.seen_tokens, "more than the device has");
                assert!(self.spec.can_resume(&path), "it can continue from there");
            }
            _ => {}
        }
    }

    fn return_lease(&mut self, segment: SegmentId) {
        let lease_count = self.leased.remove(&segment);
        self.returned
            .push(lease_count.expect("a candidate is answered once"));
    }
}

/// Whether the worker between device and host memory does this job; packs wait for the device.
fn is_of_memory_worker(job: &Job) -> bool {
    job.task != Task::Pack && job.task.copy_queue() == CopyQueue::Memory
}

/// A segment or a prompt: tokens that often share beginnings, and the start of the segment.
fn label(input: &mut FuzzInput<'_>) -> (Label, Arc<[TokenId]>) {
    let shared = input.below(7);
    let mut tokens: Vec<TokenId> = (0..shared as TokenId).collect();
    tokens.extend((0..1 + input.below(6)).map(|_| TokenId::from(input.byte() % 2)));
    let start = input.below(tokens.len());
    let mut key = KeyDigest::of(salt(input));
    let adapter = ActiveAdapter {
        key: AdapterKey {
            digest: [3; 32],
            scale: 1,
        },
        from: [0, 2][input.below(2)],
    };
    // A segment is of one adapter, or of the base model.
    let is_one = adapter.from <= start || adapter.from >= tokens.len();
    key.adapter = (is_one && input.below(3) == 0).then_some(adapter);
    let state_lag = input.below(4) / 3;
    let bytes = TOKEN_BYTES * (tokens.len() - start);
    let label = Label::new(key, &tokens, start, state_lag, Precision::Full, bytes);
    (label, Arc::from(tokens))
}

fn salt(input: &mut FuzzInput<'_>) -> SaltDigest {
    SaltDigest([u8::from(input.below(4) == 0); 32])
}
