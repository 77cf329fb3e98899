//! A sequence ends: its caller leaves while the outcome of its last step comes.
//!
//! The scheduler's thread has both cores, the device's the real table and the oracle, the
//! caller's reads a token and leaves. Between them are the word that settles who ended the
//! sequence, and the credits.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use motet::cache::Salt;
use motet::config::{CacheConfig, SchedulerConfig};
use motet::device::Table;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::sampling::Sampling;
use motet::model::{LayerKind, Model};
use motet::request::{ContextLimit, Priority};
use motet::{SequenceId, TokenId, UserId};
use motet_core::cache::CacheCore;
use motet_core::protocol::{Outcome, Work};
use motet_core::scheduler::{Effect, Event, SchedulerCore, Submission};
use motet_sync::cancel::CancelFlag;
use motet_sync::credits::Credits;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{model, mpsc, spawn_deep, thread};

const SEQUENCE: SequenceId = SequenceId(1);
const PROMPT: [TokenId; 3] = [1, 2, 3];
const OUTPUT_TOKENS: usize = 2;

/// What the scheduler's thread hears of.
enum ToScheduler {
    Outcome(Box<Outcome>),
    Stop,
    Resume,
}

/// What the caller gets.
#[derive(Debug)]
enum StreamItem {
    Token(TokenId),
    End,
}

/// The scheduler's thread: cores, and the way to the one sequence, as its shell has it.
struct EngineCores {
    scheduler: SchedulerCore,
    cache: CacheCore,
    now: Duration,
    device: mpsc::Sender<Option<Work>>,
    caller: mpsc::Sender<StreamItem>,
    cancel: CancelFlag,
    credits: Credits,
    is_paused: bool,
    /// Whether it was the scheduler that ended it, once it is over.
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
    let mut cores = EngineCores {
        scheduler: SchedulerCore::new(spec.clone(), SchedulerConfig::default()),
        cache: CacheCore::new(spec, CacheConfig::default()),
        now: Duration::ZERO,
        device,
        caller,
        cancel,
        credits,
        is_paused: false,
        ended: None,
    };
    let served = catch_unwind(AssertUnwindSafe(|| {
        cores.handle_event(Event::Submit(submission()));
        while cores.ended.is_none() || !cores.scheduler.is_idle() {
            cores.on_message(received.recv().expect("there is more to come"));
        }
    }));
    if served.is_err() {
        // Nobody is to wait for what does not come.
        cores.caller.send(StreamItem::End).ok();
    }
    let (token, left, unread) = caller_thread.join().unwrap();
    let served = served.and_then(|()| {
        // What comes late changes nothing.
        let late = std::iter::from_fn(|| received.try_recv().ok());
        catch_unwind(AssertUnwindSafe(|| {
            late.for_each(|late| cores.on_message(late))
        }))
    });
    while received.try_recv().is_ok() {}
    cores.device.send(None).expect("the device lives");
    let slots = device_thread.join().unwrap();
    let unread = std::iter::from_fn(|| unread.try_recv().ok());
    let ends = unread.filter(|stream_item| matches!(stream_item, StreamItem::End));
    let ends = ends.count();
    // Not before the others have ended: loom cannot end them in the midst of something.
    served.unwrap_or_else(|panic| resume_unwind(panic));
    let alone = oracle.reference_tokens(&PROMPT, 1, Sampling::GREEDY);
    assert_eq!(token, Some(alone[0]), "what it read is what it gets alone");
    let finished = cores.ended.expect("it is over");
    assert_ne!(finished, left, "one side has ended it");
    assert_eq!(cores.cancel.is_cancelled(), left, "and both know who");
    assert_eq!(slots, 0, "its place on the device is free");
    assert_eq!(cores.cache.stats().reserved_bytes, 0, "and its bytes");
    assert_eq!(ends, 1, "the last word is said once");
}

