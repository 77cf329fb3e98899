//! Three threads around cached segments: the cache's, the pager's, and that of a scheduler
//! which asks for sequences.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc as Token;
use std::time::Duration;

use motet::CopyId;
use motet::config::PagerConfig;
use motet::model::ModelSpec;
use motet_core::pager::{self, Done, Job, PagerCore, Precision, Task, Told};

use super::cache_owner::{Ask, CacheOwner, DEVICE_TOKENS, Place, Prompt};
use super::paper::Written;
use crate::world::{mpsc, spawn_deep, thread};

/// What the cache's thread hears of.
enum Heard {
    Asked(Ask),
    Told(Told),
    /// A copy has been made a parcel for the device, or that is thrown away.
    Arrived(CopyId, Written),
    Discarded(CopyId),
    /// All that the pager was sent before [`ForPager::Ping`] is done.
    Pong,
}

/// What the pager's thread hears of.
enum ForPager {
    Message(pager::Message),
    /// The device has handed a segment over: what it is, and that its memory is not free.
    Parcel(CopyId, Written, Token<()>),
    Ping,
    Nothing,
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
/// Needs all that there is.
static LARGE: Prompt = Prompt {
    name: 3,
    first: 500,
    tokens: 8,
    granted: DEVICE_TOKENS,
};

static ASKS: [Ask; 4] = [
    Ask::Begin(&FORK),
    Ask::Close(&FORK),
    Ask::Begin(&LARGE),
    Ask::Close(&LARGE),
];

/// A prefix is cached, and offered to the pager. Then a scheduler asks for a fork of it, and
/// in the end for somebody large, who needs all the room that there is.
pub(super) fn run(config: PagerConfig) {
    let cache = spawn_deep(move || own_the_cache(config));
    cache.join().unwrap();
}

fn own_the_cache(config: PagerConfig) {
    let mut owner = CacheOwner::new();
    let mut for_pager = owner.ask(Ask::Begin(&PREFIX));
    for_pager.extend(owner.ask(Ask::Close(&PREFIX)));
    assert_eq!(owner.offered.len(), 1, "the prefix is cached, and offered");

    let (tell, heard) = mpsc::channel();
    let (to_pager, messages) = mpsc::channel();
    let pager = {
        let (tell, spec) = (tell.clone(), owner.spec());
        spawn_deep(move || keep_copies(spec, config, &messages, &tell))
    };
    let scheduler = thread::spawn(move || {
        for ask in ASKS {
            tell.send(Heard::Asked(ask)).expect("the cache lives");
        }
    });
    let served = catch_unwind(AssertUnwindSafe(|| {
        serve(&mut owner, for_pager, &heard, &to_pager);
    }));
    to_pager.send(ForPager::Nothing).expect("the pager lives");
    scheduler.join().unwrap();
    pager.join().unwrap();
    // The last word of the pager may be about nothing.
    while let Ok(Heard::Pong) = heard.try_recv() {}
    // Not before the others have ended: loom cannot end them in the midst of something.
    served.unwrap_or_else(|panic| resume_unwind(panic));
    owner.clear();
    owner.check_empty();
}

/// The cache's thread, until who is large is over and the pager has answered for everything.
fn serve(
    owner: &mut CacheOwner,
    mut for_pager: Vec<pager::Message>,
    heard: &mpsc::Receiver<Heard>,
    to_pager: &mpsc::Sender<ForPager>,
) {
    let send = |message| to_pager.send(message).expect("the pager lives");
    // The memory of what was handed over.
    let memory = Token::new(());
    let (mut asked, mut large_began) = (0, false);
    // Whether the pager was asked if it is done, and nothing has happened since.
    let (mut pinged, mut quiet) = (false, false);
    loop {
        quiet &= for_pager.is_empty();
        for message in for_pager.drain(..) {
            send(ForPager::Message(message));
        }
        if owner.place(&LARGE) == Some(Place::Over) && owner.offered.is_empty() {
            return;
        }
        if asked == ASKS.len() && !pinged {
            (pinged, quiet) = (true, true);
            send(ForPager::Ping);
        }
        let mut taken = None;
        match heard.recv().expect("there is more to come") {
            Heard::Asked(ask) => {
                asked += 1;
                for_pager = owner.ask(ask);
            }
            Heard::Told(told) => {
                quiet = false;
                if let Told::Take { copy, .. } = told {
                    taken = Some(copy);
                }
                for_pager = owner.hear(told);
            }
            Heard::Arrived(copy, parcel) => owner.arrived(copy, parcel),
            Heard::Discarded(copy) => owner.discarded(copy),
            Heard::Pong => {
                assert!(!quiet, "nothing happens any more, and somebody waits");
                pinged = false;
            }
        }
        let has_begun = matches!(owner.place(&LARGE), Some(Place::Live(_) | Place::Over));
        if has_begun && !std::mem::replace(&mut large_began, true) {
            assert_eq!(Token::strong_count(&memory), 1, "what left has left");
        }
        if let Some((copy, written)) = taken.and_then(|copy| owner.handed_over(copy)) {
            send(ForPager::Parcel(copy, written, Token::clone(&memory)));
        }
    }
}

/// The pager's life: its core, and copies that are made at once.
fn keep_copies(
    spec: ModelSpec,
    config: PagerConfig,
    messages: &mpsc::Receiver<ForPager>,
    tell: &mpsc::Sender<Heard>,
) {
    let sizes = |_| (100, Precision::Full);
    let mut core = PagerCore::new(spec, config, Box::new(sizes), Vec::new());
    let say = |heard| tell.send(heard).expect("the cache lives");
    // What is to be packed when the device hands it over, and what was.
    let mut awaited: BTreeMap<CopyId, Job> = BTreeMap::new();
    let mut host: BTreeMap<CopyId, Written> = BTreeMap::new();
    loop {
        let message = match messages.recv().expect("the cache lives") {
            ForPager::Message(message) => message,
            ForPager::Parcel(copy, written, memory) => {
                let job = awaited.remove(&copy);
                // The device's memory is free before anybody hears of it.
                drop(memory);
                let Some(job) = job else { continue };
                let label = &job.label;
                assert!(label.is_of(label.salt, &written.tokens), "what it says");
                assert_eq!(label.end(), written.tokens.len(), "and no more");
                host.insert(copy, written);
                pager::Message::Done(done(&job))
            }
            ForPager::Ping => {
                say(Heard::Pong);
                continue;
            }
            ForPager::Nothing => return core.check_integrity(),
        };
        let mut messages = VecDeque::from([message]);
        while let Some(message) = messages.pop_front() {
            for effect in core.handle(Duration::ZERO, message) {
                match effect {
                    pager::Effect::Tell(told) => say(Heard::Told(told)),
                    pager::Effect::Do(job) if job.task == Task::Pack => {
                        awaited.insert(job.copy, job);
                    }
                    pager::Effect::Do(job) => {
                        assert_eq!(job.task, Task::Unpack, "there is no disk");
                        say(Heard::Arrived(job.copy, host[&job.copy].clone()));
                        messages.push_back(pager::Message::Done(done(&job)));
                    }
                    pager::Effect::Forget(copy) => {
                        awaited.remove(&copy);
                        host.remove(&copy);
                    }
                    pager::Effect::Discard(copy) => say(Heard::Discarded(copy)),
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
