//! Requests that wait until a leader has computed the tokens that they share with it.

use super::OpenSlot;
use super::slots::Leader;
use motet_protocol::SequenceId;

/// The requests that wait for a leader, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    waiting: Vec<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    request: OpenSlot,
    leader: Leader,
}

impl WaitingRequests {
    pub(super) fn add(&mut self, request: OpenSlot, leader: Leader) {
        self.waiting.push(WaitingRequest { request, leader });
    }

    pub(super) fn contains(&self, sequence: SequenceId) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|one| one.request.sequence == sequence)
    }

    /// Forgets the request of a finished sequence, if it waits.
    pub(super) fn forget(&mut self, sequence: SequenceId) {
        self.waiting.retain(|one| one.request.sequence != sequence);
    }

    /// Removes and returns the requests that wait for this leader.
    pub(super) fn take_of(&mut self, leader: SequenceId) -> impl Iterator<Item = OpenSlot> + use<> {
        let taken = self.take(|one| one.sequence == leader);
        taken.into_iter().map(|one| one.request)
    }

    /// Removes and returns the requests for more than the first `at` tokens of this leader:
    /// those would wait forever.
    pub(super) fn take_past(
        &mut self,
        leader: SequenceId,
        at: usize,
    ) -> impl Iterator<Item = OpenSlot> + use<> {
        let taken = self.take(|one| one.sequence == leader && one.at > at);
        taken.into_iter().map(|one| one.request)
    }

    /// Removes and returns the requests for at most the first `computed` tokens of this
    /// leader, each with the offset that it waits for. The shortest come first, so that the
    /// leader's tail is sealed from its front.
    pub(super) fn take_reached(
        &mut self,
        leader: SequenceId,
        computed: usize,
    ) -> impl Iterator<Item = (OpenSlot, usize)> + use<> {
        let mut taken = self.take(|one| one.sequence == leader && one.at <= computed);
        taken.sort_by_key(|one| one.leader.at);
        taken.into_iter().map(|one| (one.request, one.leader.at))
    }

    /// Lets the requests that wait for `from` wait for the sequence that took over its slot.
    pub(super) fn rename_leader(&mut self, from: SequenceId, to: SequenceId) {
        for request in &mut self.waiting {
            if request.leader.sequence == from {
                request.leader.sequence = to;
            }
        }
    }

    /// Panics unless each leader is live.
    pub(super) fn check_integrity(&self, is_live: impl Fn(SequenceId) -> bool) {
        for request in &self.waiting {
            assert!(is_live(request.leader.sequence), "a leader is live");
        }
    }

    fn take(&mut self, is_taken: impl Fn(&Leader) -> bool) -> Vec<WaitingRequest> {
        let (taken, others) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|one| is_taken(&one.leader));
        self.waiting = others;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADER: SequenceId = SequenceId(1);
    const OTHER: SequenceId = SequenceId(2);

    /// Requests 10, 11 and 12 wait for a leader at 8, 4 and 6; request 13 waits for another.
    fn waiting() -> WaitingRequests {
        let mut waiting = WaitingRequests::default();
        let all = [
            (10, LEADER, 8),
            (11, LEADER, 4),
            (12, LEADER, 6),
            (13, OTHER, 2),
        ];
        for (name, sequence, at) in all {
            let request = OpenSlot::new(SequenceId(name), [1; 9], 0);
            waiting.add(request, Leader { sequence, at });
        }
        waiting
    }

    fn names(taken: impl Iterator<Item = OpenSlot>) -> Vec<u64> {
        taken.map(|request| request.sequence.0).collect()
    }

    #[test]
    fn reached_requests_come_shortest_first() {
        let mut waiting = waiting();
        let reached = waiting.take_reached(LEADER, 6);
        let reached: Vec<_> = reached.map(|(one, at)| (one.sequence.0, at)).collect();
        assert_eq!(reached, [(11, 4), (12, 6)]);
        assert!(waiting.contains(SequenceId(10)) && !waiting.contains(SequenceId(11)));
    }

    #[test]
    fn others_come_in_the_order_of_their_arrival() {
        assert_eq!(names(waiting().take_of(LEADER)), [10, 11, 12]);
        assert_eq!(names(waiting().take_past(LEADER, 4)), [10, 12]);
        let mut renamed = waiting();
        renamed.rename_leader(LEADER, OTHER);
        renamed.forget(SequenceId(12));
        renamed.check_integrity(|leader| leader == OTHER);
        assert_eq!(names(renamed.take_of(OTHER)), [10, 11, 13]);
    }
}
