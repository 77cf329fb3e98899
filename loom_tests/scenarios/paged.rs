//! Three threads around cached segments: the cache's, the pager's, and that of a scheduler that
//! opens and closes sequences.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc as Token;
use std::time::Duration;

use motet::CopyId;
use motet::config::PagerConfig;
use motet::model::ModelSpec;
use motet_core::pager::{self, PagerEvent, Task};
use motet_testkit::copy_machine::CopyMachine;
use motet_testkit::pager_harness::{PagerHarness, PagerPeer};
use motet_testkit::paper_device::PaperSegment;
use motet_testkit::transfer_queue::PaperTransferQueue;

use super::cache_owner::{Ask, CacheOwner, DEVICE_TOKENS, Prompt, SequenceState};
use crate::world::{mpsc, spawn_deep, thread};

/// A message to the cache's thread.
enum ToCache {
    Asked(Ask),
    PagerEvent(PagerEvent),
    /// A copy was unpacked into a detached state, or that state was discarded.
    Loaded(CopyId, PaperSegment),
    Discarded(CopyId),
    /// The pager has handled all messages sent before [`ToPager::Ping`].
    Pong,
}

/// A message to the pager's thread.
enum ToPager {
    Message(pager::Message),
    /// The device has exported a segment: its content, and a token that lives while its memory
    /// is in use.
    DetachedState(CopyId, PaperSegment, Token<()>),
    Ping,
    End,
}

static PREFIX: Prompt = Prompt {
    name: 1,
    first: 1,
    tokens: 16,
    granted: 16,
};
/// Continues the prefix.
static FORK: Prompt = Prompt {
    name: 2,
    first: 1,
    tokens: 20,
    granted: 20,
};
/// Needs all memory of the device.
static LARGE: Prompt = Prompt {
    name: 3,
    first: 500,
    tokens: 8,
    granted: DEVICE_TOKENS,
};

static ASKS: [Ask; 4] = [
    Ask::OpenSlot(&FORK),
    Ask::Close(&FORK),
    Ask::OpenSlot(&LARGE),
    Ask::Close(&LARGE),
];

/// A prefix is cached and becomes an offload candidate. Then a scheduler asks for a fork of it,
/// and finally for a large sequence that needs all memory.
pub(super) fn run(config: PagerConfig) {
    let cache = spawn_deep(move || run_cache(config));
    cache.join().unwrap();
}

fn run_cache(config: PagerConfig) {
    let mut owner = CacheOwner::new();
    let mut messages_to_pager = owner.ask(Ask::OpenSlot(&PREFIX));
    messages_to_pager.extend(owner.ask(Ask::Close(&PREFIX)));
    assert_eq!(
        owner.offloading.len(),
        1,
        "the prefix is cached and is an offload candidate"
    );

    let (sender, received) = mpsc::channel();
    let (to_pager, messages) = mpsc::channel();
    let pager = {
        let (sender, spec) = (sender.clone(), owner.spec());
        spawn_deep(move || keep_copies(spec, config, &messages, &sender))
    };
    let scheduler = thread::spawn(move || {
        for ask in ASKS {
            sender
                .send(ToCache::Asked(ask))
                .expect("the cache is alive");
        }
    });
    let served = catch_unwind(AssertUnwindSafe(|| {
        serve(&mut owner, messages_to_pager, &received, &to_pager);
    }));
    to_pager.send(ToPager::End).expect("the pager is alive");
    scheduler.join().unwrap();
    pager.join().unwrap();
    // A pong may be left unread.
    while let Ok(ToCache::Pong) = received.try_recv() {}
    // Only after the other threads have ended: loom cannot stop a running thread.
    served.unwrap_or_else(|panic| resume_unwind(panic));
    owner.clear();
    owner.check_empty();
}