/// The device thread. Returns how many slots are left.
fn serve(
    oracle: OracleConfig,
    works: &mpsc::Receiver<Option<Work>>,
    sender: &mpsc::Sender<ToScheduler>,
) -> usize {
    let mut model = Oracle::new(oracle).expect("a valid oracle");
    let mut table = Table::new();
    while let Some(work) = works.recv().expect("the scheduler lives") {
        let outcome = Outcome {
            result: table.run_work(&mut model, work),
            busy: Duration::from_millis(1),
            gap: Duration::ZERO,
            memory: model.memory(),
            lost: table.take_lost(),
        };
        sender
            .send(ToScheduler::Outcome(Box::new(outcome)))
            .expect("it listens");
    }
    let (_, slots) = table.held();
    slots
}

/// A caller who reads a token and drops its stream; and whether that ended the sequence.
fn read_one_and_leave(
    stream_items: &mpsc::Receiver<StreamItem>,
    cancel: &CancelFlag,
    credits: &Credits,
    sender: &mpsc::Sender<ToScheduler>,
) -> (Option<TokenId>, bool) {
    let token = match stream_items.recv().expect("something comes") {
        StreamItem::Token(token) => Some(token),
        StreamItem::End => None,
    };
    if token.is_some() && credits.read() {
        sender.send(ToScheduler::Resume).expect("it listens");
    }
    let left = cancel.cancel();
    if left {
        sender.send(ToScheduler::Stop).expect("it listens");
    }
    (token, left)
}

impl EngineCores {
    fn on_message(&mut self, received: ToScheduler) {
        match received {
            ToScheduler::Outcome(outcome) => self.handle_event(Event::Outcome(*outcome)),
            ToScheduler::Stop => self.handle_event(Event::Stop(SEQUENCE)),
            ToScheduler::Resume => {
                if std::mem::take(&mut self.is_paused) {
                    self.handle_event(Event::Resume(SEQUENCE));
                }
            }
        }
    }

    /// Feeds the core and carries out what follows, until it waits for another thread.
    fn handle_event(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.scheduler.handle(self.now, event) {
                events.extend(self.apply(effect));
            }
            self.scheduler.check_integrity();
            self.cache.check_integrity();
            if let (true, Some(at)) = (events.is_empty(), self.scheduler.wakes_at()) {
                self.now = self.now.max(at);
                events.push_back(Event::TimePassed);
            }
        }
    }

    fn apply(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Cache(message) => {
                return Some(Event::Cache(self.cache.handle(self.now, message)));
            }
            Effect::Work(work) => self.device.send(Some(work)).expect("the device lives"),
            Effect::Token(_, token, _) => {
                assert_eq!(self.ended, None, "no token after the end");
                self.credits.sent();
                // A caller who has left does not listen.
                self.caller.send(StreamItem::Token(token)).ok();
                if self.credits.pause_if_full() && !self.is_paused {
                    self.is_paused = true;
                    return Some(Event::Pause(SEQUENCE));
                }
            }
            Effect::Finished(..) => {
                let finished = self.cancel.finish();
                let before = self.ended.replace(finished);
                assert_eq!(before, None, "it ends once");
                self.caller.send(StreamItem::End).ok();
            }
            Effect::Started { .. } => {}
            other => unreachable!("nothing fails: {other:?}"),
        }
        None
    }
}

fn submission() -> Submission {
    Submission {
        sequence: SEQUENCE,
        prompt: PROMPT.into(),
        output_tokens_max: OUTPUT_TOKENS,
        sampling: Sampling::GREEDY,
        sampling_spec: None,
        end_tokens: [].into(),
        user: UserId::default(),
        weight: 1.0,
        class: Priority::Normal,
        start_by: None,
        finish_by: None,
        at_limit: ContextLimit::Stop,
        salt: Salt::default(),
        restore_points: Vec::new(),
        retention: 0,
        report_prefill_progress: false,
    }
}
