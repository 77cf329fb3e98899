//! Three threads around cached segments: the cache's, the pager's, and that of a scheduler that
//! opens and closes sequences.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc as Token;
use std::time::Duration;

use motet::CopyId;
use motet::config::PagerConfig;
use motet::model::ModelSpec;
use motet_core::pager::{self, Done, Job, PagerCore, PagerEvent, Precision, Task};

use super::cache_owner::{Ask, CacheOwner, DEVICE_TOKENS, Prompt, SequenceState};
use super::fake_device::Written;
use crate::world::{mpsc, spawn_deep, thread};

/// A message to the cache's thread.
enum ToCache {
    Asked(Ask),
    PagerEvent(PagerEvent),
    /// A copy was unpacked into a detached state, or that state was discarded.
    Loaded(CopyId, Written),
    Discarded(CopyId),
    /// The pager has handled all messages sent before [`ToPager::Ping`].
    Pong,
}

/// A message to the pager's thread.
enum ToPager {
    Message(pager::Message),
    /// The device has exported a segment: its content, and a token that lives while its memory
    /// is in use.
    DetachedState(CopyId, Written, Token<()>),
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
            Some(SequenceState::Live(_) | SequenceState::Finished)
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
    let sizes = |_| (100, Precision::Full);
    let mut core = PagerCore::new(spec, config, Box::new(sizes), Vec::new());
    let send = |received| sender.send(received).expect("the cache is alive");
    // Pack jobs that wait for an export, and packed copies.
    let mut awaited: BTreeMap<CopyId, Job> = BTreeMap::new();
    let mut host: BTreeMap<CopyId, Written> = BTreeMap::new();
    loop {
        let message = match messages.recv().expect("the cache is alive") {
            ToPager::Message(message) => message,
            ToPager::DetachedState(copy, written, memory) => {
                let job = awaited.remove(&copy);
                // The device's memory is freed before the cache learns of it.
                drop(memory);
                let Some(job) = job else { continue };
                let label = &job.label;
                assert!(
                    label.is_of(label.salt, &written.tokens),
                    "the label matches the state"
                );
                assert_eq!(
                    label.end(),
                    written.tokens.len(),
                    "the label ends with the state"
                );
                host.insert(copy, written);
                pager::Message::Done(done(&job))
            }
            ToPager::Ping => {
                send(ToCache::Pong);
                continue;
            }
            ToPager::End => return core.check_integrity(),
        };
        let mut messages = VecDeque::from([message]);
        while let Some(message) = messages.pop_front() {
            for effect in core.handle(Duration::ZERO, message) {
                match effect {
                    pager::Effect::Notify(pager_event) => send(ToCache::PagerEvent(pager_event)),
                    pager::Effect::Do(job) if job.task == Task::Pack => {
                        awaited.insert(job.copy, job);
                    }
                    pager::Effect::Do(job) => {
                        assert_eq!(job.task, Task::Unpack, "there is no disk");
                        send(ToCache::Loaded(job.copy, host[&job.copy].clone()));
                        messages.push_back(pager::Message::Done(done(&job)));
                    }
                    pager::Effect::Forget(copy) => {
                        awaited.remove(&copy);
                        host.remove(&copy);
                    }
                    pager::Effect::Discard(copy) => send(ToCache::Discarded(copy)),
                    pager::Effect::DiscardAll => unreachable!("nothing is reset"),
                }
            }
        }
    }
}

fn done(job: &Job) -> Done {
    Done {
        copy: job.copy,
        task: job.task,
        result: Ok(()),
        took: Duration::from_micros(1),
        bytes: job.label.bytes,
    }
}
