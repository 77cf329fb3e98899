//! A sequence ends: its caller cancels while the outcome of its last step arrives.
//!
//! The scheduler's thread has both cores. The device's has the real table and the oracle. The
//! caller's reads a token and cancels. They share the cancel flag of the sequence and its
//! credits.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use motet::config::{CacheConfig, SchedulerConfig};
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, Model};
use motet::request::Sampling;
use motet::{SequenceId, TokenId};
use motet_core::cache::CacheCore;
use motet_core::scheduler::{Effect, Event, SchedulerCore, Submission};
use motet_device::Table;
use motet_protocol::{Outcome, Work};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;
use motet_sync::primitives::inject::InjectedBug;
use motet_testkit::core_harness::{CoreHarness, CorePeer};

use crate::world::{model, mpsc, spawn_deep, thread};

const SEQUENCE: SequenceId = SequenceId(1);
const PROMPT: [TokenId; 3] = [1, 2, 3];
const OUTPUT_TOKENS: usize = 2;

/// A message to the scheduler's thread.
enum ToScheduler {
    Outcome(Box<Outcome>),
    Stop,
    Resume,
}

/// An item of the caller's stream.
#[derive(Debug)]
enum StreamItem {
    Token(TokenId),
    End,
}

/// The scheduler's thread: the cores, and the sequence's handles as the actor has them.
struct EngineCores {
    cores: CoreHarness,
    handles: Handles,
}

/// The device and the caller, as the cores' thread sees them.
struct Handles {
    device: mpsc::Sender<Option<Work>>,
    caller: mpsc::Sender<StreamItem>,
    cancel: CancelFlag,
    credits: Credits,
    is_paused: bool,
    /// Whether the scheduler ended the sequence, once it has ended.
    ended: Option<bool>,
}

#[test]
fn sequence_ends_once_and_releases_everything() {
    let finds = [InjectedBug::CancelInTwoSteps];
    model(
        "cancel against outcome against the caller's drop",
        &finds,
        || {
            spawn_deep(end_a_sequence).join().unwrap();
        },
    );
}

fn end_a_sequence() {
    let oracle = OracleConfig::with_layers(&[LayerKind::Full]);
    let (sender, received) = mpsc::channel();
    let (device, works) = mpsc::channel();
    let (caller, stream_items) = mpsc::channel();
    let (cancel, credits) = (CancelFlag::new(), Credits::new(1));
    let device_thread = {
        let (sender, oracle) = (sender.clone(), oracle.clone());
        spawn_deep(move || serve(oracle, &works, &sender))
    };
    let caller_thread = {
        let (cancel, credits) = (cancel.clone(), credits.clone());
        thread::spawn(move || {
            let (token, left) = read_one_and_leave(&stream_items, &cancel, &credits, &sender);
            (token, left, stream_items)
        })
    };
    let spec = oracle.spec();
    let scheduler = SchedulerCore::new(spec.clone(), SchedulerConfig::default());
    let mut cores = EngineCores {
        cores: CoreHarness::new(scheduler, CacheCore::new(spec, CacheConfig::default())),
        handles: Handles {
            device,
            caller,
            cancel,
            credits,
            is_paused: false,
            ended: None,
        },
    };
    let served = catch_unwind(AssertUnwindSafe(|| {
        cores.handle_event(Event::Submit(submission()));
        while cores.handles.ended.is_none() || !cores.cores.scheduler().is_idle() {
            cores.on_message(received.recv().expect("a message arrives"));
        }
    }));
    if served.is_err() {
        // The caller must not wait for an end that never comes.
        cores.handles.caller.send(StreamItem::End).ok();
    }
    let (token, left, unread) = caller_thread.join().unwrap();
    let served = served.and_then(|()| {
        // Late messages change nothing.
        let late = std::iter::from_fn(|| received.try_recv().ok());
        catch_unwind(AssertUnwindSafe(|| {
            late.for_each(|late| cores.on_message(late))
        }))
    });
    while received.try_recv().is_ok() {}
    cores
        .handles
        .device
        .send(None)
        .expect("the device is alive");
    let slots = device_thread.join().unwrap();
    let unread = std::iter::from_fn(|| unread.try_recv().ok());
    let ends = unread.filter(|stream_item| matches!(stream_item, StreamItem::End));
    let ends = ends.count();
    // Only after the other threads have ended: loom cannot stop a running thread.
    served.unwrap_or_else(|panic| resume_unwind(panic));
    let alone = oracle.reference_tokens(&PROMPT, 1, Sampling::GREEDY);
    assert_eq!(
        token,
        Some(alone[0]),
        "the token equals that of the reference run"
    );
    let finished = cores.handles.ended.expect("the sequence has ended");
    assert_ne!(finished, left, "exactly one side has ended it");
    assert_eq!(
        cores.handles.cancel.is_cancelled(),
        left,
        "both sides see which one ended it"
    );
    assert_eq!(slots, 0, "its slot on the device is free");
    assert_eq!(
        cores.cores.cache().stats().reserved_bytes,
        0,
        "its bytes are released"
    );
    assert_eq!(ends, 1, "the stream ends once");
}

