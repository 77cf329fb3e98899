//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use motet::TokenId;
use motet::config::{AdmissionConfig, ChunkingConfig, DiskConfig, EngineConfig, SchedulerConfig};
use serde::Serialize;

use crate::arrivals::Arrivals;
use crate::byte_size;
use crate::mix::{Kind, Mix};

/// Lets many users talk to one engine or one server at once, and measures latency
/// and throughput.
///
/// All users share a system prompt (a hotel's concierge) and ask questions in
/// several turns. Each turn sends the whole conversation so far. The same seed
/// gives the same load.
#[derive(Debug, Parser)]
#[command(name = "load_generator", max_term_width = 80)]
pub(crate) struct Arguments {
    /// A GGUF file or a Hugging Face folder, or where to find one
    ///
    /// hf:ORG/NAME[:FILE], ollama:NAME[:TAG] and lmstudio:PUBLISHER/NAME[:FILE] are looked up
    /// and, from Hugging Face, downloaded. The default is the environment's MOTET_MODEL, or else
    /// smollm2-135m-instruct.gguf in MOTET_MODEL_DIR, where
    /// `cargo xtask setup --model smollm2-135m-instruct` puts it.
    #[arg(long, value_name = "MODEL", conflicts_with = "oracle")]
    pub(crate) model: Option<String>,

    /// Run on a simulated device: for machines without MLX
    ///
    /// The oracle's tokens are hashes of the tokens before them, not language. A step
    /// takes 2 ms, and 50 µs for each token.
    #[arg(long)]
    pub(crate) oracle: bool,

    #[command(flatten)]
    pub(crate) server: ServerSettings,

    #[command(flatten)]
    pub(crate) load: Load,

    #[command(flatten)]
    pub(crate) engine: EngineSettings,

    /// Also write all figures to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,

    /// Also write a report with plots to this file, as HTML
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) report: Option<PathBuf>,

    /// Number of users whose conversation is shown, to check that the model talks sense
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Output")]
    pub(crate) show: usize,

    /// Print the table only: no progress bars, no conversation
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// The server that is asked instead of an engine in this process.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerSettings {
    /// Ask an OpenAI-compatible server, at http://HOST:PORT
    #[arg(long, value_name = "URL")]
    #[arg(conflicts_with_all = ["model", "oracle", "sequences_max", "queue_max",
                                "step_tokens_max", "cache_bytes_max", "host_bytes_max", "disk",
                                "device"])]
    pub(crate) url: Option<String>,

    /// The API key, if the server needs one
    #[arg(
        long,
        value_name = "KEY",
        env = "MOTET_API_KEY",
        hide_env_values = true
    )]
    pub(crate) api_key: Option<String>,

    /// The model's name on the server; the default is the first that it lists
    #[arg(long, value_name = "NAME", requires = "url")]
    pub(crate) model_name: Option<String>,

    /// Give a request up when the server has sent nothing for this time
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) timeout_seconds: u64,
}

/// A trace that is replayed.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Trace")]
pub(crate) struct TraceSettings {
    /// Replay the requests of a trace, each at its time, instead of simulated users
    ///
    /// Three forms are read. JSON lines with `timestamp`, `input_length`,
    /// `output_length` and `hash_ids`, one for 512 tokens (Mooncake). JSON lines, or
    /// a folder of such files, with `timestamp`, `input` and `output` (agents). A
    /// .csv file with TIMESTAMP, ContextTokens and GeneratedTokens (Azure). For a
    /// trace without text, words are made up: three for four tokens, and equal words
    /// for equal blocks.
    #[arg(long, value_name = "PATH")]
    #[arg(conflicts_with_all = ["users", "turns", "system_words", "unique_words", "mix", "fresh",
                                "arrivals", "think_ms"])]
    pub(crate) trace: Option<PathBuf>,

    /// Replay only this many requests, from the first on
    #[arg(long, value_name = "N", requires = "trace", value_parser = at_least_one)]
    pub(crate) trace_requests: Option<usize>,

    /// Let time pass this many times as fast
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = above_zero)]
    pub(crate) trace_speed: f64,

    /// Multiply lengths by this, for models with a shorter context
    ///
    /// Prompts whose text is in the trace keep their length.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = above_zero)]
    pub(crate) trace_scale: f64,
}

