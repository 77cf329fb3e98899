//! Processes that are killed while they write.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use motet_protocol::CopyId;
use motet_storage::tiers::{BufferPool, DiskTier, Tier};

use super::folder::{Folder, IDENTITY, PLENTY_BYTES, StoredCopy, copy, limits, load, store};

/// Names the folder of a process that is to be killed.
const FOLDER: &str = "MOTET_TIER_TO_KILL";
const ROUNDS: u32 = 20;
/// Number of copies that a process stores before it removes the oldest.
const STORED_MAX: u64 = 4;

fn nth(name: u64) -> StoredCopy {
    copy(name as u32, 40_000 + name as usize * 1_000)
}

/// Not a test, but the process that is killed: prints the names that it has stored and removed.
#[test]
#[ignore = "runs until it is killed"]
fn stores_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let pool = BufferPool::new(1 << 20);
    let opened = DiskTier::open(
        Path::new(&folder),
        limits(PLENTY_BYTES),
        IDENTITY,
        pool,
        CopyId(1 << 32),
    );
    let (mut tier, _) = opened.expect("it opens");
    let mut out = std::io::stdout();
    for name in 0..5_000_u64 {
        if let Some(old) = name.checked_sub(STORED_MAX) {
            writeln!(out, "removing {old}").expect("the test reads the pipe");
            tier.remove(CopyId(old)).expect("it goes");
        }
        store(&mut tier, name, &nth(name)).expect("it fits");
        writeln!(out, "stored {name}").expect("the test reads the pipe");
    }
}

#[test]
fn killed_process_leaves_only_completed_copies() {
    let mut unfinished = 0;
    for round in 0..ROUNDS {
        let folder = Folder::new();
        let mut child = Command::new(std::env::current_exe().expect("a test is a program"))
            .args(["--exact", "killed::stores_until_it_is_killed"])
            .args(["--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut output_lines = Vec::new();
        for line in lines.by_ref() {
            output_lines.push(line.expect("text"));
            if output_lines.iter().any(|line| line.starts_with("stored")) {
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(u64::from(round * 397 % 4_000)));
        child.kill().expect("it runs");
        child.wait().expect("it ran");
        output_lines.extend(lines.map_while(Result::ok));
        let named = |what: &str| {
            let names = output_lines
                .iter()
                .filter_map(|line| line.strip_prefix(what));
            names.filter_map(|name| name.parse().ok()).max()
        };
        let stored: u64 = named("stored ").expect("at least one");
        let first = named("removing ").map_or(0, |removed: u64| removed + 1);

        let (mut tier, recovered) = folder.open();
        unfinished += recovered.removed.len();
        for (id, label) in &recovered.copies {
            let name = u64::from(label.tokens[1]);
            assert!(
                (first.saturating_sub(1)..=stored + 1).contains(&name),
                "{name}"
            );
            load(&mut tier, id.0, &nth(name)).expect("it is whole");
        }
        let found = |name: u64| {
            let mut labels = recovered.copies.iter().map(|(_, label)| label);
            labels.any(|label| u64::from(label.tokens[1]) == name)
        };
        assert!(
            (first..=stored).all(found),
            "{first}..={stored}: {recovered:?}"
        );
    }
    println!("{unfinished} files were being written");
}
