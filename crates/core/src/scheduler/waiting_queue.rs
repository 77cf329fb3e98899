//! The sequences that wait for a slot, and what decides whether one of them may start.

use std::collections::BTreeSet;
use std::time::Duration;

use super::policy::turns::Turns;
use super::policy::waiting::{self, NextStart, QueuedView, StartLimits};
use super::sequence::{Phase, Sequence, SequenceKey};
use super::sequences::Sequences;
use crate::cache::{PROBES_MAX, ProbePrefix};
use motet_protocol::Priority;
use motet_protocol::UserId;
use motet_protocol::time::mean;

/// Time after which the queue is scanned again, since its sequences age and users leave.
const QUEUE_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// The waiting queue: its order, class turns, and the sequence that waits for memory.
#[derive(Debug)]
pub(super) struct WaitingQueue {
    /// Sequences without a slot, in order of arrival.
    queued: Vec<SequenceKey>,
    turns: Turns,
    /// Users whose sequences gave their turns up for want of memory. An entry lasts until the
    /// cache has memory for a turn of its class.
    turned_away: BTreeSet<(Priority, UserId)>,
    scan: Scan,
    /// The sequence that waits for memory until another ends, if any.
    memory_waiter: Option<SequenceKey>,
    /// Whether a start was denied for want of memory. The queue then starts one sequence at a
    /// time, so that no small one overtakes a large one.
    is_memory_short: bool,
    start_rate: StartRate,
    /// Index in the queue at which the next probe begins.
    probe_from: usize,
}

/// When the queue is scanned for a sequence that may start.
#[derive(Debug, Default)]
struct Scan {
    /// Whether something has changed that may let a queued sequence start.
    is_due: bool,
    /// Whether a queued sequence may start when the cache has answered everything.
    is_due_when_answered: bool,
    /// Time of the last scan.
    queue_scanned_at: Duration,
}

/// The time between starts while other sequences wait.
#[derive(Debug, Default)]
struct StartRate {
    /// Mean time between recent starts.
    start_interval: Option<Duration>,
    /// Time of the last start.
    started_at: Option<Duration>,
}

impl WaitingQueue {
    pub(super) fn new(sequences_max: usize) -> Self {
        Self {
            queued: Vec::new(),
            turns: Turns::new(sequences_max),
            turned_away: BTreeSet::new(),
            scan: Scan::default(),
            memory_waiter: None,
            is_memory_short: false,
            start_rate: StartRate::default(),
            probe_from: 0,
        }
    }

    /// Returns the queued sequences, in order of arrival.
    pub(super) fn queued(&self) -> &[SequenceKey] {
        &self.queued
    }

    /// Returns when the sequence at this position will start, if starts come as they did.
    pub(super) fn estimated_start(&self, position: usize) -> Option<Duration> {
        let interval = self.start_rate.start_interval?;
        let starts = u32::try_from(position)
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        Some(interval.saturating_mul(starts))
    }

    /// Inserts a sequence, in order of arrival.
    pub(super) fn insert(&mut self, key: SequenceKey, sequences: &Sequences) {
        let sequence = sequences[key].id();
        let is_earlier = |queued: &SequenceKey| sequences[*queued].id() < sequence;
        let index = self.queued.partition_point(is_earlier);
        self.queued.insert(index, key);
    }

    /// Removes a sequence that starts.
    pub(super) fn take(&mut self, key: SequenceKey) {
        self.queued.retain(|queued| *queued != key);
    }

    /// Removes a sequence that ends before it starts.
    pub(super) fn leave(&mut self, key: SequenceKey) {
        self.take(key);
        self.stop_waiting_for_memory(key);
        if self.queued.is_empty() {
            self.start_rate.started_at = None;
        }
    }

    // Scans of the queue.

    /// Has the queue scanned, since a sequence may start.
    pub(super) fn request_scan(&mut self) {
        self.scan.is_due = true;
    }

    /// Has the queue scanned when the cache has answered everything, if anything is unanswered.
    pub(super) fn scan_when_answered(&mut self, awaits_answers: bool) {
        self.scan.is_due_when_answered = awaits_answers;
    }

    /// Has the queue scanned if a sequence waits for answers of the cache.
    pub(super) fn on_answers(&mut self) {
        self.scan.is_due |= self.scan.is_due_when_answered;
    }

    /// Has the queue scanned if the last scan is old. A queue that is empty while the cache has
    /// answered everything wants no memory.
    pub(super) fn prepare_scan(&mut self, now: Duration, awaits_answers: bool) {
        if self.queued.is_empty() && !awaits_answers {
            self.is_memory_short = false;
        }
        self.scan.is_due |= now.saturating_sub(self.scan.queue_scanned_at) >= QUEUE_SCAN_INTERVAL;
    }

    /// Whether the queue is to be scanned.
    pub(super) fn is_scan_due(&self) -> bool {
        self.scan.is_due && !self.queued.is_empty()
    }

