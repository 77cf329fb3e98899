//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use motet::config::{
    AdmissionConfig, ChunkingConfig, DiskConfig, EngineConfig, SchedulerConfig, TextConfig,
};
use motet::grammar::GrammarLimits;
#[cfg(feature = "mlx")]
use motet::model::CacheKind;
use motet::model::find::ModelName;

use crate::class::Class;
pub use crate::fleet_settings::FleetSettings;
#[cfg(feature = "grpc")]
pub use crate::fleet_settings::GrpcSettings;
#[cfg(feature = "remote")]
pub use crate::fleet_settings::RemoteSettings;
use crate::keys::Keys;
use crate::model_names::ModelNames;
use crate::site::{Host, Origin};
pub use crate::store_settings::StoreSettings;

/// Default host memory with a disk tier, or with one that servers share, in MiB.
const HOST_MIB_WITH_TIER: usize = 1024;

/// A century. The timers of hyper and of the sockets add a time to the present, which panics beyond
/// the end of the clock.
const SECONDS_MAX: u64 = 100 * 365 * 24 * 3600;

/// Serves one model to many clients, as the OpenAI API does.
#[derive(Debug, Parser)]
#[command(name = "motet-server", version, max_term_width = 80)]
pub struct Arguments {
    /// The model.
    #[command(flatten)]
    pub model: ModelSettings,

    /// The model's name in the API; the default is its file's or repository's name
    ///
    /// May be given several times: the model has all of these names, and answers carry the first.
    #[arg(long, value_name = "NAME")]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub name: Vec<String>,

    /// Serve requests for any model with this one: for clients with a name built in
    ///
    /// Answers carry the model's own name.
    #[arg(long)]
    pub any_name: bool,

    /// Form of the log; `text` also prints an example of a request once the server is ready
    #[arg(long, value_name = "FORM", value_enum, default_value_t = LogForm::Json)]
    pub log_form: LogForm,

    /// The port to listen at; 0 chooses a free one
    #[arg(
        long,
        value_name = "PORT",
        default_value_t = 8080,
        help_heading = "Socket"
    )]
    pub port: u16,

    /// Access, and limits on clients.
    #[command(flatten)]
    pub access: AccessSettings,

    /// Bounds of the store of responses.
    #[command(flatten)]
    pub store: StoreSettings,

    /// Settings of the engine.
    #[command(flatten)]
    pub engine: EngineSettings,

    /// Settings for routers.
    #[command(flatten)]
    pub fleet: FleetSettings,

    /// Settings of gRPC.
    #[cfg(feature = "grpc")]
    #[command(flatten)]
    pub grpc: GrpcSettings,

    /// Settings of the tier that servers share.
    #[cfg(feature = "remote")]
    #[command(flatten)]
    pub remote: RemoteSettings,

    /// Settings of traces.
    #[cfg(feature = "otel")]
    #[command(flatten)]
    pub traces: crate::trace::TraceSettings,
}

/// The model, and how it computes.
#[derive(Clone, Debug, clap::Args)]
pub struct ModelSettings {
    /// A GGUF file or a Hugging Face folder, or where to find one
    ///
    /// hf:ORG/NAME is a repository of Hugging Face's hub, in its cache or downloaded there;
    /// hf:ORG/NAME:FILE or hf:ORG/NAME:Q4_K_M is one of its GGUF files. ollama:NAME[:TAG] and
    /// lmstudio:PUBLISHER/NAME[:FILE] are models that these programs have.
    #[arg(long, value_name = "MODEL", env = "MOTET_MODEL")]
    #[arg(required_unless_present = "oracle")]
    pub model: Option<String>,

