//! The system's counters for another process: processor time and resident memory.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

/// Ticks of `/proc/PID/stat` in a second, on every Linux of the last twenty years.
const JIFFIES_PER_SECOND: f64 = 100.0;
const KIB: u64 = 1 << 10;

/// A process of this machine.
#[derive(Clone, Debug)]
pub(super) struct Process {
    folder: PathBuf,
}

impl Process {
    /// # Errors
    ///
    /// Where the system does not report counters as Linux does.
    pub(super) fn new(id: u32) -> Result<Self> {
        let process = Self {
            folder: PathBuf::from(format!("/proc/{id}")),
        };
        process.processor_seconds()?;
        Ok(process)
    }

    /// Processor seconds of all its threads since it began, ended threads included, in steps of
    /// 10 ms.
    pub(super) fn processor_seconds(&self) -> Result<f64> {
        let text = self.read("stat")?;
        jiffies(&text)
            .map(|jiffies| jiffies as f64 / JIFFIES_PER_SECOND)
            .with_context(|| format!("`stat` has no times: {text}"))
    }

    /// Bytes of its memory that are resident.
    pub(super) fn resident_bytes(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    /// Peak of its resident bytes since [`Process::reset_peak`].
    pub(super) fn peak_bytes(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    /// Resets the peak to the bytes that are resident now.
    pub(super) fn reset_peak(&self) -> Result<()> {
        let path = self.folder.join("clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("cannot write {}", path.display()))
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

/// Sum of `utime` and `stime` of `/proc/PID/stat`. The name before them may hold any character.
fn jiffies(stat: &str) -> Option<u64> {
    const UTIME: usize = 11;
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut times = after_name.split_whitespace().skip(UTIME);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
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
    }

    #[test]
    fn own_process_is_measured() {
        let own = Process::new(std::process::id()).unwrap();
        own.reset_peak().unwrap();
        let before = own.peak_bytes().unwrap();
        let held = vec![1_u8; 64 << 20];
        assert!(own.resident_bytes().unwrap() >= before + (32 << 20));
        drop(held);
        assert!(own.peak_bytes().unwrap() >= before + (32 << 20));
        assert!(Process::new(u32::MAX).is_err());
    }
}
