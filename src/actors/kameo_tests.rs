//! Behaviour of kameo that the actors rely on. These tests judge another version of it.
//!
//! | behaviour | relied on by |
//! |---|---|
//! | messages of one sender arrive in order; a full mailbox returns the message | every handle that keeps what did not fit |
//! | the mailbox has the capacity that was asked for, and kameo's own signals share it | the bounds beside each mailbox |
//! | a panic in a handler and in `next` reaches `on_panic`, and the actor keeps mailbox and address | recovery: cores are rebuilt, actors stay |
//! | `next` ends the actor by `None`; a handler by `Context::stop` | pager, cache |
//! | an orderly stop handles earlier messages first, and runs `on_stop` before the state is dropped | the last flush of the pager |
//! | weak references do not keep an actor alive, and queued messages do | the order of the shutdown |
//! | an `ask` is answered even if its caller has gone; a reply `Err` to it ends no actor | views and subscriptions of the cache |

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use kameo::Actor;
use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::error::{ActorStopReason, PanicError, SendError};
use kameo::mailbox::{self, MailboxReceiver, Signal};
use kameo::message::{Context, Message};
use tokio::sync::{mpsc, oneshot};

/// Reports what happens to it.
struct Probe {
    report: mpsc::UnboundedSender<Event>,
    /// Each makes a wait panic, or end the actor.
    waits: mpsc::UnboundedReceiver<Wait>,
    panics_left: usize,
}

struct Args {
    report: mpsc::UnboundedSender<Event>,
    waits: mpsc::UnboundedReceiver<Wait>,
    /// Panics that it survives.
    panics_max: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    /// A handler waits for its gate.
    Held,
    Handled(u32),
    Asked,
    Panicked,
    Stopped,
    Dropped,
}

enum Wait {
    Panic,
    End,
}

/// Handled once the sender of its gate has gone.
struct Number(u32, Option<oneshot::Receiver<()>>);
struct Panic;
struct Stop;
struct Question(bool);

impl Actor for Probe {
    type Args = Args;
    type Error = Infallible;

    async fn on_start(args: Args, _actor_ref: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(Self {
            report: args.report,
            waits: args.waits,
            panics_left: args.panics_max,
        })
    }

    async fn next(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        mailbox: &mut MailboxReceiver<Self>,
    ) -> Result<Option<Signal<Self>>, Infallible> {
        tokio::select! {
            biased;
            Some(wait) = self.waits.recv() => match wait {
                Wait::Panic => panic!("a wait panics"),
                Wait::End => Ok(None),
            },
            signal = mailbox.recv() => Ok(signal),
        }
    }

    async fn on_panic(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        panic: PanicError,
    ) -> Result<ControlFlow<ActorStopReason>, Infallible> {
        self.tell(Event::Panicked);
        let Some(left) = self.panics_left.checked_sub(1) else {
            return Ok(ControlFlow::Break(ActorStopReason::Panicked(panic)));
        };
        self.panics_left = left;
        Ok(ControlFlow::Continue(()))
    }

    async fn on_stop(
        &mut self,
        _actor_ref: WeakActorRef<Self>,
        _reason: ActorStopReason,
    ) -> Result<(), Infallible> {
        self.tell(Event::Stopped);
        Ok(())
    }
}

impl Probe {
    fn tell(&self, event: Event) {
        self.report.send(event).ok();
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.tell(Event::Dropped);
    }
}

impl Message<Number> for Probe {
    type Reply = ();

    async fn handle(&mut self, number: Number, _ctx: &mut Context<Self, ()>) {
        if let Some(gate) = number.1 {
            self.tell(Event::Held);
            gate.await.ok();
        }
        self.tell(Event::Handled(number.0));
    }
}

impl Message<Panic> for Probe {
    type Reply = ();

    async fn handle(&mut self, _: Panic, _ctx: &mut Context<Self, ()>) {
        panic!("a handler panics");
    }
}

impl Message<Stop> for Probe {
    type Reply = ();

    async fn handle(&mut self, _: Stop, ctx: &mut Context<Self, ()>) {
        ctx.stop();
    }
}

impl Message<Question> for Probe {
    type Reply = Result<u32, String>;

    async fn handle(
        &mut self,
        question: Question,
        _ctx: &mut Context<Self, Self::Reply>,
    ) -> Self::Reply {
        self.tell(Event::Asked);
        if question.0 { Ok(7) } else { Err("no".into()) }
    }
}

