//! Threads that compute masks, so that the device thread does not.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::source::Compiled;
use super::{GrammarError, Matcher, Next};
use crate::TokenId;

/// Threads named `motet-masks-*`. They end with the pool.
#[derive(Debug)]
pub struct MaskPool {
    /// There until the pool is dropped.
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

/// A step of one sequence.
#[derive(Debug)]
pub(super) struct Job {
    from: Begin,
    /// The tokens that follow.
    tokens: Vec<TokenId>,
    reply: Sender<Arrival>,
}

/// Where a step begins.
pub(super) enum Begin {
    /// At the grammar's beginning.
    Start(Arc<Compiled>),
    Here(Box<Matcher>),
}

/// Where a sequence is after a step, and what may come next there.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) matcher: Box<Matcher>,
    pub(super) next: Result<Next, GrammarError>,
}

/// A step on its way.
#[derive(Debug)]
pub(super) enum Pending {
    /// Another thread is at it, or will be.
    Sent(Receiver<Arrival>),
    /// The pool had no room: whoever wants the result computes it.
    Kept(Job, Receiver<Arrival>),
}

impl MaskPool {
    /// Starts as many threads, at least one. At most `waiting_max` masks wait for them;
    /// those beyond are computed by whoever wants them, which bounds the queue and
    /// loses no time: they would be waited for.
    ///
    /// # Errors
    ///
    /// The system's, when it refuses a thread.
    pub fn start(threads: usize, waiting_max: usize) -> io::Result<Arc<Self>> {
        let (jobs, queue) = bounded(waiting_max);
        let spawn = |index| {
            let queue: Receiver<Job> = queue.clone();
            thread::Builder::new()
                .name(format!("motet-masks-{index}"))
                .spawn(move || queue.iter().for_each(Job::run))
        };
        let threads = (0..threads.max(1)).map(spawn).collect::<io::Result<_>>()?;
        let jobs = Some(jobs);
        Ok(Arc::new(Self { jobs, threads }))
    }

    pub(super) fn step(&self, from: Begin, tokens: Vec<TokenId>) -> Pending {
        let (reply, arrival) = bounded(1);
        let job = Job {
            from,
            tokens,
            reply,
        };
        let jobs = self.jobs.as_ref().expect("there until the pool is dropped");
        match jobs.try_send(job) {
            Ok(()) => Pending::Sent(arrival),
            Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => {
                Pending::Kept(job, arrival)
            }
        }
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            thread.join().expect("jobs catch their panics");
        }
    }
}

impl Job {
    /// A job that panics drops its reply, and with it ends one sequence.
    fn run(self) {
        catch_unwind(AssertUnwindSafe(|| self.compute())).ok();
    }

    fn compute(self) {
        let mut matcher = match self.from {
            Begin::Start(compiled) => Box::new(compiled.matcher()),
            Begin::Here(matcher) => matcher,
        };
        let mut tokens = self.tokens.into_iter();
        let next = match tokens.try_for_each(|token| matcher.accept(token)) {
            Ok(()) => matcher.next_tokens(),
            Err(error) => Err(error),
        };
        // A sequence that is gone does not listen.
        self.reply.send(Arrival { matcher, next }).ok();
    }
}

impl Pending {
    pub(super) fn wait(self) -> Result<Arrival, GrammarError> {
        let arrival = match self {
            Pending::Sent(arrival) => arrival,
            Pending::Kept(job, arrival) => {
                job.run();
                arrival
            }
        };
        arrival.recv().map_err(|_| GrammarError::PoolEnded)
    }
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Begin::Start(_) => "Start",
            Begin::Here(_) => "Here",
        })
    }
}