    /// Begins a scan. While memory is short, a start that is under way comes first: the scan
    /// then waits for the cache's answers, and the result is false.
    pub(super) fn begin_scan(&mut self, now: Duration, start_pending: bool) -> bool {
        self.scan.is_due_when_answered = self.is_memory_short && start_pending;
        if !self.scan.is_due_when_answered {
            self.scan.queue_scanned_at = now;
        }
        !self.scan.is_due_when_answered
    }

    /// Returns the next sequence to start among these. If there is none, the condition that they
    /// wait for causes an event, and no scan is due until then.
    pub(super) fn choose(
        &mut self,
        waiting: &[QueuedView],
        locality_service: f64,
        limits: StartLimits,
    ) -> Option<NextStart> {
        let next = waiting::next(waiting, locality_service, &self.turns, limits);
        if next.is_none() {
            self.scan.is_due = false;
        }
        next
    }

    /// Records whether a sequence was preempted at once for the one that would start next.
    pub(super) fn end_scan(&mut self, may_start: bool) {
        self.scan.is_due = may_start;
    }

    /// Records that a sequence has its slot, for the time between starts.
    pub(super) fn note_start(&mut self, now: Duration) {
        self.start_rate.note(now, !self.queued.is_empty());
    }

    // Turns.

    /// Records a start, and whether it is in the turn of its class.
    pub(super) fn start(&mut self, sequence: &mut Sequence, is_turn: bool) {
        if is_turn && sequence.begin_turn() {
            self.turns.begin(sequence.priority());
        } else {
            self.turns.start(sequence.priority());
        }
    }

    /// Records that a sequence in its turn has memory: users of its class that gave their turns
    /// up may have the next ones.
    pub(super) fn has_memory(&mut self, sequence: &Sequence) {
        if sequence.is_in_turn() {
            let priority = sequence.priority();
            self.turned_away.retain(|(turned, _)| *turned != priority);
        }
    }

    /// Whether the last turn of its user in its class was given up.
    pub(super) fn is_turned_away(&self, sequence: &Sequence) -> bool {
        self.turned_away
            .contains(&(sequence.priority(), sequence.user()))
    }

    /// Ends the sequence's turn: it was used up, or is of no use to it. Other sequences may take
    /// its slot.
    pub(super) fn end_turn(&mut self, sequence: &mut Sequence) {
        if sequence.end_turn() {
            self.turns.end(sequence.priority());
            self.scan.is_due = true;
        }
    }

    /// Charges the turns for a planned step. A sequence that has waited too long for memory
    /// gives its turn up, and its user goes after the others of the class.
    pub(super) fn step_turns(&mut self, sequences: &mut Sequences, starting: &[SequenceKey]) {
        let without_slot = self.queued.iter().chain(starting);
        let waits = |key: &&SequenceKey| sequences[**key].waits_for_memory_in_turn();
        let waiting: Vec<SequenceKey> = without_slot.filter(waits).copied().collect();
        for key in waiting {
            let sequence = &mut sequences[key];
            self.turns.wait_for_memory(sequence.priority());
            if sequence.wait_for_memory_in_turn() {
                self.give_turn_up(key, sequences, starting);
            }
        }
        self.turns.step();
    }

    fn give_turn_up(
        &mut self,
        key: SequenceKey,
        sequences: &mut Sequences,
        starting: &[SequenceKey],
    ) {
        self.end_turn(&mut sequences[key]);
        self.stop_waiting_for_memory(key);
        let of = |key: SequenceKey| (sequences[key].priority(), sequences[key].user());
        self.turned_away.insert(of(key));
        // Forgets users without waiting sequences.
        let without_slot = self.queued.iter().chain(starting);
        let there: BTreeSet<(Priority, UserId)> = without_slot.map(|key| of(*key)).collect();
        self.turned_away.retain(|turned| there.contains(turned));
    }

    // Memory.

    /// Returns the class below which, and in which, no sequence starts before the one that waits
    /// for memory.
    pub(super) fn memory_priority(&self, sequences: &Sequences) -> Option<Priority> {
        Some(sequences[self.memory_waiter?].memory_priority())
    }

    /// Whether a sequence waits for memory until another ends.
    pub(super) fn has_memory_waiter(&self) -> bool {
        self.memory_waiter.is_some()
    }

    /// Records that the cache has no memory for a sequence that was starting.
    pub(super) fn deny_start(&mut self, priority: Priority) {
        self.turns.undo_start(priority);
        self.is_memory_short = true;
    }

    /// Has the others of its class wait while this queued sequence waits for memory, unless one
    /// of a class as high waits already.
    pub(super) fn wait_for_memory(&mut self, key: SequenceKey, sequences: &Sequences) {
        let priority = sequences[key].memory_priority();
        if self
            .memory_priority(sequences)
            .is_none_or(|other| other < priority)
        {
            self.memory_waiter = Some(key);
        }
    }

    /// Records that this sequence no longer waits for memory.
    pub(super) fn stop_waiting_for_memory(&mut self, key: SequenceKey) {
        self.memory_waiter = self.memory_waiter.filter(|waiter| *waiter != key);
    }

