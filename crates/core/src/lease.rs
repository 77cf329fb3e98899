//! Leases of segments.

use crate::SegmentId;

/// The right to use a segment; while it lives, the segment is not evicted.
pub type Lease = motet_sync::lease::Lease<SegmentId>;
/// What all leases of one segment share. Its owner is the cache.
pub type LeaseWord = motet_sync::lease::LeaseWord<SegmentId>;
