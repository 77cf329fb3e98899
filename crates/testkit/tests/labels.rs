//! Labels of copies take memory in proportion to their own tokens, within their budget.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use motet_core::cache::SaltDigest;
use motet_core::config::{DiskConfig, PagerConfig};
use motet_core::pager::{
    Done, Effect, Label, Lookup, Message, OffloadCandidate, PagerCore, PagerEvent, Precision,
    RecoveryLog, Task,
};
use motet_model::oracle::OracleConfig;
use motet_model::{LayerKind, SegmentSize};
use motet_protocol::KeyDigest;
use motet_protocol::lease::LeaseCount;
use motet_protocol::{CopyId, SegmentId, SequenceId, TokenId};

const KEY: KeyDigest = KeyDigest::of(SaltDigest([9; 32]));
const SEGMENT_TOKENS: usize = 64;

/// Bytes allocated now.
static HELD: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: forwards to the system's allocator, and counts bytes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A pager, with its recovery log, and one conversation.
struct Pager {
    core: PagerCore,
    recovery_log: RecoveryLog,
    conversation: Vec<TokenId>,
    segments: usize,
}

impl Pager {
    fn new(label_bytes_max: usize, segments: usize) -> Self {
        let config = PagerConfig {
            host_bytes_max: 1 << 30,
            label_bytes_max: Some(label_bytes_max),
            disk: Some(DiskConfig {
                folder: "never touched".into(),
                bytes_max: 1 << 30,
            }),
            ..PagerConfig::default()
        };
        let spec = OracleConfig::with_layers(&[LayerKind::Full]).spec();
        let sizes = |_: SegmentSize| (100, Precision::Full);
        Self {
            core: PagerCore::new(spec, config, Box::new(sizes), Vec::new()),
            recovery_log: RecoveryLog::default(),
            conversation: (0..(segments * SEGMENT_TOKENS) as TokenId).collect(),
            segments: 0,
        }
    }

    /// Whether the next segment of the conversation is stored, in host memory and on the disk.
    fn keep_next(&mut self) -> bool {
        self.segments += 1;
        let lease_count = LeaseCount::new(SegmentId(self.segments as u64));
        let candidate = OffloadCandidate {
            lease: lease_count.lease().expect("it is not evicted"),
            key: KEY,
            tokens: Arc::from(&self.conversation[..self.segments * SEGMENT_TOKENS]),
            segment_size: SegmentSize::whole(SEGMENT_TOKENS),
            retention: 0,
        };
        let mut to_do = self.send(Message::OffloadCandidate(candidate));
        let mut is_accepted = false;
        while !to_do.is_empty() {
            let effects = std::mem::take(&mut to_do);
            for effect in effects {
                match effect {
                    Effect::Do(job) => {
                        is_accepted |= job.task == Task::Pack;
                        to_do.extend(self.end(job.copy, job.task));
                    }
                    Effect::Notify(PagerEvent::Rejected { .. }) => return false,
                    _ => {}
                }
            }
        }
        is_accepted
    }

    fn end(&mut self, copy: CopyId, task: Task) -> Vec<Effect> {
        self.send(Message::Done(Done {
            copy,
            task,
            result: Ok(()),
            took: Duration::from_micros(1),
            bytes: 100,
        }))
    }

    fn send(&mut self, message: Message) -> Vec<Effect> {
        self.recovery_log.on_message(&message);
        let effects = self.core.handle(Duration::ZERO, message);
        effects
            .iter()
            .for_each(|effect| self.recovery_log.on_effect(effect));
        effects
    }

    /// Number of copies that serve the whole conversation.
    fn found_copies(&mut self) -> usize {
        let lookup = Lookup {
            sequence: SequenceId(1),
            key: KEY,
            tokens: Arc::from(&*self.conversation),
            resident: Vec::new(),
            seen_tokens: 0,
            token_time: None,
        };
        let found_copies = match &self.send(Message::Lookup(lookup))[..] {
            [Effect::Notify(PagerEvent::Hit { copy_ranges, .. })] => copy_ranges.len(),
            [Effect::Notify(PagerEvent::Miss { .. })] => 0,
            other => panic!("one answer: {other:?}"),
        };
        self.send(Message::Cancel {
            sequence: SequenceId(1),
        });
        found_copies
    }
}

/// Each allocation is counted, including those of the pager's tables and the recovery log. The
/// reported bytes of the labels are the bytes allocated, and twice the conversation takes twice
/// as much. It is one test, because all tests share one allocator.
#[test]
fn label_bytes_are_proportional_to_their_own_tokens() {
    const SEGMENTS: usize = 2_000;
    let each = Label::host_bytes(SEGMENT_TOKENS);
    let mut pager = Pager::new(2 * SEGMENTS * each, SEGMENTS);
    let empty = HELD.load(Ordering::Relaxed);
    let mut held = Vec::new();
    for segment in 1..=SEGMENTS {
        assert!(pager.keep_next(), "it fits");
        if segment == SEGMENTS / 2 || segment == SEGMENTS {
            held.push(HELD.load(Ordering::Relaxed) - empty);
            let stats = pager.core.stats();
            assert_eq!((stats.host_copies, stats.disk_copies), (segment, segment));
            assert_eq!(stats.label_bytes, segment * each);
        }
    }
    println!(
        "{SEGMENTS} copies of {SEGMENT_TOKENS} tokens: {} bytes held, {} counted; with all \
         tokens from the first one in each: {}",
        held[1],
        SEGMENTS * each,
        SEGMENTS * (SEGMENTS + 1) / 2 * SEGMENT_TOKENS * size_of::<TokenId>()
    );
    assert!(held[0] <= SEGMENTS / 2 * each, "{held:?}");
    assert!(held[1] <= SEGMENTS * each, "{held:?}");
    assert!(held[1] <= 2 * held[0] + (64 << 10), "{held:?}");
    assert_eq!(
        pager.found_copies(),
        SEGMENTS,
        "and all are found by their labels"
    );
    pager.core.check_integrity();

    labels_stay_within_their_budget();
}

fn labels_stay_within_their_budget() {
    const COPIES_MAX: usize = 10;
    let each = Label::host_bytes(SEGMENT_TOKENS);
    let mut pager = Pager::new(COPIES_MAX * each + each - 1, 40);
    for segment in 1..=40 {
        assert!(pager.keep_next(), "another copy is dropped");
        let stats = pager.core.stats();
        assert_eq!(stats.copies, segment.min(COPIES_MAX), "{stats:?}");
        assert_eq!(stats.label_bytes, segment.min(COPIES_MAX) * each);
        pager.core.check_integrity();
    }
    assert_eq!(pager.found_copies(), 0, "the first were the coldest");
    // One segment that is larger than the whole budget.
    let mut small = Pager::new(each - 1, 1);
    assert!(!small.keep_next());
    let stats = small.core.stats();
    assert_eq!((stats.rejected, stats.copies, stats.label_bytes), (1, 0, 0));
}