    /// Lets any sequence start: the one that waited for memory cannot have it, and the next one
    /// may be smaller.
    pub(super) fn end_memory_wait(&mut self) {
        self.memory_waiter = None;
    }

    /// Has the queue scanned, since memory may have been freed.
    pub(super) fn on_memory_freed(&mut self) {
        self.memory_waiter = None;
        self.scan.is_due = true;
    }

    // Probes.

    /// Returns the next questions how much of the queued prompts is cached. Each sequence has
    /// its turn.
    pub(super) fn next_probes(&mut self, sequences: &Sequences) -> Vec<ProbePrefix> {
        let from = self.probe_from % self.queued.len();
        let (before, after) = self.queued.split_at(from);
        let probes = after.iter().chain(before).take(PROBES_MAX);
        let probes: Vec<ProbePrefix> = probes.map(|key| sequences[*key].probe()).collect();
        self.probe_from = from + probes.len();
        probes
    }

    pub(super) fn check_integrity(&self, sequences: &Sequences) {
        let queued = sequences.count(|e| matches!(e.phase(), Phase::Queued));
        assert_eq!(queued, self.queued.len(), "the queue is complete");
        let ids = self.queued.iter().map(|key| sequences[*key].id());
        assert!(ids.is_sorted(), "the queue is in order of arrival");
        let waiter = self.memory_waiter;
        assert!(
            waiter.is_none_or(|waiter| self.queued.contains(&waiter)),
            "a sequence waits for memory in the queue"
        );
        let mut in_turn = [0; Priority::COUNT];
        for key in sequences.keys().filter(|key| sequences[*key].is_in_turn()) {
            let sequence = &sequences[key];
            assert!(!sequence.is_finished() && !sequence.is_paused());
            in_turn[sequence.priority() as usize] += 1;
        }
        assert_eq!(in_turn, self.turns.held(), "sequences in turns are counted");
    }
}

impl StartRate {
    fn note(&mut self, now: Duration, others_wait: bool) {
        let before = self.started_at.replace(now);
        if let (Some(before), true) = (before, others_wait) {
            let since = now.saturating_sub(before);
            self.start_interval = Some(mean(self.start_interval, since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Submission;
    use crate::scheduler::tests::submission;

    fn queue_of(classes: &[Priority]) -> (WaitingQueue, Sequences, Vec<SequenceKey>) {
        let (mut queue, mut sequences) = (WaitingQueue::new(4), Sequences::default());
        let insert = |(number, priority): (usize, &Priority)| {
            let submission = Submission {
                priority: *priority,
                ..submission(number as u64)
            };
            let key = sequences.insert(Sequence::new(submission, 100, Duration::ZERO));
            queue.insert(key, &sequences);
            key
        };
        let keys = classes.iter().enumerate().map(insert).collect();
        (queue, sequences, keys)
    }

    #[test]
    fn sequence_returns_to_its_place() {
        let (mut queue, sequences, keys) = queue_of(&[Priority::Normal; 3]);
        queue.take(keys[1]);
        assert_eq!(queue.queued(), [keys[0], keys[2]]);
        queue.insert(keys[1], &sequences);
        queue.check_integrity(&sequences);
    }

    #[test]
    fn highest_class_waits_for_memory() {
        let classes = [Priority::Normal, Priority::Urgent, Priority::Background];
        let (mut queue, sequences, keys) = queue_of(&classes);
        for key in &keys {
            queue.wait_for_memory(*key, &sequences);
        }
        assert_eq!(queue.memory_priority(&sequences), Some(Priority::Urgent));
        queue.stop_waiting_for_memory(keys[0]);
        assert!(queue.has_memory_waiter(), "another one waits");
        queue.on_memory_freed();
        assert!(!queue.has_memory_waiter() && queue.is_scan_due());
    }

    #[test]
    fn one_sequence_starts_at_a_time_while_memory_is_short() {
        let (mut queue, _, _) = queue_of(&[Priority::Normal]);
        assert!(queue.begin_scan(Duration::ZERO, true));
        queue.deny_start(Priority::Normal);
        assert!(!queue.begin_scan(Duration::ZERO, true));
        queue.end_scan(false);
        queue.on_answers();
        assert!(queue.is_scan_due(), "the answers may have freed memory");
        assert!(queue.begin_scan(Duration::ZERO, false));
    }

    #[test]
    fn probes_reach_the_whole_queue() {
        let (mut queue, sequences, keys) = queue_of(&[Priority::Normal; PROBES_MAX + 3]);
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            let probes = queue.next_probes(&sequences);
            assert_eq!(probes.len(), PROBES_MAX);
            seen.extend(probes.iter().map(|probe| probe.sequence));
        }
        assert_eq!(seen.len(), keys.len());
    }

    #[test]
    fn start_is_estimated_from_starts_while_others_wait() {
        let (mut queue, _, _) = queue_of(&[Priority::Normal; 2]);
        let at = Duration::from_secs;
        queue.note_start(at(1));
        assert_eq!(queue.estimated_start(0), None);
        queue.note_start(at(3));
        assert_eq!(queue.estimated_start(1), Some(at(4)));
    }
}
