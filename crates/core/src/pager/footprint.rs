//! Bytes that a copy takes of a tier's budget.
//!
//! The tiers allocate by these functions, so that the pager knows the size of a copy before it
//! exists.

use motet_protocol::TokenId;

/// Size of a page; memory and files are allocated in whole pages.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a file before its tokens.
pub const FILE_HEADER_BYTES: usize = 192;

/// Returns the host memory of a buffer of `bytes` bytes: at least a page, and at most an eighth
/// more than needed. Few different sizes exist, so most buffers find memory of their size.
#[must_use]
pub fn host_bytes(bytes: usize) -> usize {
    let pages = bytes.div_ceil(PAGE_BYTES).max(1);
    let step = (pages.next_power_of_two() / 16).max(1);
    // A size that overflows is more than any machine has; so is half of the address space.
    let bytes = pages.next_multiple_of(step).checked_mul(PAGE_BYTES);
    bytes.unwrap_or(usize::MAX).min(isize::MAX as usize)
}

/// Returns the bytes of the disk that a copy of so many tokens takes, with a payload of `bytes`
/// bytes.
#[must_use]
pub fn disk_bytes(tokens: usize, bytes: usize) -> usize {
    file_bytes(header_bytes(tokens).saturating_add(bytes))
}

/// Returns the bytes of the header of a file with so many tokens.
#[must_use]
pub fn header_bytes(tokens: usize) -> usize {
    FILE_HEADER_BYTES + size_of::<TokenId>() * tokens
}

/// Returns the bytes of the disk that a file of `bytes` bytes takes.
#[must_use]
pub fn file_bytes(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}
