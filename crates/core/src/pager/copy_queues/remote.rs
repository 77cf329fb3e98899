//! The queue of the remote tier's worker.
//!
//! Copies that a sequence waits for are fetched first. Sends are made when there is nothing to
//! fetch; the oldest is dropped when too many wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::rate::Rate;
use super::tier_state::TierState;
use crate::config::{PagerConfig, RemoteConfig};
use crate::pager::catalog::Catalog;
use crate::pager::footprint;
use motet_protocol::pager::{Effect, Job, Task};
use motet_protocol::time::eighth;
use motet_protocol::{CopyId, Label};

/// Upper bound on the copies that wait to be sent.
const SENDS_MAX: usize = 256;

/// The jobs that wait for the remote tier, the one in progress, and whether the tier works.
#[derive(Debug)]
pub(in crate::pager) struct RemoteQueue {
    /// Copies that sequences wait for, under the names that they get.
    to_fetch: VecDeque<(CopyId, Label)>,
    to_send: VecDeque<QueuedSend>,
    busy: Option<Busy>,
    sent: Sent,
    state: TierState,
    config: Option<RemoteConfig>,
    rate: Rate,
    /// Mean time of an answer.
    answer_time: Duration,
}

/// The job in progress.
#[derive(Debug)]
struct Busy {
    copy: CopyId,
    task: Task,
    label: Arc<Label>,
    /// When it means that the tier does not respond.
    until: Duration,
}

/// A copy to be sent, after those that hold the tokens before its own.
#[derive(Debug)]
pub(in crate::pager) struct QueuedSend {
    pub(in crate::pager) copy: CopyId,
    pub(in crate::pager) path: Vec<(CopyId, Arc<Label>)>,
    /// Whether the tier had dropped copies of its path when it was sent before.
    pub(in crate::pager) is_repeated: bool,
}

/// The send in progress.
#[derive(Debug, Default)]
pub(in crate::pager) struct Sent {
    /// The copies that hold the tokens before those of the copy.
    pub(in crate::pager) path: Vec<CopyId>,
    pub(in crate::pager) is_repeated: bool,
}

impl RemoteQueue {
    pub(in crate::pager) fn new(config: &PagerConfig) -> Self {
        Self {
            to_fetch: VecDeque::new(),
            to_send: VecDeque::new(),
            busy: None,
            sent: Sent::default(),
            state: TierState::new(config.remote.is_some()),
            config: config.remote.clone(),
            // A gigabit in a second.
            rate: Rate::guess(1.2e8),
            answer_time: Duration::from_millis(2),
        }
    }

    /// Takes over the job that a pager before this one has started.
    pub(in crate::pager) fn resume(
        &mut self,
        job: Option<(CopyId, Task, Arc<Label>)>,
        now: Duration,
    ) {
        self.busy = job.map(|(copy, task, label)| self.busy_with(copy, task, label, now));
    }

    /// Queues a copy that a sequence waits for.
    pub(in crate::pager) fn push(&mut self, name: CopyId, label: Label) {
        self.to_fetch.push_back((name, label));
    }

    /// Removes the queued copies that no sequence waits for any more.
    pub(in crate::pager) fn retain(&mut self, is_awaited: impl Fn(CopyId) -> bool) {
        self.to_fetch.retain(|(name, _)| is_awaited(*name));
    }

    /// The copy with this label that is being fetched, or waits for it.
    pub(in crate::pager) fn fetch_of(&self, label: &Label) -> Option<CopyId> {
        let queued = self.to_fetch.iter();
        let queued = queued.map(|(name, other)| (*name, other));
        let busy = self.busy.iter().filter(|busy| busy.task == Task::Fetch);
        let mut fetches = queued.chain(busy.map(|busy| (busy.copy, &*busy.label)));
        let found = fetches.find(|(_, other)| *other == label);
        found.map(|(name, _)| name)
    }

    /// Queues a copy to be sent when there is no other work.
    pub(in crate::pager) fn push_send(&mut self, send: QueuedSend) {
        if self.to_send.iter().any(|other| other.copy == send.copy) {
            return;
        }
        if self.to_send.len() == SENDS_MAX {
            self.to_send.pop_front();
        }
        self.to_send.push_back(send);
    }

    pub(in crate::pager) fn works(&self) -> bool {
        self.state.works()
    }

    /// Whether the tier does not respond, or has failed and not succeeded since.
    pub(in crate::pager) fn is_degraded(&self) -> bool {
        self.state.is_degraded()
    }

    /// Expected time to ask the tier, and to fetch so many bytes after all that is under way.
    pub(in crate::pager) fn fetch_time(&self, bytes: usize) -> Duration {
        let queued = self.to_fetch.iter().map(|(_, label)| label.bytes);
        let busy = self.busy.as_ref().map(|busy| busy.label.bytes);
        let bytes = queued.chain(busy).fold(bytes, usize::saturating_add);
        self.answer_time.saturating_add(self.rate.time(bytes))
    }