    /// A smaller model with the same tokens, which drafts what the model verifies
    ///
    /// It is named as the model is. It is used in the steps where it pays, and answers do not change.
    /// The start fails if its tokens differ from the model's.
    #[arg(
        long,
        value_name = "MODEL",
        env = "MOTET_DRAFT_MODEL",
        conflicts_with = "oracle"
    )]
    pub draft_model: Option<String>,

    /// Serve a simulated model: for machines without MLX, and to try clients
    ///
    /// Its tokens are bytes, hashed from the tokens before them: fast nonsense.
    #[arg(long, conflicts_with = "model")]
    pub oracle: bool,

    /// Time that the simulated model takes for each token, in microseconds
    #[arg(
        long,
        value_name = "MICROSECONDS",
        default_value_t = 0,
        requires = "oracle"
    )]
    pub oracle_token_us: u32,

    /// Make answers independent of concurrent requests, to the last bit; somewhat slower
    ///
    /// This holds for greedy requests and for those with a seed, on one machine. CPU only.
    #[arg(long, conflicts_with = "oracle")]
    pub deterministic: bool,

    /// Compute products with quantised weights in f32; slower, and the numbers of the model
    ///
    /// By default, activations are rounded to 8 bits there, on the CPU. This option also follows
    /// from `--deterministic`.
    #[arg(long, conflicts_with = "oracle")]
    pub exact: bool,

    /// Read the model's files into memory instead of mapping them
    ///
    /// A mapped file must not change while the server runs: put a new one in its place by renaming.
    /// Files that were read may change. Each server then has the weights in memory of its own, and
    /// starts later.
    #[arg(long, conflicts_with = "oracle")]
    pub no_mmap: bool,

    /// Type of cached keys and values: bf16 and f16 take half the bytes, int8 about a quarter
    ///
    /// Computations stay in f32; only cached values are rounded. bf16 suits any model; f16 is
    /// finer and has less range; int8 is for a CPU only. The default is f32 on a CPU and bf16 on a GPU.
    #[arg(long, value_name = "TYPE", value_enum, conflicts_with = "oracle")]
    pub cache_dtype: Option<CacheDtype>,
}

/// Types in which keys and values can be cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheDtype {
    /// Single precision
    F32,
    /// The upper half of a single
    Bf16,
    /// Half precision
    F16,
    /// A byte for each number and a scale for each 32
    Int8,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Done
    On,
    /// Not done
    Off,
}

/// Access, and limits on clients.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Access")]
pub struct AccessSettings {
    /// The address to listen at; the default is for this machine only
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    #[arg(help_heading = "Socket")]
    pub host: IpAddr,

    /// A name by which clients reach this server; may be given again
    ///
    /// On loopback, `Host` must be this machine's or a name given here. Elsewhere `Host` is
    /// checked only if a name is given. The port is not checked.
    #[arg(long, value_name = "NAME", help_heading = "Socket")]
    pub host_name: Vec<Host>,

    /// An origin whose pages may send requests, as https://chat.example; may be given again
    ///
    /// This is for a page that a proxy serves together with this server. Requests from pages of
    /// any other site are rejected.
    #[arg(long, value_name = "ORIGIN", help_heading = "Socket")]
    pub origin: Vec<Origin>,

    /// A file of API keys; without it, every client that can connect is served
    ///
    /// Each line has a name, the key and, optionally, the key's most concurrent requests and
    /// its highest class, as class=urgent. `#` begins a comment.
    #[arg(long, value_name = "FILE", env = "MOTET_API_KEYS")]
    pub api_keys: Option<PathBuf>,

    /// Let requests of different keys start from each other's cached state
    ///
    /// This saves the computation of common prefixes. A client can then find out by timing
    /// whether another has sent the same prompt.
    #[arg(long)]
    pub share_cache: bool,

    /// The highest class for keys without a class
    ///
    /// A higher class starts first and may preempt a lower one, so the operator has to allow it.
    #[arg(long, value_name = "CLASS", value_enum, default_value_t = Class::Normal)]
    pub class_max: Class,

    /// The name of an operator's key; may be given again
    ///
    /// Metrics, the details of health, the API description and the page are for the operator.
    /// Without keys they are open on loopback, unless --host-name or --origin is given, and
    /// closed elsewhere.
    #[arg(long, value_name = "NAME", requires = "api_keys")]
    pub operator_key: Vec<String>,

    /// Treat every client that can connect as the operator, for a private network
    ///
    /// A server on loopback with --host-name or --origin and without keys needs this too, as a
    /// proxy may pass on requests from elsewhere.
    #[arg(long, conflicts_with = "operator_key")]
    pub operator_open: bool,

    /// The name of a key that may also watch the page; may be given again
    ///
    /// The page shows the load of all users and the cache's contents, by bytes and counts.
    #[arg(long, value_name = "NAME", requires = "api_keys")]
    pub page_key: Vec<String>,

    /// Show the names of users' keys on the page
    #[arg(long, requires = "api_keys")]
    pub page_names: bool,

