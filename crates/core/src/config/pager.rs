//! Settings of the pager, and of its folder.

use std::path::PathBuf;
use std::time::Duration;

use super::ConfigError;
use super::bounds::{bytes, time};
use motet_protocol::{Label, Precision, Salt, SaltDigest};

/// Settings of the pager, which keeps copies of device state in host memory and on disk.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "KV offload")]
pub struct PagerConfig {
    /// Host bytes for copies of state that the device holds or held. 0, the default, disables
    /// the pager: evicted state is computed again. A pager is worth its memory where the device
    /// has memory of its own. On a CPU, a larger `cache.device_bytes_max` serves better.
    pub host_bytes_max: usize,
    /// Bytes of `host_bytes_max` for the labels of copies, those on the disk included. A label
    /// takes 1 KiB, and 4 bytes for each token of its copy. For the label of a new copy, the
    /// pager drops the coldest copies from host memory and disk. If that does not suffice, it
    /// does not make the copy.
    ///
    /// `None` is a sixteenth of `host_bytes_max`. Choose more where the disk is much larger
    /// than host memory and segments are short: 64 MiB suffice for 50,000 copies of 64 tokens.
    /// The range is from 1 KiB to seven eighths of `host_bytes_max`; the rest is memory for the
    /// next copies. While blocks are followed, the cache takes as many bytes again for the blocks
    /// of copies.
    pub label_bytes_max: Option<usize>,
    /// Folder for copies that do not fit in host memory, and for the next start; `None` uses no
    /// disk.
    pub disk: Option<DiskConfig>,
    /// A tier that several processes share, below the disk; `None` uses none. The engine's builder
    /// gets the tier itself.
    pub remote: Option<RemoteConfig>,
    /// Number format of state in host memory and on disk. [`Precision::Eight`] takes a quarter
    /// of the bytes of 32-bit numbers, and restores slightly different numbers.
    pub precision: Precision,
    /// Part of the device's bytes that is kept free, or also held in a copy, so that it is
    /// available at once; 0 to 1. With a larger part, more bytes are copied that are never
    /// loaded again.
    pub clean_part: f64,
    /// Tokens by which a live sequence grows until it is copied to host memory again, or an
    /// eighth of its copied tokens where that is more. When the device is lost, the sequence
    /// continues from its copies and computes no more than that again. 0 copies no live
    /// sequence; otherwise from 4 to 2^24. Choose fewer for shorter pauses after a lost device.
    /// Choose more where `label_bytes_max` is short: each copy takes 1 KiB of it, and one copy
    /// on the device.
    pub backup_tokens: usize,
    /// Upper bound on the time for writing cached state to the disk when the engine shuts down
    /// or is flushed. Choose `cache.device_bytes_max` divided by the bytes that the disk writes
    /// in a second.
    pub flush_time: Duration,
    /// Time after which a disk that has not answered is no longer used, until it answers.
    pub disk_timeout: Duration,
}

/// A folder for copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder, which one process uses at a time. Copies that an earlier process left there
    /// are found again if they belong to the same model. The folder holds users' texts: protect
    /// it as such.
    pub folder: PathBuf,
    /// Upper bound on the bytes of the folder's files.
    pub bytes_max: usize,
}

/// Settings of a tier that several processes share, often those of several machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Which state is sent to the tier.
    pub sends: RemoteSends,
    /// Whether state with a cache salt is sent and found, too. By default it stays in the process.
    pub shares_salted: bool,
    /// Number of tokens between two offsets at which a prefix is found; a power of two from 4 to
    /// 65,536, the same in the whole fleet. A shorter prefix is found only as the beginning of a
    /// longer one. With a smaller number, the tier has more entries.
    pub grid_tokens: usize,
    /// How long a sequence waits for an answer of the tier before it computes.
    pub answer_timeout: Duration,
    /// Time after which a tier that has not ended a job is no longer used, until it ends it. A job
    /// has a second more for each 8 MiB that it moves.
    pub timeout: Duration,
}

/// Which state is sent to a tier that several processes share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteSends {
    /// All that a later sequence could use. Any machine of the fleet then continues any
    /// conversation.
    #[default]
    All,
    /// State that a second sequence has used, and state with a retention above 0. Few bytes are sent;
    /// a router must lead each conversation to its machine.
    UsedTwice,
}

/// Range of `pager.backup_tokens`. Below it, a label costs more than its tokens are worth. No
/// sequence is as long as its end.
const BACKUP_TOKENS: std::ops::RangeInclusive<usize> = 4..=1 << 24;

/// Range of `pager.remote.grid_tokens`.
const GRID_TOKENS: std::ops::RangeInclusive<usize> = 4..=1 << 16;

impl Default for PagerConfig {
    fn default() -> Self {
        Self {
            host_bytes_max: 0,
            label_bytes_max: None,
            disk: None,
            remote: None,
            precision: Precision::Full,
            clean_part: 0.5,
            backup_tokens: 64,
            flush_time: Duration::from_secs(5),
            disk_timeout: Duration::from_secs(2),
        }
    }
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            sends: RemoteSends::default(),
            shares_salted: false,
            grid_tokens: 256,
            answer_timeout: Duration::from_millis(250),
            timeout: Duration::from_secs(5),
        }
    }
}

