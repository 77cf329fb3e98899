//! Leases of segments.

use crate::SegmentId;

/// The right to use a segment. The cache does not evict a segment while a lease lives.
pub type Lease = motet_sync::lease::Lease<SegmentId>;
/// The count that all leases of one segment share. The cache owns it.
pub type LeaseCount = motet_sync::lease::LeaseCount<SegmentId>;