    /// Longest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 << 20)]
    pub body_bytes_max: usize,

    /// Memory for bodies that are being received, over all connections, in bytes
    ///
    /// At least --body-bytes-max. A body of more than 64 KiB waits until all of it fits, for at
    /// most --arrival-seconds, and is then rejected with status 503. Shorter bodies do not wait.
    /// One key, or one address without keys, may hold as much as it leaves free for others.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub receiving_bytes_max: usize,

    /// Parse special tokens in messages, such as <|im_end|>
    ///
    /// Without this they are plain text, so that a message cannot end a turn or begin one. With
    /// it, the author of a message can write as the system. In prompts of completions, special
    /// tokens are always parsed.
    #[arg(long)]
    pub special_tokens_in_messages: bool,

    /// Longest headers of a request, in bytes
    ///
    /// A connection buffers 8 KiB more, for the request line and separators, and at least 32 KiB.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10)]
    pub header_bytes_max: usize,

    /// Connections at once; more wait until one is closed
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_max: u32,

    /// Connections of one address; further ones are answered with status 429 and closed
    ///
    /// The default is a quarter of --connections-max; on loopback, all of them. Behind a proxy
    /// all connections come from one address: set this to --connections-max there. IPv6
    /// addresses with the same first 64 bits are one address.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub address_connections_max: Option<u32>,

    /// Longest time for a request's headers to arrive, and then for its body; 0 is no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub arrival_seconds: u64,

    /// Disconnect a client that has read nothing for this time; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub unread_seconds: u64,

    /// Time for running requests to finish at the shutdown; the rest are handed over then
    ///
    /// The default is 30, and 0 with --grpc, as a fleet continues requests elsewhere. A stream that is
    /// handed over ends with an error after all of its tokens; its state goes to --disk. A second
    /// signal ends all requests at once.
    #[arg(long, value_name = "SECONDS")]
    pub grace_seconds: Option<u64>,
}

/// Settings of the engine.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineSettings {
    /// Sequences that may run at once
    #[arg(long, value_name = "N", default_value_t = SchedulerConfig::default().sequences_max)]
    pub sequences_max: usize,

    /// Requests that may wait; further ones are rejected with status 429
    #[arg(long, value_name = "N", default_value_t = AdmissionConfig::default().queue_max)]
    pub queue_max: usize,

    /// Memory for results that are kept until they are sent, in MiB
    ///
    /// Log probabilities of prompts and of answers that are not streamed, texts of such answers, and
    /// about 48 kB for each stream: raise it with --sequences-max and --queue-max. A request that needs
    /// more than half of it gets 400, and one that does not fit now 429. One user may hold as much as it
    /// leaves free for others.
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub results_mib: usize,

    /// Most tokens that one step evaluates
    #[arg(long, value_name = "N", default_value_t = ChunkingConfig::default().step_tokens_max)]
    pub step_tokens: usize,

    /// Device memory for cached state and a step's scratch, in MiB
    ///
    /// The default is a part of the free memory once the model is loaded: half of it on a CPU,
    /// nine tenths on a GPU. The chosen size is logged at the start.
    #[arg(long, value_name = "MIB")]
    pub cache_mib: Option<usize>,

    /// Host memory for offloaded state, in MiB; 0 is none
    ///
    /// The default is 0, or 1024 with a tier below it, which all state reaches through host memory.
    #[arg(long, value_name = "MIB")]
    pub host_mib: Option<usize>,

    /// A folder for state that does not fit in host memory, and for the next start
    ///
    /// At the shutdown, the cached state is written to it.
    #[arg(long, value_name = "FOLDER")]
    pub disk: Option<PathBuf>,

    /// Most bytes that the folder may hold, in MiB
    #[arg(long, value_name = "MIB", requires = "disk", default_value_t = 10_240)]
    pub disk_mib: usize,

    /// Long texts that are rendered and tokenised at once; further ones wait, users in turn
    ///
    /// Each takes a core, and processes about a megabyte a second. If the device is the CPU,
    /// more than a quarter of the cores slows it down.
    #[arg(long, value_name = "N", default_value_t = TextConfig::default().threads)]
    pub text_threads: usize,

    /// Schemas that are compiled at once; further ones wait, users in turn
    ///
    /// Each takes a core: most for some milliseconds, a few for up to two seconds.
    #[arg(long, value_name = "N", default_value_t = GrammarLimits::default().compilations_max)]
    pub compilations_max: usize,

    /// Longest time for the compilation of a schema, not counting its wait
    ///
    /// Schemas that take longer are rejected with status 422. Choose more on a slow machine.
    #[arg(long, value_name = "SECONDS")]
    #[arg(default_value_t = GrammarLimits::default().compile_time_max.as_secs())]
    pub compile_seconds: u64,

    /// Let schemas set llguidance's own options, as `x-guidance`
    ///
    /// They change whitespace, separators and leniency, and can make masks expensive. Allow
    /// them only if you trust all clients.
    #[arg(long)]
    pub grammar_options: bool,

    /// Draft the next tokens of answers, where that pays; answers are the same
    ///
    /// Drafts come from the request's `prediction` and text, and from what was computed with the
    /// same cache salt. A step verifies a draft in one pass.
    #[arg(long, value_name = "SWITCH", value_enum, default_value_t = Switch::On)]
    pub speculation: Switch,

    /// Sample tokens that a schema forces, each with a forward pass of its own
    ///
    /// The output is the same, and slower: for measurements.
    #[arg(long)]
    pub sample_forced_tokens: bool,
}

