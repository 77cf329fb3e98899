//! Memory that the pool frees leaves the process, by the system's account.
#![cfg(target_os = "linux")]

use std::fs;
use std::time::Duration;

use motet_storage::tiers::BufferPool;

const MEBI: usize = 1 << 20;

/// Bytes of this process that are in memory.
fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let resident = pages.split(' ').nth(1).expect("its second number");
    4096 * resident.parse::<usize>().expect("a number")
}

#[test]
fn trimmed_memory_returns_to_the_system() {
    // Uses sizes that are cut from large pages and sizes that are not. Other tests run beside
    // this one, and take a few megabytes.
    for (bytes, count) in [(MEBI, 160), (20 * MEBI, 8)] {
        let pool = BufferPool::new(200 * MEBI);
        let before = resident_bytes();
        let fill = |mut buffer: motet_storage::tiers::Buffer| {
            buffer.fill(1);
            buffer
        };
        let buffers: Vec<_> = (0..count)
            .map(|_| fill(pool.take(bytes).expect("memory")))
            .collect();
        let full = resident_bytes();
        assert!(full > before + 130 * MEBI, "{before}, then {full}");
        drop(buffers);
        assert_eq!(pool.stats().idle_bytes, 160 * MEBI);
        pool.trim(Duration::ZERO);
        let after = resident_bytes();
        assert!(after + 130 * MEBI < full, "{full}, then {after}");
    }
}