/// The users' behaviour.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Load")]
pub(crate) struct Load {
    /// Number of users
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one)]
    pub(crate) users: usize,

    /// Questions that each user asks, one after the other
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    pub(crate) turns: usize,

    /// Longest reply, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 48, value_parser = at_least_one)]
    pub(crate) reply_tokens: usize,

    /// Length of the shared system prompt in words; 0 means no system prompt
    ///
    /// The text has 400 words; a longer prompt repeats it.
    #[arg(long, value_name = "WORDS", default_value_t = 400)]
    pub(crate) system_words: usize,

    /// Begin the system prompt with the seed, so that a server finds nothing of this load
    /// in its cache after a run with another seed
    #[arg(long)]
    pub(crate) fresh: bool,

    /// Share nothing instead: each user has one turn, with a prompt of its own of
    /// this many words
    #[arg(long, value_name = "WORDS", value_parser = at_least_one)]
    #[arg(conflicts_with_all = ["turns", "system_words", "fresh"])]
    pub(crate) unique_words: Option<usize>,

    /// Users of several kinds, for example chatty=8,long=4,batch=4
    ///
    /// chatty: asks the concierge in several turns, as all users do without this option.
    /// long: brings a text of its own, and asks about it in several turns. batch:
    /// asks the same number of questions, each without the conversation before it.
    #[arg(long, value_name = "KINDS", conflicts_with_all = ["users", "unique_words"])]
    pub(crate) mix: Option<Mix>,

    /// Length of a long user's text, in words
    #[arg(long, value_name = "WORDS", default_value_t = 1_000, value_parser = at_least_one)]
    pub(crate) long_words: usize,

    /// Length of a batch user's question, in words
    #[arg(long, value_name = "WORDS", default_value_t = 60, value_parser = at_least_one)]
    pub(crate) batch_words: usize,

    #[command(flatten)]
    pub(crate) trace: TraceSettings,

    /// When requests come: `closed` or `poisson:RATE`
    ///
    /// closed: each user asks again when the last answer is complete.
    /// poisson:RATE: requests come at random times, RATE a second in the mean, and go
    /// to the users in turn. A user that still waits for an answer asks right after it.
    #[arg(long, value_name = "HOW", default_value_t = Arrivals::Closed)]
    pub(crate) arrivals: Arrivals,

    /// How long a user thinks after an answer before the next question
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub(crate) think_ms: u64,

    /// Seed of all questions, times and samples
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Sampling temperature; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Continue past the model's end tokens, so that each reply has full length
    ///
    /// Servers other than Motet's and vLLM's may not support this; see --ban-tokens.
    #[arg(long)]
    pub(crate) ignore_end: bool,

    /// Tokens that are never sampled, for example the model's end tokens
    ///
    /// This makes replies equally long on any server that supports `logit_bias`.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub(crate) ban_tokens: Vec<TokenId>,
}

/// Where a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DeviceKind {
    /// The processor
    Cpu,
    /// Metal or CUDA, whichever MLX was built for
    Gpu,
}

