//! The copy workers of a simulation: tasks whose jobs take virtual time.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{DiskWorker, MemoryWorker, RemoteWorker};
use crate::runtime::injected::SimulatedWorker;
use crate::runtime::injected::simulation::{ScheduledCopy, Simulation};
use motet_core::pager::{Done, Job, JobError, Task};
use motet_device::{Export, NextExport};
use motet_model::Packer;
use motet_protocol::time::eighth;

/// Shortest virtual time between two checks whether an export is computed.
const WATCH_MIN: Duration = Duration::from_millis(1);
/// Longest virtual time between two checks.
const WATCH_MAX: Duration = Duration::from_secs(1);

impl<K: Packer> SimulatedWorker for MemoryWorker<K> {
    async fn simulate(mut self, jobs: mpsc::Receiver<Job>, simulation: Simulation) {
        self.serve_scheduled(jobs, simulation).await;
        drop(self.copy_worker);
        drop(self.alive);
    }
}

impl SimulatedWorker for DiskWorker {
    async fn simulate(mut self, mut jobs: mpsc::Receiver<Job>, simulation: Simulation) {
        while let Some(job) = jobs.recv().await {
            let scheduled = simulation.fault_schedule.copy(&job);
            let copy = || Some(self.copy_worker.run_job(&job));
            if let Some(ended) = on_schedule(&job, scheduled, copy).await
                && self.done.send(ended).await.is_err()
            {
                break;
            }
        }
        drop(self.copy_worker);
        drop(self.alive);
    }
}

impl SimulatedWorker for RemoteWorker {
    /// The tier itself takes time, and fails, as the simulation's author has it.
    async fn simulate(mut self, mut jobs: mpsc::Receiver<Job>, _simulation: Simulation) {
        while let Some(job) = jobs.recv().await {
            let done = self.copy_worker.run_job(&job).await;
            if self.done.send(done).await.is_err() {
                break;
            }
        }
        drop(self.copy_worker);
        drop(self.alive);
    }
}

impl<K: Packer> MemoryWorker<K> {
    /// Runs jobs until the pager or the device is gone. Jobs go before exports.
    async fn serve_scheduled(&mut self, mut jobs: mpsc::Receiver<Job>, simulation: Simulation) {
        loop {
            let ended = if let Ok(job) = jobs.try_recv() {
                self.run_scheduled(job, &simulation).await
            } else {
                let next = self.copy_worker.next_export(&self.exports);
                if let NextExport::Ready(export) = next {
                    self.pack_scheduled(export, &simulation).await
                } else {
                    let waited = match next {
                        NextExport::NotComputed(waited) => Some(waited),
                        _ => None,
                    };
                    if waited.is_none() && self.exports.wakeup().is_closed() {
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
                && let Err(unreported) = self.done.send(ended).await
            {
                return self.copy_worker.retract(&unreported.0);
            }
        }
    }

    async fn run_scheduled(&mut self, job: Job, simulation: &Simulation) -> Option<Done> {
        let scheduled = simulation.fault_schedule.copy(&job);
        let known = job.clone();
        on_schedule(&known, scheduled, || self.copy_worker.run_job(job)).await
    }

    async fn pack_scheduled(
        &mut self,
        export: Export<K::DetachedState>,
        simulation: &Simulation,
    ) -> Option<Done> {
        let job = Job {
            copy: export.copy,
            label: self.copy_worker.host().awaited(export.copy)?,
            task: Task::Pack,
            path: Vec::new(),
        };
        let scheduled = simulation.fault_schedule.copy(&job);
        let fails = scheduled.fails.is_some();
        let done = on_schedule(&job, scheduled, || self.copy_worker.pack(export)).await;
        if fails {
            self.copy_worker.host().forget(job.copy);
        }
        done
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