/// Runs the cache's thread until the large sequence has finished and the pager has answered
/// every candidate.
fn serve(
    owner: &mut CacheOwner,
    mut messages_to_pager: Vec<pager::Message>,
    received: &mpsc::Receiver<ToCache>,
    to_pager: &mpsc::Sender<ToPager>,
) {
    let send = |message| to_pager.send(message).expect("the pager is alive");
    // The device memory of exported segments.
    let memory = Token::new(());
    let (mut asked, mut large_has_started) = (0, false);
    // Whether a ping is unanswered, and whether nothing has happened since.
    let (mut pinged, mut quiet) = (false, false);
    loop {
        quiet &= messages_to_pager.is_empty();
        for message in messages_to_pager.drain(..) {
            send(ToPager::Message(message));
        }
        if owner.state(&LARGE) == Some(SequenceState::Finished) && owner.offloading.is_empty() {
            return;
        }
        if asked == ASKS.len() && !pinged {
            (pinged, quiet) = (true, true);
            send(ToPager::Ping);
        }
        let mut exported = None;
        match received.recv().expect("a message arrives") {
            ToCache::Asked(ask) => {
                asked += 1;
                messages_to_pager = owner.ask(ask);
            }
            ToCache::PagerEvent(pager_event) => {
                quiet = false;
                if let PagerEvent::Export { copy, .. } = pager_event {
                    exported = Some(copy);
                }
                messages_to_pager = owner.on_pager_event(pager_event);
            }
            ToCache::Loaded(copy, detached_state) => owner.add_import(copy, detached_state),
            ToCache::Discarded(copy) => owner.discard_import(copy),
            ToCache::Pong => {
                assert!(!quiet, "no message is left and a sequence still waits");
                pinged = false;
            }
        }
        let has_started = matches!(
            owner.state(&LARGE),
            Some(SequenceState::Live | SequenceState::Finished)
        );
        if has_started && !std::mem::replace(&mut large_has_started, true) {
            assert_eq!(
                Token::strong_count(&memory),
                1,
                "the memory of exported segments is free"
            );
        }
        if let Some((copy, written)) = exported.and_then(|copy| owner.take_export(copy)) {
            send(ToPager::DetachedState(copy, written, Token::clone(&memory)));
        }
    }
}

/// Runs the pager's thread: its core, and copies that are finished at once.
fn keep_copies(
    spec: ModelSpec,
    config: PagerConfig,
    messages: &mpsc::Receiver<ToPager>,
    sender: &mpsc::Sender<ToCache>,
) {
    let copies = CopyMachine::new(config.host_bytes_max, 0);
    let mut pager = PagerHarness::new(&spec, &config, |_| 100, copies, Vec::new());
    let mut queue = PaperTransferQueue::default();
    let mut to_cache = CacheThread { sender };
    loop {
        match messages.recv().expect("the cache is alive") {
            ToPager::Message(message) => {
                pager.send(Duration::ZERO, message, &mut queue, &mut to_cache);
            }
            ToPager::DetachedState(copy, state, memory) => {
                if pager.copies().awaits_export(copy) {
                    queue.export(copy, state);
                }
                // The device's memory is freed before the cache learns of it.
                drop(memory);
            }
            ToPager::Ping => to_cache.send(ToCache::Pong),
            ToPager::End => return,
        }
        while let Some(at) = endable(&pager, &queue) {
            let job = &pager.copies().jobs()[at];
            assert!(
                matches!(job.task, Task::Pack | Task::Unpack),
                "there is no disk"
            );
            let (copy, unpacks) = (job.copy, job.task == Task::Unpack);
            if unpacks {
                pager.unpack(&mut queue);
                let state = queue.take_import(copy).expect("it was unpacked");
                to_cache.send(ToCache::Loaded(copy, state));
            }
            pager.end_job(Duration::ZERO, at, true, &mut queue, &mut to_cache);
        }
    }
}

/// The first job that may end.
fn endable(
    pager: &PagerHarness<PaperSegment>,
    queue: &PaperTransferQueue<PaperSegment>,
) -> Option<usize> {
    let copies = pager.copies();
    let mut jobs = copies.jobs().iter();
    jobs.position(|job| copies.can_end(job, queue))
}

/// The cache's thread, as the pager sees it.
struct CacheThread<'a> {
    sender: &'a mpsc::Sender<ToCache>,
}

impl CacheThread<'_> {
    fn send(&self, message: ToCache) {
        self.sender.send(message).expect("the cache is alive");
    }
}

impl PagerPeer<PaperSegment> for CacheThread<'_> {
    fn on_event(
        &mut self,
        event: PagerEvent,
        _: &CopyMachine<PaperSegment>,
        _: &mut PaperTransferQueue<PaperSegment>,
    ) {
        self.send(ToCache::PagerEvent(event));
    }

    fn on_discard(&mut self, copy: CopyId, _: &mut PaperTransferQueue<PaperSegment>) {
        self.send(ToCache::Discarded(copy));
    }

    fn on_discard_all(&mut self, _: &mut PaperTransferQueue<PaperSegment>) {
        unreachable!("nothing is reset")
    }
}
