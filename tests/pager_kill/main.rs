//! Kills an engine with a disk tier while it writes, and damages files of another. Each starts
//! again and serves, and none of its output comes from a damaged file.
//!
//! The killed process is this test itself, run again. `MOTET_KILLS` and `MOTET_DAMAGES` set the
//! numbers of kills and damages.

mod served;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use motet_testkit::folder::Folder;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use served::{FOLDER, Served};

fn number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

/// The process to be killed: it serves until then, and prints a line for each answer.
#[test]
fn serves_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else {
        return;
    };
    served::run(async {
        let mut served = Served::start(Path::new(&folder)).await;
        // Start at a turn that differs between processes.
        for turn in std::process::id() as usize % 100.. {
            let cached = served.one(turn).await;
            let stats = served.engine.stats().pager;
            println!(
                "served cached={cached} read={} written={}",
                stats.read, stats.written
            );
        }
    });
}

#[test]
fn engine_killed_while_writing_starts_again() {
    let folder = Folder::new("kill");
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let kills = number("MOTET_KILLS", 100);
    let (mut found, mut written, mut torn) = (0, 0, 0);
    for kill in 0..kills {
        let mut child = Running::start(&folder.0);
        // It answers each time before it is killed.
        let mut line = child
            .line()
            .unwrap_or_else(|| panic!("it serves after {kill} kills"));
        for _ in 0..rng.random_range(0..20) {
            line = child.line().expect("it serves on");
        }
        std::thread::sleep(Duration::from_micros(rng.random_range(0..3_000)));
        child.0.kill().expect("it runs");
        let status = child.0.wait().expect("it ran");
        torn += u64::from(!files_with_extension(&folder.0, "part").is_empty());
        assert_eq!(
            status.code(),
            None,
            "it must be killed, and not fail before: {status}"
        );
        let value = |name: &str| {
            let word = line
                .split(' ')
                .find_map(|word| word.strip_prefix(name))
                .expect("a line");
            word.parse::<u64>().expect("a number")
        };
        found += u64::from(value("read=") > 0);
        written += value("written=");
    }
    println!(
        "{kills} kills, {torn} in the middle of a file: {written} files written, {found} \
         starts that found and used some"
    );
    assert!(written > kills, "it was killed while it wrote");
    assert!(found > kills / 4, "cached state was used");
}

#[test]
fn damaged_files_are_never_used() {
    let folder = Folder::new("damage");
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let damages = number("MOTET_DAMAGES", 1_000);
    let (mut done, mut rounds, mut cached) = (0, 0, 0);
    served::run(async {
        while done < damages {
            let mut served = Served::start(&folder.0).await;
            for turn in 0..12 {
                cached += served.one(12 * rounds + turn).await;
            }
            served.flush().await;
            for _ in 0..25 {
                done += u64::from(damage(&folder.0, &mut rng));
            }
            rounds += 1;
            assert!((rounds as u64) < damages, "there are files to damage");
        }
    });
    println!("{done} damages in {rounds} rounds: {cached} tokens were not computed again");
    assert!(cached > 0);
}

fn files_with_extension(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == kind))
        .collect();
    files.sort();
    files
}

/// Flips a bit of a file, or truncates it. Returns false if there is no file.
fn damage(folder: &Path, rng: &mut impl Rng) -> bool {
    let files = files_with_extension(folder, "segment");
    if files.is_empty() {
        return false;
    }
    let path = &files[rng.random_range(0..files.len())];
    let mut bytes = std::fs::read(path).expect("a file");
    if bytes.is_empty() {
        return false;
    }
    let at = rng.random_range(0..bytes.len());
    if rng.random_bool(0.7) {
        bytes[at] ^= 1 << rng.random_range(0..8);
    } else {
        bytes.truncate(at);
    }
    std::fs::write(path, bytes).expect("the file system works");
    true
}

/// A process that serves until it is killed.
struct Running(Child, BufReader<std::process::ChildStdout>);

impl Running {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["serves_until_it_is_killed", "--exact", "--nocapture"])
            .env(FOLDER, folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        Self(child, lines)
    }

    /// The next of its lines that reports an answer; `None` when it has ended.
    fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.1.read_line(&mut line).expect("text") == 0 {
                return None;
            }
            if let Some(at) = line.find("served ") {
                return Some(line[at..].trim().to_string());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
