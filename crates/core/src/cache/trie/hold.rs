//! The references to one node, and the leases of its segment.

use motet_protocol::SegmentId;
use motet_protocol::lease::{Lease, LeaseCount};

/// The references to one node. While there are any, its segment is leased.
#[derive(Debug)]
pub(super) struct Hold {
    lease_count: LeaseCount,
    /// Held while `ref_count` is not 0.
    lease: Option<Lease>,
    /// Slots and pins whose path leads through the node.
    ref_count: u32,
}

impl Hold {
    /// A segment without references.
    pub(super) fn new(segment: SegmentId) -> Self {
        Self {
            lease_count: LeaseCount::new(segment),
            lease: None,
            ref_count: 0,
        }
    }

    /// Another segment with as many references.
    pub(super) fn with_segment(&self, segment: SegmentId) -> Self {
        let lease_count = LeaseCount::new(segment);
        let lease = if self.is_held() {
            lease_count.lease()
        } else {
            None
        };
        Self {
            lease_count,
            lease,
            ref_count: self.ref_count,
        }
    }

    pub(super) fn segment(&self) -> SegmentId {
        self.lease_count.segment()
    }

    pub(super) fn lease_count(&self) -> &LeaseCount {
        &self.lease_count
    }

    pub(super) fn ref_count(&self) -> u32 {
        self.ref_count
    }

    pub(super) fn is_held(&self) -> bool {
        self.ref_count > 0
    }

    /// Whether the segment has neither references nor leases.
    pub(super) fn is_free(&self) -> bool {
        !self.is_held() && self.lease_count.leases() == 0
    }

    /// Adds a reference. Returns whether it is the first, which leases the segment.
    pub(super) fn add(&mut self) -> bool {
        self.ref_count += 1;
        if self.ref_count > 1 {
            return false;
        }
        self.lease = self.lease_count.lease();
        assert!(self.lease.is_some(), "a node in the trie is not evicted");
        true
    }

    /// Removes a reference. Returns whether it was the last, whose lease ends.
    pub(super) fn remove(&mut self) -> bool {
        assert!(self.is_held(), "a released node was held");
        self.ref_count -= 1;
        if self.is_held() {
            return false;
        }
        self.lease = None;
        true
    }

    /// Ends the leases of the segment, so that another can take its place. Returns the segment.
    /// Returns `None` and changes nothing if a lease exists outside the trie.
    pub(super) fn end_leases(&mut self) -> Option<SegmentId> {
        let ours = usize::from(self.lease.is_some());
        if self.lease_count.leases() != ours {
            return None;
        }
        self.lease = None;
        // Only the trie leases its segments, and it is borrowed mutably here.
        assert!(self.lease_count.try_evict(), "no lease is taken meanwhile");
        Some(self.segment())
    }

    /// Gives the segment a new lease count, so that leases outside the trie no longer protect
    /// the node.
    pub(super) fn renew(&mut self) {
        *self = self.with_segment(self.segment());
    }

    /// Panics unless exactly a held segment is leased.
    pub(super) fn check_integrity(&self) {
        assert_eq!(
            self.lease.is_some(),
            self.is_held(),
            "exactly the held nodes are leased"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_share_one_lease() {
        let mut hold = Hold::new(SegmentId(1));
        assert!(hold.add() && !hold.add());
        assert_eq!(hold.lease_count().leases(), 1);
        assert!(!hold.remove() && hold.remove());
        assert!(hold.is_free());
        hold.check_integrity();
    }

    #[test]
    fn leases_end_unless_one_is_outside() {
        let mut hold = Hold::new(SegmentId(1));
        hold.add();
        let outside = hold.lease_count().lease();
        assert_eq!(hold.end_leases(), None);
        hold.check_integrity();
        drop(outside);
        assert_eq!(hold.end_leases(), Some(SegmentId(1)));
        let next = hold.with_segment(SegmentId(2));
        next.check_integrity();
        assert_eq!((next.ref_count(), next.lease_count().leases()), (1, 1));
    }
}