impl PagerConfig {
    /// Returns the bytes of `host_bytes_max` for the labels of copies.
    #[must_use]
    pub fn label_bytes_max(&self) -> usize {
        self.label_bytes_max.unwrap_or(self.host_bytes_max / 16)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !(0.0..=1.0).contains(&self.clean_part) {
            return Err(ConfigError {
                field: "pager.clean_part",
                found: self.clean_part.to_string(),
                expected: "a part of the device's bytes, 0 to 1".into(),
            });
        }
        if self.backup_tokens > 0 && !BACKUP_TOKENS.contains(&self.backup_tokens) {
            return Err(ConfigError {
                field: "pager.backup_tokens",
                found: self.backup_tokens.to_string(),
                expected: format!(
                    "0, so that no live sequence is copied, or from {} to {} tokens",
                    BACKUP_TOKENS.start(),
                    BACKUP_TOKENS.end()
                )
                .into(),
            });
        }
        if self.host_bytes_max > 0 {
            bytes("pager.host_bytes_max", self.host_bytes_max)?;
            time("pager.disk_timeout", self.disk_timeout)?;
        }
        if let Some(disk) = &self.disk {
            bytes("pager.disk.bytes_max", disk.bytes_max)?;
        }
        let most = self.host_bytes_max - self.host_bytes_max / 8;
        if let Some(bytes) = self.label_bytes_max
            && self.host_bytes_max > 0
            && !(Label::RECORD_BYTES..=most).contains(&bytes)
        {
            return Err(ConfigError {
                field: "pager.label_bytes_max",
                found: bytes.to_string(),
                expected: format!(
                    "from {} to seven eighths of `pager.host_bytes_max`, {most}",
                    Label::RECORD_BYTES
                )
                .into(),
            });
        }
        for (is_set, field, found, tier) in [
            (self.disk.is_some(), "pager.disk", "a folder", "disk"),
            (self.remote.is_some(), "pager.remote", "a tier", "tier"),
        ] {
            if is_set && self.host_bytes_max == 0 {
                return Err(ConfigError {
                    field,
                    found: found.into(),
                    expected: format!(
                        "`pager.host_bytes_max` above 0, since copies reach the {tier} through \
                         host memory"
                    )
                    .into(),
                });
            }
        }
        self.remote.as_ref().map_or(Ok(()), RemoteConfig::validate)
    }
}

impl RemoteConfig {
    /// Bytes that a tier that works moves in a second, at least.
    const SLOWEST: usize = 8 << 20;

    /// Whether state with this salt may leave the process.
    #[doc(hidden)]
    #[must_use]
    pub fn shares(&self, salt: SaltDigest) -> bool {
        self.shares_salted || salt == Salt::default().digest()
    }

    /// Returns the time after which a job that moves so many bytes means that the tier does not
    /// respond.
    #[doc(hidden)]
    #[must_use]
    pub fn job_timeout(&self, bytes: usize) -> Duration {
        let moving = Duration::from_millis((bytes / (Self::SLOWEST / 1000)) as u64);
        self.timeout.saturating_add(moving)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if !self.grid_tokens.is_power_of_two() || !GRID_TOKENS.contains(&self.grid_tokens) {
            return Err(ConfigError {
                field: "pager.remote.grid_tokens",
                found: self.grid_tokens.to_string(),
                expected: "a power of two from 4 to 65536".into(),
            });
        }
        time("pager.remote.answer_timeout", self.answer_timeout)?;
        time("pager.remote.timeout", self.timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;

    #[test]
    fn backup_tokens_out_of_range_are_rejected() {
        for (backup_tokens, is_valid) in [
            (0, true),
            (1, false),
            (3, false),
            (4, true),
            (64, true),
            (1 << 24, true),
            ((1 << 24) + 1, false),
            (usize::MAX, false),
        ] {
            let config = PagerConfig {
                backup_tokens,
                ..PagerConfig::default()
            };
            let judged = config.validate();
            assert_eq!(judged.is_ok(), is_valid, "{backup_tokens}");
            if let Err(error) = judged {
                assert_eq!(error.field, "pager.backup_tokens");
                assert_eq!(error.found, backup_tokens.to_string());
            }
        }
    }

    #[test]
    fn label_bytes_must_fit_in_host_bytes() {
        let check = |host_bytes_max, label_bytes_max, is_valid: bool| {
            let mut config = EngineConfig::default();
            config.pager.host_bytes_max = host_bytes_max;
            config.pager.label_bytes_max = label_bytes_max;
            match config.validate() {
                Ok(()) => assert!(is_valid, "{label_bytes_max:?} of {host_bytes_max}"),
                Err(error) => {
                    assert!(!is_valid, "{error}");
                    assert_eq!(error.field, "pager.label_bytes_max");
                    let (found, most) = (label_bytes_max.unwrap(), host_bytes_max / 8 * 7);
                    let message = error.to_string();
                    let numbers = [found, most].map(|number| number.to_string());
                    assert!(numbers.iter().all(|one| message.contains(one)), "{message}");
                }
            }
        };
        check(1 << 20, None, true);
        check(1 << 20, Some(1024), true);
        check(1 << 20, Some(1023), false);
        check(1 << 20, Some(7 << 17), true);
        check(1 << 20, Some((7 << 17) + 1), false);
        // Without a pager there are no labels.
        check(0, Some(0), true);
        assert_eq!(PagerConfig::default().label_bytes_max(), 0);
    }
}