/// An actor with what it reports.
struct Bench {
    actor: ActorRef<Probe>,
    waits: mpsc::UnboundedSender<Wait>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// An actor whose mailbox has this capacity, and that survives so many panics.
fn bench(capacity: usize, panics_max: usize) -> Bench {
    let (report, events) = mpsc::unbounded_channel();
    let (waits, waited) = mpsc::unbounded_channel();
    let args = Args {
        report,
        waits: waited,
        panics_max,
    };
    Bench {
        actor: Probe::spawn_with_mailbox(args, mailbox::bounded(capacity)),
        waits,
        events,
    }
}

impl Bench {
    /// Holds the actor in a handler until the sender is dropped.
    async fn hold(&mut self) -> oneshot::Sender<()> {
        let (open, gate) = oneshot::channel();
        let held = self.actor.tell(Number(0, Some(gate))).send().await;
        held.expect("a mailbox");
        self.expect(&[Event::Held]).await;
        open
    }

    async fn expect(&mut self, expected: &[Event]) {
        for expected in expected {
            let event = tokio::time::timeout(Duration::from_secs(60), self.events.recv()).await;
            assert_eq!(event.expect("in time").as_ref(), Some(expected));
        }
    }
}

#[tokio::test]
async fn messages_stay_in_order_and_a_full_mailbox_gives_them_back() {
    let mut bench = bench(3, 0);
    let open = bench.hold().await;
    for number in 1..=3 {
        let sent = bench.actor.tell(Number(number, None)).try_send();
        sent.expect("space for three");
    }
    let full = bench.actor.tell(Number(4, None)).try_send();
    assert!(matches!(full, Err(SendError::MailboxFull(Number(4, None)))));
    drop(open);
    bench.expect(&[0, 1, 2, 3].map(Event::Handled)).await;
}

#[tokio::test]
async fn an_actor_survives_panics_with_its_mailbox_and_address() {
    let mut bench = bench(8, 2);
    let open = bench.hold().await;
    bench.actor.tell(Panic).try_send().expect("space");
    bench.actor.tell(Number(1, None)).try_send().expect("space");
    drop(open);
    let events = [Event::Handled(0), Event::Panicked, Event::Handled(1)];
    bench.expect(&events).await;

    bench.waits.send(Wait::Panic).expect("an actor");
    let woken = bench.actor.tell(Number(2, None)).send().await;
    woken.expect("the same address");
    bench.expect(&[Event::Panicked, Event::Handled(2)]).await;

    // One panic more ends it.
    bench.actor.tell(Panic).send().await.expect("a mailbox");
    let events = [Event::Panicked, Event::Stopped, Event::Dropped];
    bench.expect(&events).await;
    assert!(!bench.actor.is_alive());
    let sent = bench.actor.tell(Number(3, None)).try_send();
    assert!(matches!(sent, Err(SendError::ActorNotRunning(_))));
}

#[tokio::test]
async fn every_orderly_end_runs_on_stop_before_the_state_is_dropped() {
    let end = [Event::Stopped, Event::Dropped];
    let mut stopped = bench(8, 0);
    let open = stopped.hold().await;
    let sent = stopped.actor.tell(Number(1, None)).try_send();
    sent.expect("space");
    let stopping = stopped.actor.stop_gracefully().await;
    stopping.expect("a mailbox");
    drop(open);
    stopped.expect(&[0, 1].map(Event::Handled)).await;
    stopped.expect(&end).await;

    let mut by_handler = bench(8, 0);
    by_handler.actor.tell(Stop).send().await.expect("a mailbox");
    by_handler.expect(&end).await;

    let mut by_wait = bench(8, 0);
    by_wait.waits.send(Wait::End).expect("an actor");
    by_wait.expect(&end).await;
}

#[tokio::test]
async fn an_actor_lives_as_long_as_a_strong_reference_or_a_message() {
    let mut held = bench(8, 0);
    let open = held.hold().await;
    let sent = held.actor.tell(Number(1, None)).try_send();
    sent.expect("space");
    let weak = held.actor.downgrade();
    // The last strong reference outside its mailbox.
    held.actor = bench(8, 0).actor;
    drop(open);
    held.expect(&[0, 1].map(Event::Handled)).await;
    held.expect(&[Event::Stopped, Event::Dropped]).await;
    assert!(weak.upgrade().is_none());
}

#[tokio::test]
async fn an_answer_harms_neither_a_caller_nor_the_actor() {
    let mut bench = bench(8, 0);
    let answer = bench.actor.ask(Question(true)).send().await;
    assert_eq!(answer.ok(), Some(7));
    let answer = bench.actor.ask(Question(false)).send().await;
    assert!(matches!(answer, Err(SendError::HandlerError(why)) if why == "no"));
    bench.expect(&[Event::Asked, Event::Asked]).await;

    // The caller leaves while its question waits.
    let open = bench.hold().await;
    let asked = bench.actor.ask(Question(false)).send();
    let asked = tokio::time::timeout(Duration::from_millis(1), asked).await;
    assert!(asked.is_err(), "it waits");
    drop(open);
    bench.expect(&[Event::Handled(0), Event::Asked]).await;
    let sent = bench.actor.tell(Number(1, None)).send().await;
    sent.expect("it lives");
    bench.expect(&[Event::Handled(1)]).await;
}
