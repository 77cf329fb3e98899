//! Settings of a server in a fleet.

#[cfg(feature = "grpc")]
use std::net::SocketAddr;
#[cfg(any(feature = "grpc", feature = "remote"))]
use std::path::PathBuf;
#[cfg(feature = "remote")]
use std::sync::Arc;
#[cfg(feature = "remote")]
use std::time::Duration;

use anyhow::{Result, ensure};
use motet::config::CacheConfig;
#[cfg(feature = "remote")]
use motet::config::{RemoteConfig, RemoteSends};
#[cfg(feature = "remote")]
use motet::remote::RemoteTier;

/// Settings for routers that spread users over several servers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Fleet")]
pub struct FleetSettings {
    /// Publish KV cache events in vLLM's form at an address such as tcp://127.0.0.1:5557
    ///
    /// The events show the tokens of requests to every reader that can connect. Requests with
    /// a cache salt are left out: see --kv-events-salts.
    #[arg(long, value_name = "ADDRESS")]
    pub kv_events: Option<String>,

    /// Publish the events of requests with a cache salt too, and the salt with each
    ///
    /// Every reader then sees all tenants' tokens and salts, and must keep them apart, as Dynamo does.
    #[arg(long, requires = "kv_events")]
    pub kv_events_salts: bool,

    /// Publish the blocks of copies in host memory and on the disk too, each with its medium
    ///
    /// The reader must tell media apart, as Dynamo does: others take a block that leaves host memory for
    /// one that leaves the device.
    #[arg(long, requires = "kv_events")]
    pub kv_events_tiers: bool,

    /// Replay missed events at this address
    #[arg(long, value_name = "ADDRESS", requires = "kv_events")]
    pub kv_events_replay: Option<String>,

    /// Memory for the events that are kept for replay
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = REPLAY_MIB,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub kv_events_replay_mib: u32,

    /// The topic of the events
    #[arg(
        long,
        value_name = "TOPIC",
        default_value = "",
        hide_default_value = true
    )]
    pub kv_events_topic: String,

    /// Tokens of a block; the router must use the same number
    #[arg(long, value_name = "TOKENS", default_value_t = CacheConfig::default().block_tokens)]
    pub kv_events_block_size: usize,
}

/// Memory for events that are kept for replay, by default.
const REPLAY_MIB: u32 = 64;

impl FleetSettings {
    /// Checks the size of blocks against the longest context.
    ///
    /// # Errors
    ///
    /// The error names the setting, its value and the valid values.
    pub fn check(&self, context_tokens_max: usize) -> Result<()> {
        let tokens = self.kv_events_block_size;
        ensure!(
            self.kv_events.is_none() || tokens <= context_tokens_max,
            "--kv-events-block-size is {tokens}; expected at most {context_tokens_max}, the model's context: \
             no sequence would have a whole block"
        );
        Ok(())
    }
}

/// Settings of vLLM's gRPC.
#[cfg(feature = "grpc")]
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Fleet")]
pub struct GrpcSettings {
    /// Serve vLLM's gRPC too, at an address such as 127.0.0.1:50051
    ///
    /// Fleets drive the server by it: Dynamo's vLLM sidecar, vllm-router, smg. At a signal to end,
    /// running requests are handed over at once then, for the fleet to continue them elsewhere: see
    /// --grace-seconds. Keys are sent as metadata, `authorization: Bearer KEY`.
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<SocketAddr>,

    /// The folder or repository in which the fleet finds the model's tokenizer
    ///
    /// The default is --model. A folder needs config.json and tokenizer.json.
    #[arg(long, value_name = "FOLDER", requires = "grpc")]
    pub grpc_tokenizer: Option<PathBuf>,

    /// A file with the certificate of gRPC's address and its chain, in PEM; without it there is no TLS
    #[arg(
        long,
        value_name = "FILE",
        requires = "grpc",
        requires = "grpc_tls_key"
    )]
    pub grpc_tls_certificate: Option<PathBuf>,

    /// A file with the certificate's key, in PEM
    #[arg(long, value_name = "FILE", requires = "grpc_tls_certificate")]
    pub grpc_tls_key: Option<PathBuf>,

    /// A file with the certificates that sign those of clients, which they then need
    #[arg(long, value_name = "FILE", requires = "grpc_tls_certificate")]
    pub grpc_tls_clients: Option<PathBuf>,
}

/// Settings of the tier that servers share.
#[cfg(feature = "remote")]
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Fleet")]
pub struct RemoteSettings {
    /// A store that servers share, such as redis://127.0.0.1:6379
    ///
    /// A server loads from it what another has computed. redis://, rediss:// with TLS, s3:// and fs:///
    /// for a folder are known. State with a cache salt, such as that of --api-keys without
    /// --share-cache, stays in the server: see --remote-salted.
    #[arg(
        long,
        value_name = "URL",
        env = "MOTET_REMOTE",
        hide_env_values = true,
        requires = "remote_secret"
    )]
    pub remote: Option<String>,

    /// A file with the fleet's secret, of 32 bytes or more: `openssl rand -hex 32`
    ///
    /// All that the store holds is encrypted under it. Servers with the same secret share state, so
    /// each of them must be trusted.
    #[arg(long, value_name = "FILE", requires = "remote")]
    pub remote_secret: Option<PathBuf>,

    /// Which state is sent to the store
    #[arg(long, value_name = "WHICH", default_value = "all", requires = "remote")]
    pub remote_sends: Sends,

    /// Share state with a cache salt, too, with requests of the same salt
    #[arg(long, requires = "remote")]
    pub remote_salted: bool,

    /// How long a request waits for an answer of the store before it computes, in milliseconds
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 250,
        requires = "remote",
        value_parser = clap::value_parser!(u64).range(1..=60_000)
    )]
    pub remote_answer_ms: u64,
}

/// Which state is sent to the store that servers share.
#[cfg(feature = "remote")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sends {
    /// All that a later request could use.
    #[default]
    All,
    /// State that a second request has used; a router must then lead conversations to their servers.
    UsedTwice,
}

#[cfg(feature = "remote")]
impl RemoteSettings {
    /// The engine's settings of the tier, if there is one.
    pub(crate) fn config(&self) -> Option<RemoteConfig> {
        self.remote.as_ref().map(|_| RemoteConfig {
            sends: match self.remote_sends {
                Sends::All => RemoteSends::All,
                Sends::UsedTwice => RemoteSends::UsedTwice,
            },
            shares_salted: self.remote_salted,
            answer_timeout: Duration::from_millis(self.remote_answer_ms),
            ..RemoteConfig::default()
        })
    }

    /// Opens the tier, if there is one.
    pub(crate) async fn open(&self) -> Result<Option<Arc<dyn RemoteTier>>> {
        let (Some(url), Some(secret)) = (&self.remote, &self.remote_secret) else {
            return Ok(None);
        };
        let secret = motet_remote::Secret::read(secret)?;
        let tier = motet_remote::Remote::open(url, &secret).await?;
        tracing::info!("state is shared through {tier:?}");
        Ok(Some(Arc::new(tier)))
    }
}