/// Runs the device thread. Returns how many slots are left.
fn serve(
    oracle: OracleConfig,
    works: &mpsc::Receiver<Option<Work>>,
    sender: &mpsc::Sender<ToScheduler>,
) -> usize {
    let mut model = Oracle::new(oracle).expect("a valid oracle");
    let mut table = Table::new();
    while let Some(work) = works.recv().expect("the scheduler is alive") {
        let outcome = Outcome {
            result: table.run_work(&mut model, work),
            drafts: Ok(Vec::new()),
            busy: Duration::from_millis(1),
            gap: Duration::ZERO,
            memory: model.memory(),
            lost: table.take_lost(),
        };
        sender
            .send(ToScheduler::Outcome(Box::new(outcome)))
            .expect("the scheduler is alive");
    }
    let (_, slots) = table.held();
    slots
}

/// Runs a caller that reads one token and drops its stream. Returns the token, and whether the
/// drop ended the sequence.
fn read_one_and_leave(
    stream_items: &mpsc::Receiver<StreamItem>,
    cancel: &CancelFlag,
    credits: &Credits,
    sender: &mpsc::Sender<ToScheduler>,
) -> (Option<TokenId>, bool) {
    let token = match stream_items.recv().expect("an item arrives") {
        StreamItem::Token(token) => Some(token),
        StreamItem::End => None,
    };
    if token.is_some() && credits.read() {
        sender
            .send(ToScheduler::Resume)
            .expect("the scheduler is alive");
    }
    let left = cancel.cancel();
    if left {
        sender
            .send(ToScheduler::Stop)
            .expect("the scheduler is alive");
    }
    (token, left)
}

impl EngineCores {
    fn on_message(&mut self, received: ToScheduler) {
        match received {
            ToScheduler::Outcome(outcome) => self.handle_event(Event::Outcome(*outcome)),
            ToScheduler::Stop => self.handle_event(Event::Stop(SEQUENCE)),
            ToScheduler::Resume => {
                if std::mem::take(&mut self.handles.is_paused) {
                    self.handle_event(Event::Resume(SEQUENCE));
                }
            }
        }
    }

    /// Handles an event and carries out its effects, until the core waits for another thread.
    fn handle_event(&mut self, event: Event) {
        self.cores.run(event, &mut self.handles);
        while let Some(at) = self.cores.scheduler().wakes_at() {
            self.cores.pass_until(at);
            self.cores.run(Event::TimePassed, &mut self.handles);
        }
    }
}

impl CorePeer for Handles {
    fn on_effect(&mut self, effect: Effect, _: &mut Duration) -> Option<Event> {
        match effect {
            Effect::Work(work) => self.device.send(Some(work)).expect("the device is alive"),
            Effect::Token(_, token, _) => {
                assert_eq!(self.ended, None, "no token after the end");
                self.credits.sent();
                // A caller that has cancelled does not receive.
                self.caller.send(StreamItem::Token(token)).ok();
                if self.credits.pause_if_full() && !self.is_paused {
                    self.is_paused = true;
                    return Some(Event::Pause(SEQUENCE));
                }
            }
            Effect::Finished(..) => {
                let finished = self.cancel.finish();
                let before = self.ended.replace(finished);
                assert_eq!(before, None, "the sequence ends once");
                self.caller.send(StreamItem::End).ok();
            }
            Effect::Started { .. } => {}
            other => unreachable!("unexpected effect {other:?}"),
        }
        None
    }
}

fn submission() -> Submission {
    Submission::new(SEQUENCE, PROMPT, OUTPUT_TOKENS)
}
