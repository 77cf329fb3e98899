//! The command line.

use std::path::PathBuf;

use clap::Parser;
use motet::config::{CacheConfig, DiskConfig, EngineConfig, SchedulerConfig};
use serde::Serialize;

use crate::arrivals::Arrivals;
use crate::byte_size::ByteSize;

/// Many users talk to one engine at once; measures what that is like.
///
/// All users share a system prompt (a hotel's concierge) and ask it questions in
/// several turns, each turn with the whole conversation so far. The same seed
/// gives the same load.
#[derive(Debug, Parser)]
#[command(name = "load_generator", max_term_width = 80)]
pub(crate) struct Arguments {
    /// A GGUF file or a Hugging Face folder
    ///
    /// Without it: the environment's MOTET_MODEL, or else
    /// smollm2-135m-instruct.gguf in MOTET_MODEL_DIR, which is where
    /// `cargo xtask setup --model smollm2-135m-instruct` puts it.
    #[arg(long, value_name = "PATH", conflicts_with = "oracle")]
    pub(crate) model: Option<PathBuf>,

    /// Run on a simulated device: for machines without MLX
    ///
    /// The oracle's tokens are hashes of what came before, not language; a step
    /// takes 2 ms and 50 µs for each token.
    #[arg(long)]
    pub(crate) oracle: bool,

    #[command(flatten)]
    pub(crate) load: Load,

    #[command(flatten)]
    pub(crate) engine: EngineSettings,

    /// Also write all figures to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,

    /// Users whose conversation is shown, so that you see that the model talks sense
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Output")]
    pub(crate) show: usize,

    /// The table only: no progress bars, no conversation
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// What the users do.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Load")]
pub(crate) struct Load {
    /// Users
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(crate) users: usize,

    /// Questions that each user asks, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(crate) turns: usize,

    /// Longest reply, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 48, value_parser = at_least_one)]
    pub(crate) reply_tokens: usize,

    /// Length of the system prompt that all users share, in words; 0 is none
    ///
    /// The text has 400 words; a longer prompt repeats it.
    #[arg(long, value_name = "WORDS", default_value_t = 400)]
    pub(crate) system_words: usize,

    /// Share nothing instead: one turn, and for each user a prompt of its own of
    /// so many words
    #[arg(long, value_name = "WORDS", value_parser = at_least_one)]
    #[arg(conflicts_with_all = ["turns", "system_words"])]
    pub(crate) unique_words: Option<usize>,

    /// When requests come: `closed` or `poisson:RATE`
    ///
    /// closed: each user asks again when the last answer is complete.
    /// poisson:RATE: at random times, RATE requests a second in the mean, dealt to
    /// the users in turn; who still waits for an answer then asks right after it.
    #[arg(long, value_name = "HOW", default_value_t = Arrivals::Closed)]
    pub(crate) arrivals: Arrivals,

    /// How long a user thinks after an answer before the next question
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) think_ms: u64,

    /// Fixes who asks what and when, and all draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Temperature at which tokens are drawn; 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Go on past the model's end tokens, so that each reply has full length
    #[arg(long)]
    pub(crate) ignore_end: bool,
}

/// How the engine is set up.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineSettings {
    /// Sequences that may run at once
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().sequences_max)]
    pub(crate) sequences_max: usize,

    /// Requests that may wait; more are refused, and tried again when told to
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().queue_max)]
    pub(crate) queue_max: usize,

    /// Most tokens that one step evaluates
    #[arg(long = "step-tokens", value_name = "N")]
    #[arg(default_value_t = SchedulerConfig::default().step_tokens_max)]
    pub(crate) step_tokens_max: usize,

    /// Device memory for cached state, for example 512MiB or 2GiB
    #[arg(long = "cache-bytes", value_name = "SIZE")]
    #[arg(default_value_t = ByteSize(CacheConfig::default().device_bytes_max))]
    pub(crate) cache_bytes_max: ByteSize,

    /// Host memory for what the device has no room for; without it nothing is kept there
    #[arg(long = "host-bytes", value_name = "SIZE")]
    pub(crate) host_bytes_max: Option<ByteSize>,

    /// A folder for what host memory has no room for, and for the next run
    #[arg(long = "disk", value_name = "FOLDER", requires = "host_bytes_max")]
    pub(crate) disk: Option<PathBuf>,

    /// What that folder may hold
    #[arg(long = "disk-bytes", value_name = "SIZE", default_value_t = ByteSize(8 << 30))]
    pub(crate) disk_bytes_max: ByteSize,
}

impl Load {
    /// Questions that each user asks.
    pub(crate) fn turns(&self) -> usize {
        match self.unique_words {
            Some(_) => 1,
            None => self.turns,
        }
    }

    /// Requests of all users.
    pub(crate) fn requests(&self) -> usize {
        self.users.saturating_mul(self.turns())
    }
}

impl EngineSettings {
    pub(crate) fn config(&self) -> EngineConfig {
        let mut config = EngineConfig::default();
        config.scheduler.sequences_max = self.sequences_max;
        config.scheduler.queue_max = self.queue_max;
        config.scheduler.step_tokens_max = self.step_tokens_max;
        config.cache.device_bytes_max = self.cache_bytes_max.0;
        config.pager.host_bytes_max = self.host_bytes_max.map_or(0, |bytes| bytes.0);
        config.pager.disk = self.disk.clone().map(|folder| DiskConfig {
            folder,
            bytes_max: self.disk_bytes_max.0,
        });
        config
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a whole number, at least 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn contradictions_are_refused() {
        let check = |words: &str, accepted: bool| {
            let words = std::iter::once("load_generator").chain(words.split_whitespace());
            assert_eq!(Arguments::try_parse_from(words).is_ok(), accepted);
        };
        check("", true);
        check("--oracle --unique-words 100 --users 4", true);
        check("--oracle --model m.gguf", false);
        check("--unique-words 100 --turns 2", false);
        check("--users 0", false);
    }
}