    /// Records how long an answer took, and whether it came in time.
    pub(in crate::pager) fn has_answered(&mut self, took: Duration, in_time: bool, now: Duration) {
        // An exponential mean over about eight answers.
        self.answer_time = eighth(self.answer_time.saturating_mul(7).saturating_add(took));
        if in_time {
            self.state.has_read(true, now);
        }
    }

    /// Records that the tier has not answered, or that a copy could not be fetched.
    pub(in crate::pager) fn fetch_failed(&mut self, now: Duration) {
        self.state.has_read(false, now);
    }

    /// Records a fetched copy.
    pub(in crate::pager) fn has_fetched(&mut self, bytes: usize, took: Duration, now: Duration) {
        self.rate.observe(bytes, took);
        self.state.has_read(true, now);
    }

    /// Records whether a copy could be sent.
    pub(in crate::pager) fn has_sent(&mut self, succeeded: bool, now: Duration) {
        self.state.has_written(succeeded, now);
    }

    /// Handles the end of a job.
    pub(in crate::pager) fn job_ended(&mut self) {
        self.busy = None;
        self.state.responded();
    }

    /// Whether a copy is being sent, or waits for it, on a tier that works.
    pub(in crate::pager) fn is_sending(&self) -> bool {
        let sends = self.busy.as_ref();
        let sends = sends.is_some_and(|busy| busy.task == Task::Send);
        self.works() && !self.state.rests_from_writes() && (sends || !self.to_send.is_empty())
    }

    /// Returns the send that has ended.
    pub(in crate::pager) fn take_sent(&mut self) -> Sent {
        std::mem::take(&mut self.sent)
    }

    /// Returns when [`check`](Self::check) finds something new.
    pub(in crate::pager) fn wakes_at(&self) -> Option<Duration> {
        self.state.wakes_at(self.stalls_at())
    }

    /// Ends the rests that are due, and returns true if the tier has just been found not to
    /// respond.
    pub(in crate::pager) fn check(&mut self, now: Duration) -> bool {
        self.state.check(self.stalls_at(), now)
    }

    /// Starts the next job of an idle tier that works. Returns a copy that host memory is short for.
    pub(in crate::pager) fn start_next(
        &mut self,
        now: Duration,
        catalog: &mut Catalog,
        effects: &mut Vec<Effect>,
    ) -> Option<CopyId> {
        if self.busy.is_some() || !self.works() {
            return None;
        }
        if let Some((name, label)) = self.to_fetch.pop_front() {
            let host_bytes = footprint::host_bytes(label.bytes);
            let label_bytes = Label::host_bytes(label.tokens.len());
            if !catalog.free_for_copy(label_bytes, host_bytes, 0, effects) {
                return Some(name);
            }
            self.start(catalog.begin_fetch(name, label), now, effects);
            return None;
        }
        if self.state.rests_from_writes() {
            return None;
        }
        while let Some(send) = self.to_send.pop_front() {
            if !catalog.can_send(send.copy) || !catalog.are_shared(&send.path) {
                continue;
            }
            let (names, path) = send.path.into_iter().unzip();
            self.sent = Sent {
                path: names,
                is_repeated: send.is_repeated,
            };
            let job = Job {
                path,
                ..catalog.begin(send.copy, Task::Send)
            };
            self.start(job, now, effects);
            break;
        }
        None
    }

    /// Checks that the job in progress moves the copies that the tier moves.
    ///
    /// # Panics
    ///
    /// If it does not.
    pub(in crate::pager) fn check_integrity(&self, catalog: &Catalog) {
        let sent = catalog.iter().filter(|(_, copy)| copy.is_being_sent());
        let sending = self.busy.iter().filter(|busy| busy.task == Task::Send);
        let sending = sending.filter(|busy| catalog.get(busy.copy).is_some());
        assert!(
            sent.map(|(name, _)| name).eq(sending.map(|busy| busy.copy)),
            "the remote tier's job differs from the copy that is being sent"
        );
        let fetched = catalog.iter().filter(|(_, copy)| copy.is_fetched());
        let fetching = self.busy.iter().filter(|busy| busy.task == Task::Fetch);
        assert!(
            fetched
                .map(|(name, _)| name)
                .eq(fetching.map(|busy| busy.copy)),
            "the remote tier's job differs from the copy that is being fetched"
        );
        assert!(self.to_send.len() <= SENDS_MAX, "sends are bounded");
    }

    fn stalls_at(&self) -> Option<Duration> {
        self.busy.as_ref().map(|busy| busy.until)
    }

    fn busy_with(&self, copy: CopyId, task: Task, label: Arc<Label>, now: Duration) -> Busy {
        let config = self.config.as_ref();
        let timeout = config.map_or(Duration::ZERO, |config| config.job_timeout(label.bytes));
        Busy {
            copy,
            task,
            label,
            until: now.saturating_add(timeout),
        }
    }

    fn start(&mut self, job: Job, now: Duration, effects: &mut Vec<Effect>) {
        self.busy = Some(self.busy_with(job.copy, job.task, Arc::clone(&job.label), now));
        effects.push(Effect::Do(job));
    }
}
