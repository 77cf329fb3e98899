//! Workers on threads.

use std::io;
use std::thread;

use crossbeam_channel::{Sender, bounded};

use super::{Queue, Runtime, RuntimeWorker};

/// Each worker has a thread, and nothing else happens.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads(());

impl Runtime for Threads {
    type Queue<T: Send + 'static> = Sender<T>;

    fn spawn<W: RuntimeWorker>(&self, worker: W) -> io::Result<Sender<W::Job>> {
        let (queue, jobs) = bounded(W::JOBS_MAX);
        let thread = thread::Builder::new().name(W::NAME.into());
        thread.spawn(move || worker.run(jobs))?;
        Ok(queue)
    }
}

impl<T: Send> Queue<T> for Sender<T> {
    fn enqueue(&self, job: T, never_full: &str) -> bool {
        let sent = self.try_send(job);
        let is_sent = sent.is_ok();
        assert!(!sent.is_err_and(|error| error.is_full()), "{never_full}");
        is_sent
    }
}