impl ModelSettings {
    /// The name of the model's file or repository, by which it is known unless it gets another.
    #[must_use]
    pub fn short_name(&self) -> String {
        let model = self.model.as_deref().map(str::parse::<ModelName>);
        match model {
            // A name that cannot be parsed is an error of the start.
            Some(Ok(model)) => model.short(),
            Some(Err(_)) | None => "oracle".to_owned(),
        }
    }
}

impl EngineSettings {
    /// The engine's settings, those of the cache's blocks and of slow readers left as they are.
    #[must_use]
    pub fn config(&self) -> EngineConfig {
        let mut config = EngineConfig::default();
        let mib = |mib: usize| mib.saturating_mul(1 << 20);
        config.scheduler.sequences_max = self.sequences_max;
        config.scheduler.admission.queue_max = self.queue_max;
        config.scheduler.admission.results_bytes_max = mib(self.results_mib);
        config.scheduler.chunking.step_tokens_max = self.step_tokens.max(self.sequences_max);
        config.scheduler.speculation.enabled = self.speculation == Switch::On;
        if let Some(cache_mib) = self.cache_mib {
            config.cache.device_bytes_max = mib(cache_mib);
        }
        let host_mib = match self.disk {
            Some(_) => HOST_MIB_WITH_TIER,
            None => 0,
        };
        config.pager.host_bytes_max = mib(self.host_mib.unwrap_or(host_mib));
        config.pager.disk = self.disk.clone().map(|folder| DiskConfig {
            folder,
            bytes_max: mib(self.disk_mib),
        });
        config.text.threads = self.text_threads;
        config.grammar.compilations_max = self.compilations_max;
        config.grammar.compile_time_max = Duration::from_secs(self.compile_seconds);
        config.grammar.options_allowed = self.grammar_options;
        config.grammar.forced_tokens = !self.sample_forced_tokens;
        config
    }
}

impl AccessSettings {
    /// Checks that the settings fit each other and the keys.
    ///
    /// # Errors
    ///
    /// The error names the setting, its value and the valid values.
    pub fn check(&self, keys: &Keys) -> Result<()> {
        let named = [
            ("--operator-key", &self.operator_key),
            ("--page-key", &self.page_key),
        ];
        for (setting, names) in named {
            for name in names {
                let known: Vec<&str> = keys.names().map(|known| &**known).collect();
                ensure!(
                    known.contains(&name.as_str()),
                    "{setting} is {name:?}; the keys are named {known:?}"
                );
            }
        }
        let (most, all) = (self.address_connections_max(), self.connections_max);
        ensure!(
            most <= all,
            "--address-connections-max is {most}; expected at most --connections-max, which is {all}"
        );
        let (body, receiving) = (self.body_bytes_max, self.receiving_bytes_max);
        ensure!(
            receiving >= body,
            "--receiving-bytes-max is {receiving}; expected at least --body-bytes-max, {body}, so \
             that the longest body fits"
        );
        Ok(())
    }

