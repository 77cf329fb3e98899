//! A small engine on the oracle that pages to a disk all the time.

use std::path::Path;
use std::time::Duration;

use motet::config::{DiskConfig, EngineConfig};
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};

/// Names the folder of the process to be killed.
pub(crate) const FOLDER: &str = "MOTET_KILL_FOLDER";

const USERS: usize = 23;
const OUTPUT_TOKENS: usize = 4;

pub(crate) fn run(what: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build();
    runtime.expect("a runtime").block_on(what);
}

/// An engine, and the oracle that its answers must match.
pub(crate) struct Served {
    pub(crate) engine: Engine,
    oracle: OracleConfig,
}

impl Served {
    /// A device and host memory for a few conversations, and a disk for most.
    pub(crate) async fn start(folder: &Path) -> Self {
        let oracle = OracleConfig {
            context_tokens_max: 128,
            end_tokens: vec![0],
            tail_block_tokens: 8,
            // Computing takes longer than reading, so that copies are used.
            cost: StepCost {
                per_token: Duration::from_micros(5),
                ..StepCost::default()
            },
            ..OracleConfig::with_layers(&[LayerKind::Full; 8])
        };
        let mut config = EngineConfig::default();
        config.scheduler.sequences_max = 2;
        config.cache.device_bytes_max = oracle.spec().tail_bytes(128) * 4;
        // Seven pages, and 64 KiB for labels of copies.
        config.pager.host_bytes_max = 27 * 4096;
        config.pager.label_bytes_max = Some(64 << 10);
        config.pager.clean_part = 1.0;
        config.pager.disk = Some(DiskConfig {
            folder: folder.to_owned(),
            bytes_max: 40 * 4096,
        });
        let built = oracle.clone();
        let engine =
            Engine::builder(move || Ok(Oracle::new(built.clone()).expect("a valid oracle")));
        let engine = engine.config(config).start().await.expect("it starts");
        Self { engine, oracle }
    }

    /// Sends one request of one user and checks its answer against the reference. Returns the
    /// number of tokens that were not computed for it.
    pub(crate) async fn one(&mut self, turn: usize) -> usize {
        let user = (turn * 5 % USERS) as TokenId;
        let mut prompt: Vec<TokenId> = (1..80).map(|i| 1 + (user * 37 + i) % 900).collect();
        prompt.extend([950 + (turn / USERS % 7) as TokenId, 7]);
        let alone = self
            .oracle
            .reference_tokens(&prompt, OUTPUT_TOKENS, Sampling::GREEDY);
        let request = Request::tokens(prompt).output_tokens_max(OUTPUT_TOKENS);
        let output = self
            .engine
            .submit(request)
            .await
            .expect("it is accepted")
            .collect()
            .await;
        let output = output.expect("an output");
        assert_eq!(output.tokens, alone, "turn {turn}: not what it is alone");
        output.finish.usage.cached_tokens
    }

    /// Shuts the engine down; state in host memory is written first.
    pub(crate) async fn flush(self) {
        self.engine.shutdown(Shutdown::Finish).await;
    }
}
