//! The copy workers of a simulation: tasks whose jobs take virtual time.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::device::{Export, ExportQueue, NextExport};
use crate::runtime::injected::SimulatedWorker;
use crate::runtime::injected::simulation::{ScheduledCopy, Simulation};
use crate::storage::copy_worker::{DiskCopyWorker, DiskWorker, MemoryCopyWorker, MemoryWorker};
use motet_core::pager::{Done, Job, JobError, Task};
use motet_model::Packer;
use motet_protocol::time::eighth;

/// Shortest virtual time between two checks whether an export is computed.
const WATCH_MIN: Duration = Duration::from_millis(1);
/// Longest virtual time between two checks.
const WATCH_MAX: Duration = Duration::from_secs(1);

impl<K: Packer> SimulatedWorker for MemoryWorker<K> {
    async fn simulate(self, jobs: mpsc::Receiver<Job>, simulation: Simulation) {
        let Self {
            copy_worker,
            exports,
            done,
            alive,
        } = self;
        copy_worker.simulate(jobs, exports, done, simulation).await;
        drop(alive);
    }
}

impl SimulatedWorker for DiskWorker {
    async fn simulate(self, jobs: mpsc::Receiver<Job>, simulation: Simulation) {
        let Self {
            copy_worker,
            done,
            alive,
        } = self;
        copy_worker.simulate(jobs, done, simulation).await;
        drop(alive);
    }
}

impl<K: Packer> MemoryCopyWorker<K> {
    /// Runs jobs until the pager or the device is gone. Jobs go before exports.
    async fn simulate(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
        exports: ExportQueue<K::DetachedState>,
        done: mpsc::Sender<Done>,
        simulation: Simulation,
    ) {
        loop {
            let ended = if let Ok(job) = jobs.try_recv() {
                self.run_scheduled(job, &simulation).await
            } else {
                let next = self.next_export(&exports);
                if let NextExport::Ready(export) = next {
                    self.pack_scheduled(export, &simulation).await
                } else {
                    let waited = match next {
                        NextExport::NotComputed(waited) => Some(waited),
                        _ => None,
                    };
                    if waited.is_none() && exports.wakeup().is_closed() {
                        return;
                    }
                    tokio::select! {
                        biased;
                        job = jobs.recv() => match job {
                            Some(job) => self.run_scheduled(job, &simulation).await,
                            None => return,
                        },
                        () = simulation.exported.notified() => None,
                        () = watch(waited) => None,
                    }
                }
            };
            if let Some(ended) = ended
                && let Err(unreported) = done.send(ended).await
            {
                return self.retract(&unreported.0);
            }
        }
    }

    async fn run_scheduled(&mut self, job: Job, simulation: &Simulation) -> Option<Done> {
        let scheduled = simulation.fault_schedule.copy(&job);
        let known = job.clone();
        on_schedule(&known, scheduled, || self.run_job(job)).await
    }

    async fn pack_scheduled(
        &mut self,
        export: Export<K::DetachedState>,
        simulation: &Simulation,
    ) -> Option<Done> {
        let job = Job {
            copy: export.copy,
            label: self.host.awaited(export.copy)?,
            task: Task::Pack,
        };
        let scheduled = simulation.fault_schedule.copy(&job);
        let fails = scheduled.fails.is_some();
        let done = on_schedule(&job, scheduled, || self.pack(export)).await;
        if fails {
            self.host.forget(job.copy);
        }
        done
    }
}

impl DiskCopyWorker {
    /// Runs jobs until the pager is gone.
    async fn simulate(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
        done: mpsc::Sender<Done>,
        simulation: Simulation,
    ) {
        while let Some(job) = jobs.recv().await {
            let scheduled = simulation.fault_schedule.copy(&job);
            let ended = on_schedule(&job, scheduled, || Some(self.run_job(&job))).await;
            if let Some(ended) = ended
                && done.send(ended).await.is_err()
            {
                return;
            }
        }
    }
}

/// Runs `copy` in the middle of the scheduled time, unless the schedule makes it fail.
fn on_schedule(
    job: &Job,
    scheduled: ScheduledCopy,
    copy: impl FnOnce() -> Option<Done>,
) -> impl Future<Output = Option<Done>> {
    let ScheduledCopy { takes, fails } = scheduled;
    let middle = takes.checked_div(2).expect("not by zero");
    let failed = fails.map(|what| Done {
        copy: job.copy,
        task: job.task,
        result: Err(JobError {
            what,
            is_lost: false,
        }),
        took: takes,
        bytes: 0,
    });
    async move {
        wait(middle).await;
        let done = match failed {
            // The bytes to copy are dropped, too.
            Some(failed) => {
                drop(copy);
                Some(failed)
            }
            None => copy(),
        };
        wait(takes.saturating_sub(middle)).await;
        done.map(|done| Done {
            took: takes,
            ..done
        })
    }
}

/// Waits until the next check of an export that has waited for `waited` already.
async fn watch(waited: Option<Duration>) {
    match waited {
        Some(waited) => tokio::time::sleep(eighth(waited).clamp(WATCH_MIN, WATCH_MAX)).await,
        None => std::future::pending().await,
    }
}

async fn wait(time: Duration) {
    // A sleep of zero takes a millisecond.
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
