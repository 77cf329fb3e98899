//! The counters and totals that the pager reports.

/// Counters and totals of the pager. One flat list: each field is a metric of its own, and no rule
/// holds several of them together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagerStats {
    /// Copies.
    pub copies: usize,
    /// Copies in host memory.
    pub host_copies: usize,
    /// Host bytes in use, including those reserved for copies that are on their way.
    pub host_bytes: usize,
    /// Copies on the disk.
    pub disk_copies: usize,
    /// Bytes of files, including those reserved for files that are being written.
    pub disk_bytes: usize,
    /// Host bytes of the labels of all copies, in whatever tier the copies are.
    pub label_bytes: usize,
    /// Segments copied to host memory so far.
    pub packed: u64,
    /// Copies loaded for a sequence so far.
    pub unpacked: u64,
    /// Copies read from the disk so far.
    pub read: u64,
    /// Copies read from the disk before a sequence waited for them; included in `read`.
    pub prefetches: u64,
    /// Copies that a sequence waited for and that were in host memory.
    pub host_hits: u64,
    /// Copies that a sequence waited for and that had to be read from the disk.
    pub disk_hits: u64,
    /// Copies written to the disk so far.
    pub written: u64,
    /// Offload candidates rejected for lack of memory so far.
    pub rejected: u64,
    /// Lookups so far where computing some tokens was expected to be faster than loading their
    /// copies.
    pub computed_instead: u64,
    /// Jobs that failed so far.
    pub failed: u64,
    /// Whether the disk does not respond, or has failed and not succeeded since.
    pub disk_degraded: bool,
    /// Questions to the remote tier so far.
    pub remote_asks: u64,
    /// Copies fetched from the remote tier so far.
    pub fetched: u64,
    /// Copies sent to the remote tier so far; those that it had already are included.
    pub sent: u64,
    /// Whether the remote tier does not respond, or has failed and not succeeded since.
    pub remote_degraded: bool,
}