/// Settings of the engine.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineSettings {
    /// Where the model computes; the default is the GPU if MLX was built for one, else the CPU
    #[arg(long, value_name = "DEVICE", value_enum, conflicts_with = "oracle")]
    pub(crate) device: Option<DeviceKind>,

    /// Sequences that may run at once
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().sequences_max)]
    pub(crate) sequences_max: usize,

    /// Requests that may wait; further ones are rejected, and retried after the given time
    #[arg(long, value_name = "N", default_value_t = AdmissionConfig::default().queue_max)]
    pub(crate) queue_max: usize,

    /// Most tokens that one step evaluates
    #[arg(long = "step-tokens", value_name = "N")]
    #[arg(default_value_t = ChunkingConfig::default().step_tokens_max)]
    pub(crate) step_tokens_max: usize,

    /// Device memory for cached state, for example 512MiB or 2GiB
    #[arg(long = "cache-bytes", value_name = "SIZE")]
    #[arg(value_parser = byte_size::parse, default_value = "2 GiB")]
    pub(crate) cache_bytes_max: usize,

    /// Host memory for offloaded state; without it nothing is offloaded
    #[arg(long = "host-bytes", value_name = "SIZE", value_parser = byte_size::parse)]
    pub(crate) host_bytes_max: Option<usize>,

    /// A folder for state that does not fit in host memory, and for the next run
    #[arg(long = "disk", value_name = "FOLDER", requires = "host_bytes_max")]
    pub(crate) disk: Option<PathBuf>,

    /// Most bytes that the folder may hold
    #[arg(long = "disk-bytes", value_name = "SIZE")]
    #[arg(value_parser = byte_size::parse, default_value = "8 GiB")]
    pub(crate) disk_bytes_max: usize,
}

impl Load {
    /// The number of questions that each user asks.
    pub(crate) fn turns(&self) -> usize {
        match self.unique_words {
            Some(_) => 1,
            None => self.turns,
        }
    }

    /// The number of users of each kind.
    pub(crate) fn mix(&self) -> Mix {
        let alike = || Mix::only(Kind::Chatty, self.users);
        self.mix.clone().unwrap_or_else(alike)
    }
}

impl ServerSettings {
    /// The longest time in which a server may send nothing.
    pub(crate) fn silence_max(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }
}

impl EngineSettings {
    pub(crate) fn config(&self) -> EngineConfig {
        let mut config = EngineConfig::default();
        config.scheduler.sequences_max = self.sequences_max;
        config.scheduler.admission.queue_max = self.queue_max;
        config.scheduler.chunking.step_tokens_max = self.step_tokens_max;
        config.cache.device_bytes_max = self.cache_bytes_max;
        config.pager.host_bytes_max = self.host_bytes_max.unwrap_or(0);
        config.pager.disk = self.disk.clone().map(|folder| DiskConfig {
            folder,
            bytes_max: self.disk_bytes_max,
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

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let arguments = Arguments::parse_from(["load_generator"]);
        let cache_bytes_max = arguments.engine.cache_bytes_max;
        assert_eq!(cache_bytes_max, motet::config::CacheConfig::DEVICE_BYTES);
    }

    #[test]
    fn contradictory_arguments_are_rejected() {
        let check = |words: &str, accepted: bool| {
            let words = std::iter::once("load_generator").chain(words.split_whitespace());
            assert_eq!(Arguments::try_parse_from(words).is_ok(), accepted);
        };
        check("", true);
        check("--oracle --unique-words 100 --users 4", true);
        check("--oracle --model m.gguf", false);
        check("--unique-words 100 --turns 2", false);
        check("--users 0", false);
        check("--url http://127.0.0.1:1 --model-name x --users 2", true);
        check("--url http://127.0.0.1:1 --oracle", false);
        check("--url http://127.0.0.1:1 --queue-max 3", false);
        check("--model-name x", false);
        check("--mix chatty=2,long=1 --turns 2", true);
        check("--mix chatty=2 --users 3", false);
        check("--device gpu", true);
        check("--device gpu --oracle", false);
        check("--url http://127.0.0.1:1 --device cpu", false);
        check("--trace x.jsonl --trace-speed 2", true);
        check("--trace x.jsonl --turns 2", false);
        check("--trace x.jsonl --trace-scale 0", false);
        check("--ban-tokens 0,2", true);
    }
}
