//! What copies, as tasks that pretend to take time.

use std::future::Future;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::device::{ExportQueue, Leaving, NextExport};
use crate::simulation::{CopyFate, Simulation};
use crate::storage::carrier::{DiskCarrier, MemoryCarrier};
use motet_core::pager::{Done, Job, JobError, Task};
use motet_model::Packer;

/// After so much virtual time at least it is looked again whether an export is computed.
const WATCH_MIN: Duration = Duration::from_millis(1);
/// And at most.
const WATCH_MAX: Duration = Duration::from_secs(1);

impl<K: Packer> MemoryCarrier<K> {
    /// Copies until the pager or the device is gone. What was asked for goes first.
    pub(super) async fn simulate(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
        exports: ExportQueue<K::Parcel>,
        done: mpsc::Sender<Done>,
        simulation: Simulation,
    ) {
        loop {
            let ended = if let Ok(job) = jobs.try_recv() {
                self.carry_by_fate(job, &simulation).await
            } else {
                let next = self.next_export(&exports);
                if let NextExport::Ready(leaving) = next {
                    self.pack_by_fate(leaving, &simulation).await
                } else {
                    let waited = match next {
                        NextExport::NotComputed(waited) => Some(waited),
                        _ => None,
                    };
                    if waited.is_none() && exports.bell().is_closed() {
                        return;
                    }
                    tokio::select! {
                        biased;
                        job = jobs.recv() => match job {
                            Some(job) => self.carry_by_fate(job, &simulation).await,
                            None => return,
                        },
                        () = simulation.handed_over.notified() => None,
                        () = watch(waited) => None,
                    }
                }
            };
            if let Some(ended) = ended
                && let Err(unheard) = done.send(ended).await
            {
                return self.retract(&unheard.0);
            }
        }
    }

    async fn carry_by_fate(&mut self, job: Job, simulation: &Simulation) -> Option<Done> {
        let fate = simulation.fate.copy(&job);
        let known = job.clone();
        by_fate(&known, fate, || self.carry(job)).await
    }

    async fn pack_by_fate(
        &mut self,
        leaving: Leaving<K::Parcel>,
        simulation: &Simulation,
    ) -> Option<Done> {
        let job = Job {
            copy: leaving.copy,
            label: self.awaited(leaving.copy)?,
            task: Task::Pack,
        };
        let fate = simulation.fate.copy(&job);
        let fails = fate.fails.is_some();
        let done = by_fate(&job, fate, || self.pack(leaving)).await;
        if fails {
            self.forget(job.copy);
        }
        done
    }
}

impl DiskCarrier {
    /// Copies until the pager is gone.
    pub(super) async fn simulate(
        mut self,
        mut jobs: mpsc::Receiver<Job>,
        done: mpsc::Sender<Done>,
        simulation: Simulation,
    ) {
        while let Some(job) = jobs.recv().await {
            let fate = simulation.fate.copy(&job);
            let ended = by_fate(&job, fate, || Some(self.carry(&job))).await;
            if let Some(ended) = ended
                && done.send(ended).await.is_err()
            {
                return;
            }
        }
    }
}

/// Copies in the middle of the time that it takes, unless it fails.
fn by_fate(
    job: &Job,
    fate: CopyFate,
    copy: impl FnOnce() -> Option<Done>,
) -> impl Future<Output = Option<Done>> {
    let CopyFate { takes, fails } = fate;
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
        wait(takes / 2).await;
        let done = match failed {
            // What was to be copied is dropped, too.
            Some(failed) => {
                drop(copy);
                Some(failed)
            }
            None => copy(),
        };
        wait(takes - takes / 2).await;
        done.map(|done| Done {
            took: takes,
            ..done
        })
    }
}

/// Until an export is looked at again that was waited for so long.
async fn watch(waited: Option<Duration>) {
    match waited {
        Some(waited) => tokio::time::sleep((waited / 8).clamp(WATCH_MIN, WATCH_MAX)).await,
        None => std::future::pending().await,
    }
}

async fn wait(time: Duration) {
    // A sleep of no time takes a millisecond.
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}
