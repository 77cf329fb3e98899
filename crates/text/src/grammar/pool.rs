//! Threads that compute masks off the device thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TryRecvError, select_biased, unbounded};

/// One unit of work. Dropping a job that was not run, or that panicked, ends its sequence.
pub(super) trait Job: Send {
    fn run(self: Box<Self>);
}

/// Threads named `motet-masks-*`. They end with the pool.
///
/// Masks that a step may wait for are computed before those of slow sequences, for which no step
/// waits. If there are two threads or more, the first computes no slow ones at all. Slow masks
/// delay only each other.
#[derive(Debug)]
pub struct MaskPool {
    /// `Some` until the pool is dropped.
    job_queues: Option<JobQueues<Sender<Box<dyn Job>>>>,
    threads: Vec<JoinHandle<()>>,
}

/// One channel for each kind of job. They have no bound of their own: a sequence has one job at a
/// time.
#[derive(Clone, Debug)]
struct JobQueues<C> {
    prompt: C,
    slow: C,
}

impl MaskPool {
    /// Starts this many threads, at least one.
    ///
    /// # Errors
    ///
    /// The system's error when it refuses a thread.
    pub fn start(threads: usize) -> io::Result<Arc<Self>> {
        let (prompt, prompt_jobs) = unbounded();
        let (slow, slow_jobs) = unbounded();
        let jobs = JobQueues {
            prompt: prompt_jobs,
            slow: slow_jobs,
        };
        let spawn = |index| {
            let jobs = jobs.clone();
            let serve = move || {
                if index == 0 && threads > 1 {
                    jobs.prompt.iter().for_each(run);
                } else {
                    jobs.serve_both();
                }
            };
            thread::Builder::new()
                .name(format!("motet-masks-{index}"))
                .spawn(serve)
        };
        let threads = (0..threads.max(1)).map(spawn).collect::<io::Result<_>>()?;
        let job_queues = Some(JobQueues { prompt, slow });
        Ok(Arc::new(Self {
            job_queues,
            threads,
        }))
    }

    /// A pool without threads, whose jobs stay in the queues returned with it.
    #[cfg(test)]
    pub(super) fn without_threads() -> (Arc<Self>, impl Sized) {
        let (prompt, prompt_jobs) = unbounded();
        let (slow, slow_jobs) = unbounded();
        let pool = Self {
            job_queues: Some(JobQueues { prompt, slow }),
            threads: Vec::new(),
        };
        (Arc::new(pool), (prompt_jobs, slow_jobs))
    }

    pub(super) fn send(&self, job: Box<dyn Job>, is_slow: bool) {
        let job_queues = self
            .job_queues
            .as_ref()
            .expect("there until the pool is dropped");
        let job_queue = if is_slow {
            &job_queues.slow
        } else {
            &job_queues.prompt
        };
        // A job that is dropped before it runs ends its sequence.
        job_queue.send(job).ok();
    }
}

impl JobQueues<Receiver<Box<dyn Job>>> {
    fn serve_both(&self) {
        loop {
            let job = match self.prompt.try_recv() {
                Ok(job) => Ok(job),
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => select_biased! {
                    recv(self.prompt) -> job => job,
                    recv(self.slow) -> job => job,
                },
            };
            match job {
                Ok(job) => run(job),
                Err(_) => return,
            }
        }
    }
}

/// Runs a job. A job that panics is dropped, which ends its sequence.
fn run(job: Box<dyn Job>) {
    catch_unwind(AssertUnwindSafe(|| job.run())).ok();
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        self.job_queues = None;
        for thread in self.threads.drain(..) {
            thread.join().expect("jobs catch their panics");
        }
    }
}
