//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use motet::config::{CacheConfig, DiskConfig, EngineConfig, SchedulerConfig};

/// Serves one model to many clients, as the OpenAI API does.
#[derive(Debug, Parser)]
#[command(name = "motet-server", version, max_term_width = 80)]
pub struct Arguments {
    /// A GGUF file or a Hugging Face folder
    #[arg(long, value_name = "PATH", env = "MOTET_MODEL")]
    #[arg(required_unless_present = "oracle")]
    pub model: Option<PathBuf>,

    /// Serve a simulated model: for machines without MLX, and to try clients
    ///
    /// Its tokens are bytes, hashed from what came before: it talks nonsense, fast.
    #[arg(long, conflicts_with = "model")]
    pub oracle: bool,

    /// Give the same answers to the last bit whatever else runs; somewhat slower
    ///
    /// Of greedy requests and of those with a seed, on this machine. On the CPU only.
    #[arg(long, conflicts_with = "oracle")]
    pub deterministic: bool,

    /// What clients call the model; its file's name, if not given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// The address to listen at; the default is for this machine only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    #[arg(help_heading = "Socket")]
    pub host: IpAddr,

    /// The port to listen at; 0 is any that is free
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 8080,
        help_heading = "Socket"
    )]
    pub port: u16,

    /// Who may ask, and for how much.
    #[command(flatten)]
    pub conduct: Conduct,

    /// How the engine is set up.
    #[command(flatten)]
    pub engine: EngineSettings,

    /// What routers are told.
    #[command(flatten)]
    pub fleet: FleetSettings,
}

/// Who may ask, and for how much.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Conduct")]
pub struct Conduct {
    /// A file of API keys; without one everybody may ask who can connect
    ///
    /// On each line a name, the key and, if wanted, how many requests it may have
    /// inside at once. `#` begins a comment.
    #[arg(long, value_name = "FILE", env = "MOTET_API_KEYS")]
    pub api_keys: Option<PathBuf>,

    /// Let requests of different keys start from each other's cached state
    ///
    /// Saves computing what they have in common, and lets one find out by the time
    /// it takes whether another has asked the same.
    #[arg(long)]
    pub share_cache: bool,

    /// Only the key of this name may watch the page; without it every key may
    ///
    /// The page shows how much all users ask for and what is cached, by bytes and counts.
    #[arg(long, value_name = "NAME", requires = "api_keys")]
    pub page_key: Option<String>,

    /// Call users by the names of their keys on the page
    #[arg(long, requires = "api_keys")]
    pub page_names: bool,

    /// Longest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub body_bytes_max: usize,

    /// Bytes of bodies that are received at once, over all connections
    ///
    /// At least --body-bytes-max. A body of more than 64 KiB waits until there is room for all
    /// of it, for --arrival-seconds at most, and is refused with status 503 then; shorter ones
    /// do not wait. Choose how much memory long bodies may take while they come.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub receiving_bytes_max: usize,

    /// Let special tokens count that messages spell, such as <|im_end|>
    ///
    /// Without this they are text: what a user writes ends no turn and begins none. With
    /// it, whoever writes into a message can write as the system. Of completions they
    /// always count.
    #[arg(long)]
    pub special_tokens_in_messages: bool,

    /// Longest headers of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10)]
    pub header_bytes_max: usize,

    /// Connections at once; more wait until one is closed
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_max: u32,

    /// Longest that a request's headers may take to come, and then its body; 0 is for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub arrival_seconds: u64,

    /// Cut a client off that has read nothing for so long; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub unread_seconds: u64,

    /// At the end, those inside may go on for so long
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace_seconds: u64,
}

/// How the engine is set up.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineSettings {
    /// Sequences that may run at once
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().sequences_max)]
    pub sequences_max: usize,

    /// Requests that may wait; more are refused with status 429
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().queue_max)]
    pub queue_max: usize,

    /// Most tokens that one step evaluates
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().step_tokens_max)]
    pub step_tokens: usize,

    /// Device memory for cached state, in MiB
    #[arg(long, value_name = "MIB", default_value_t = CacheConfig::default().device_bytes_max >> 20)]
    pub cache_mib: usize,

    /// Host memory for what the device has no room for, in MiB; 0 is none
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    pub host_mib: usize,

    /// A folder for what host memory has no room for, and for the next start
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "disk_mib",
        requires = "host_mib"
    )]
    pub disk: Option<PathBuf>,

    /// Most that the folder may hold, in MiB
    #[arg(long, value_name = "MIB", requires = "disk")]
    pub disk_mib: Option<usize>,
}

