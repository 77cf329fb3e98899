//! Leases of segments.

use crate::SegmentId;

/// The right to use a segment; while it lives, the segment is not evicted.
pub type Lease = motet_sync::lease::Lease<SegmentId>;
/// The count that all leases of one segment share. The cache owns it.
pub type LeaseWord = motet_sync::lease::LeaseWord<SegmentId>;
