//! The system's counters for a process, and its cache of files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Ticks of `/proc/PID/stat` in a second, on every Linux of the last twenty years.
const JIFFIES_PER_SECOND: f64 = 100.0;
const KIB: u64 = 1 << 10;

/// A process of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    folder: PathBuf,
}

impl Process {
    /// # Errors
    ///
    /// Where the system does not report counters as Linux does.
    pub(crate) fn new(id: u32) -> Result<Self> {
        let process = Self {
            folder: PathBuf::from(format!("/proc/{id}")),
        };
        process.processor_seconds()?;
        Ok(process)
    }

    /// This process.
    #[cfg(any(feature = "programs", test))]
    pub(crate) fn own() -> Result<Self> {
        Self::new(std::process::id())
    }

    /// Processor seconds of all its threads since it began, ended threads included, in steps of
    /// 10 ms.
    pub(crate) fn processor_seconds(&self) -> Result<f64> {
        let text = self.read("stat")?;
        jiffies(&text)
            .map(|jiffies| jiffies as f64 / JIFFIES_PER_SECOND)
            .with_context(|| format!("`stat` has no times: {text}"))
    }

    /// Bytes of its memory that are resident.
    pub(crate) fn resident_bytes(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    /// Peak of its resident bytes since [`Process::reset_peak`].
    pub(crate) fn peak_bytes(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    /// Resets the peak to the bytes that are resident now.
    pub(crate) fn reset_peak(&self) -> Result<()> {
        let path = self.folder.join("clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Processor seconds of its threads whose names begin with `name`.
    pub(crate) fn thread_seconds(&self, name: &str) -> Result<f64> {
        let threads = self.folder.join("task");
        let listed = std::fs::read_dir(&threads)
            .with_context(|| format!("cannot list {}", threads.display()))?;
        let mut seconds = 0.0;
        for thread in listed {
            let thread = thread.context("cannot list threads")?.path();
            // A thread may have ended since it was listed.
            let (Ok(named), Ok(spent)) = (
                std::fs::read_to_string(thread.join("comm")),
                std::fs::read_to_string(thread.join("schedstat")),
            ) else {
                continue;
            };
            if named.starts_with(name) {
                seconds += on_processor_seconds(&spent).context("`schedstat` is no number")?;
            }
        }
        Ok(seconds)
    }

    fn status(&self, field: &str) -> Result<u64> {
        let text = self.read("status")?;
        match kibibytes(&text, field) {
            Some(kibibytes) => Ok(kibibytes * KIB),
            None => bail!("`status` has no {field}"),
        }
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }
}

/// Removes a file from the system's cache, so that it is read from the disk. Returns false where that
/// is impossible: it takes GNU's `dd`, which calls `posix_fadvise`.
pub(crate) fn forget_cached(path: &Path) -> bool {
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", path.display()));
    dd.args(["iflag=nocache", "count=0"]);
    let status = dd.stdin(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Sum of `utime` and `stime` of `/proc/PID/stat`. The name before them may hold any character.
fn jiffies(stat: &str) -> Option<u64> {
    const UTIME: usize = 11;
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut times = after_name.split_whitespace().skip(UTIME);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

/// The first number of `schedstat`: nanoseconds on a processor.
fn on_processor_seconds(schedstat: &str) -> Option<f64> {
    let nanoseconds: f64 = schedstat.split_whitespace().next()?.parse().ok()?;
    Some(nanoseconds / 1e9)
}

fn kibibytes(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_read() {
        let stat = "7 (a ) b) R 1 1 1 0 -1 4 54 65 14 2 600 18 3 2 20 0 1 0 86399 16961536 3346";
        assert_eq!(jiffies(stat), Some(618));
        assert_eq!(jiffies("7 (a) R 1"), None);
        let status = "VmHWM:\t  218120 kB\nVmRSS:\t   13552 kB\n";
        assert_eq!(kibibytes(status, "VmRSS:"), Some(13_552));
        assert_eq!(kibibytes(status, "VmSwap:"), None);
        assert_eq!(on_processor_seconds("1500000000 23 7\n"), Some(1.5));
        assert_eq!(on_processor_seconds(""), None);
    }

    #[test]
    fn own_process_is_measured() {
        let own = Process::own().unwrap();
        own.reset_peak().unwrap();
        let before = own.peak_bytes().unwrap();
        let held = vec![1_u8; 64 << 20];
        assert!(own.resident_bytes().unwrap() >= before + (32 << 20));
        drop(held);
        assert!(own.peak_bytes().unwrap() >= before + (32 << 20));
        assert!(Process::new(u32::MAX).is_err());
    }
}