impl Conduct {
    /// Checks that the settings go together.
    ///
    /// # Errors
    ///
    /// Names both settings, with their numbers.
    pub fn validate(&self) -> Result<()> {
        let (body, receiving) = (self.body_bytes_max, self.receiving_bytes_max);
        ensure!(
            receiving >= body,
            "--receiving-bytes-max is {receiving}; expected at least --body-bytes-max, {body}, so \
             that there is room for the longest body"
        );
        Ok(())
    }

    /// How long the headers and the body may take to come; none is for ever.
    pub(crate) fn arrival_time(&self) -> Option<Duration> {
        unless_zero(self.arrival_seconds)
    }

    /// How long a client may read nothing; none is for ever.
    pub(crate) fn unread_time(&self) -> Option<Duration> {
        unless_zero(self.unread_seconds)
    }
}

fn unless_zero(seconds: u64) -> Option<Duration> {
    (seconds > 0).then_some(Duration::from_secs(seconds))
}

/// What routers are told that spread users over several servers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Fleet")]
pub struct FleetSettings {
    /// Tell what is cached, as vLLM does, at an address such as tcp://127.0.0.1:5557
    ///
    /// This tells the tokens of requests to whoever can connect, but for those of
    /// requests with a cache salt, of which nothing is told.
    #[arg(long, value_name = "ADDRESS")]
    pub kv_events: Option<String>,

    /// Tell it again to those who have missed some of it, at this address
    #[arg(long, value_name = "ADDRESS", requires = "kv_events")]
    pub kv_events_replay: Option<String>,

    /// The topic under which it is published
    #[arg(
        long,
        value_name = "TOPIC",
        default_value = "",
        hide_default_value = true
    )]
    pub kv_events_topic: String,

    /// Tokens of a block, as the router wants it
    #[arg(long, value_name = "TOKENS", default_value_t = CacheConfig::default().block_tokens)]
    pub kv_events_block_size: usize,
}

impl Arguments {
    /// The engine's settings.
    #[must_use]
    pub fn engine_config(&self) -> EngineConfig {
        let mut config = EngineConfig::default();
        let engine = &self.engine;
        let mib = |mib: usize| mib.saturating_mul(1 << 20);
        config.scheduler.sequences_max = engine.sequences_max;
        config.scheduler.queue_max = engine.queue_max;
        config.scheduler.step_tokens_max = engine.step_tokens.max(engine.sequences_max);
        config.scheduler.unread_timeout = self.conduct.unread_time();
        config.cache.device_bytes_max = mib(engine.cache_mib);
        config.cache.block_tokens = self.fleet.kv_events_block_size;
        config.pager.host_bytes_max = mib(engine.host_mib);
        config.pager.disk = engine.disk.clone().map(|folder| DiskConfig {
            folder,
            bytes_max: mib(engine.disk_mib.unwrap_or_default()),
        });
        config
    }

    /// What clients call the model.
    #[must_use]
    pub fn model_name(&self) -> String {
        let file = self.model.as_deref().and_then(|path| path.file_stem());
        let file = file.map(|name| name.to_string_lossy().into_owned());
        let named = self.name.clone().or(file);
        named.unwrap_or_else(|| "oracle".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Arguments::command().debug_assert();
        let parse = |words: &str| Arguments::try_parse_from(words.split_whitespace());
        let arguments = parse("server --model models/small.gguf --host-mib 1").expect("whole");
        assert_eq!(arguments.model_name(), "small");
        assert!(arguments.host.is_loopback());
        let config = arguments.engine_config();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.pager.host_bytes_max, 1 << 20);
        let oracle = parse("server --oracle --sequences-max 1000").expect("whole");
        assert_eq!(oracle.model_name(), "oracle");
        assert_eq!(oracle.engine_config().validate(), Ok(()));
        let narrow = parse("server --oracle --receiving-bytes-max 1000").expect("whole");
        let refused = narrow
            .conduct
            .validate()
            .expect_err("too narrow")
            .to_string();
        assert!(
            refused.contains("1000") && refused.contains("4194304"),
            "{refused}"
        );
        oracle.conduct.validate().expect("the defaults go together");
        assert!(parse("server --oracle --model x").is_err());
        assert!(parse("server --oracle --disk x").is_err());
    }
}