    /// Whether only clients on this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        self.host.to_canonical().is_loopback()
    }

    /// Whether all callers are on this machine, by the settings. A host name or an origin means
    /// that a proxy passes on others.
    pub(crate) fn is_for_this_machine(&self) -> bool {
        self.is_local() && self.host_name.is_empty() && self.origin.is_empty()
    }

    /// Most connections of one address.
    pub(crate) fn address_connections_max(&self) -> u32 {
        self.address_connections_max_at(self.host)
    }

    /// Most connections of one address to a listener at `host`.
    pub(crate) fn address_connections_max_at(&self, host: IpAddr) -> u32 {
        let default_max = if host.to_canonical().is_loopback() {
            self.connections_max
        } else {
            (self.connections_max / 4).max(1)
        };
        self.address_connections_max.unwrap_or(default_max)
    }

    /// Longest time for the headers and for the body to arrive; `None` is no limit.
    pub(crate) fn arrival_time(&self) -> Option<Duration> {
        nonzero_duration(self.arrival_seconds)
    }

    /// Longest time in which a client may read nothing; `None` is no limit.
    pub(crate) fn unread_time(&self) -> Option<Duration> {
        nonzero_duration(self.unread_seconds)
    }
}

fn nonzero_duration(seconds: u64) -> Option<Duration> {
    (seconds > 0).then_some(Duration::from_secs(seconds.min(SECONDS_MAX)))
}

/// Form of the log, on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// A JSON object a line: for programs.
    Json,
    /// For people.
    Text,
}

#[cfg(feature = "mlx")]
impl CacheDtype {
    /// The engine's name for the type.
    #[must_use]
    pub fn kind(self) -> CacheKind {
        match self {
            Self::F32 => CacheKind::F32,
            Self::Bf16 => CacheKind::Bf16,
            Self::F16 => CacheKind::F16,
            Self::Int8 => CacheKind::Int8,
        }
    }
}

impl Arguments {
    /// The engine's settings.
    #[must_use]
    pub fn engine_config(&self) -> EngineConfig {
        let mut config = self.engine.config();
        config.scheduler.unread_timeout = self.access.unread_time();
        config.cache.block_tokens = self.fleet.kv_events_block_size;
        #[cfg(feature = "remote")]
        if let Some(remote) = self.remote.config() {
            config.pager.remote = Some(remote);
            if self.engine.host_mib.is_none() {
                config.pager.host_bytes_max = HOST_MIB_WITH_TIER << 20;
            }
        }
        config
    }

    /// The folder or repository in which a fleet finds the model's tokenizer.
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn grpc_tokenizer(&self) -> Option<PathBuf> {
        let of_model = || self.model.model.as_ref().map(PathBuf::from);
        self.grpc.grpc_tokenizer.clone().or_else(of_model)
    }

    /// The model's names in the API.
    #[must_use]
    pub fn model_names(&self) -> ModelNames {
        ModelNames::new(&self.name, self.any_name, || self.model.short_name())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_parsed() {
        Arguments::command().debug_assert();
        let parse = |words: &str| Arguments::try_parse_from(words.split_whitespace());
        let arguments = parse("server --model models/small.gguf --host-mib 1").expect("whole");
        assert_eq!(arguments.model_names(), "small".into());
        assert!(arguments.access.is_local());
        assert_eq!(arguments.access.class_max, Class::Normal);
        let config = arguments.engine_config();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.pager.host_bytes_max, 1 << 20);
        let oracle = parse("server --oracle --sequences-max 1000").expect("whole");
        assert_eq!(oracle.model_names(), "oracle".into());
        assert_eq!(oracle.engine_config().validate(), Ok(()));
        assert_eq!(
            oracle.engine_config().grammar,
            GrammarLimits::default(),
            "the default"
        );
        assert_eq!(oracle.engine_config().text, TextConfig::default());
        assert!(parse("server --oracle --model x").is_err());
        assert_eq!(config.cache.device_bytes_max, 0, "to be chosen");
        let set = parse("server --model x --cache-mib 5 --cache-dtype bf16").expect("whole");
        assert_eq!(set.engine_config().cache.device_bytes_max, 5 << 20);
        assert_eq!(set.model.cache_dtype, Some(CacheDtype::Bf16));
        let eight = parse("server --model x --cache-dtype int8").expect("a type");
        assert_eq!(eight.model.cache_dtype, Some(CacheDtype::Int8));
        assert!(parse("server --model x --cache-dtype int4").is_err());
        assert!(parse("server --oracle --cache-dtype bf16").is_err());
        let disk = parse("server --oracle --disk x").expect("enough");
        let config = disk.engine_config();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.pager.host_bytes_max, HOST_MIB_WITH_TIER << 20);
        assert!(config.scheduler.speculation.enabled, "the default");
        let off = parse("server --oracle --speculation off").expect("a switch");
        assert!(!off.engine_config().scheduler.speculation.enabled);
        assert!(parse("server --oracle --speculation sometimes").is_err());
        assert!(parse("server --oracle --draft-model x").is_err());
        assert!(parse("server --model x --draft-model y").is_ok());
        assert!(parse("server --oracle --disk-mib 1").is_err());
        assert!(parse("server --oracle --class-max first").is_err());
        assert!(parse("server --oracle --host-name http://x").is_err());
        assert!(parse("server --oracle --origin x").is_err());
        assert!(parse("server --oracle --operator-key ann").is_err());
        let both = "server --oracle --api-keys x --operator-key ann --operator-open";
        assert!(parse(both).is_err());
    }

    #[test]
    fn grammar_and_text_limits_are_settings() {
        let config = |words: &str| {
            let words = format!("server --oracle {words}");
            let parsed = Arguments::try_parse_from(words.split_whitespace());
            parsed.expect("whole").engine_config()
        };
        let more =
            config("--compilations-max 7 --compile-seconds 9 --grammar-options --text-threads 3");
        assert_eq!(more.validate(), Ok(()));
        assert_eq!(more.text.threads, 3);
        let expected = GrammarLimits {
            compilations_max: 7,
            compile_time_max: Duration::from_secs(9),
            options_allowed: true,
            ..GrammarLimits::default()
        };
        assert_eq!(more.grammar, expected);
        for (words, expected_error) in [
            (
                "--compilations-max 0",
                "`grammar.compilations_max` is 0; expected at least 1",
            ),
            (
                "--compile-seconds 0",
                "`grammar.compile_time_max` is 0; expected longer than 0",
            ),
            (
                "--text-threads 0",
                "`text.threads` is 0; expected at least 1",
            ),
        ] {
            let error = config(words).validate().expect_err(words).to_string();
            assert!(error.contains(expected_error), "{error}");
        }
    }

    #[test]
    fn times_can_be_added_to_the_present() {
        let words = format!(
            "server --oracle --arrival-seconds {0} --unread-seconds {0}",
            u64::MAX
        );
        let parsed = Arguments::try_parse_from(words.split_whitespace()).expect("whole");
        let now = std::time::Instant::now();
        for time in [parsed.access.arrival_time(), parsed.access.unread_time()] {
            assert!(now.checked_add(time.expect("a limit")).is_some());
        }
        assert_eq!(nonzero_duration(0), None);
    }

    #[test]
    fn inconsistent_settings_are_rejected() {
        let keys = Keys::parse("ann secret-a\nbob secret-b").expect("two");
        let check = |words: &str, expected: Result<u32, &str>| {
            let words = format!("server --oracle --api-keys x {words}");
            let parsed = Arguments::try_parse_from(words.split_whitespace()).expect("whole");
            let checked = parsed
                .access
                .check(&keys)
                .map_err(|error| error.to_string());
            let checked = checked.map(|()| parsed.access.address_connections_max());
            assert_eq!(checked, expected.map_err(str::to_owned), "{words}");
        };
        check(
            "--operator-key ann --operator-key bob --page-key bob",
            Ok(4096),
        );
        check(
            "--operator-key carol",
            Err("--operator-key is \"carol\"; the keys are named [\"ann\", \"bob\"]"),
        );
        check(
            "--page-key carol",
            Err("--page-key is \"carol\"; the keys are named [\"ann\", \"bob\"]"),
        );
        check("--host 0.0.0.0", Ok(1024));
        check("--host 0.0.0.0 --connections-max 1", Ok(1));
        check("--connections-max 1", Ok(1));
        check(
            "--receiving-bytes-max 1000",
            Err(
                "--receiving-bytes-max is 1000; expected at least --body-bytes-max, 4194304, so \
                 that the longest body fits",
            ),
        );
        check(
            "--connections-max 8 --address-connections-max 9",
            Err("--address-connections-max is 9; expected at most --connections-max, which is 8"),
        );
    }
}
