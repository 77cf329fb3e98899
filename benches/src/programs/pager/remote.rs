//! A store that machines share, in a redis-server on loopback: the time to the first token of a prompt
//! that another engine has computed, and sequences that decode beside a store that fails.

use std::env;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use motet::config::EngineConfig;
use motet::model::{ModelSpec, SegmentSize};
use motet::remote::RemoteTier;
use motet::{Engine, Shutdown, TokenId};
use motet_remote::{Remote, Secret};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median_of, percentile};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{
    on_model_with, request, runtime, submit_all, wait_for_tokens, wait_while,
};
use crate::programs::pages::{FirstToken, ask, config, spec, wait_until_idle};
use crate::protocol::{REDIS_VARIABLE, Size};

/// Tokens after a prompt that another engine has computed.
const FRESH_TOKENS: usize = 8;
/// Tokens of a prompt that warms up a new engine.
const WAKING_TOKENS: usize = 64;
/// Prompts that fill the memory of a new engine, so that later ones take memory that it has: the first use of
/// a page takes some virtual machines ten times as long as loading it.
const WAKING_PROMPTS: usize = 4;
const DECODING: usize = 4;
const DECODING_PROMPT_TOKENS: usize = 16;
/// Tokens that all decode before gaps are measured.
const WARM_TOKENS: usize = 8 + DECODING * DECODING_PROMPT_TOKENS;
/// Tokens of a prompt that asks the store, and is sent to it.
const VISIT_TOKENS: usize = 288;
/// Tokens of a decoding sequence between two visits.
const VISIT_EVERY_TOKENS: usize = 24;

/// A redis-server, ended on drop.
struct Redis {
    server: Child,
    program: std::path::PathBuf,
    port: u16,
}

impl Redis {
    async fn start() -> Result<Self> {
        let folder = env::var_os(REDIS_VARIABLE);
        let folder = folder.ok_or_else(|| format!("{REDIS_VARIABLE} names no folder"))?;
        let folder = Path::new(&folder);
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = Command::new(folder.join("redis-server"))
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
            ])
            .stdout(Stdio::null())
            .spawn()?;
        let redis = Self {
            server,
            program: folder.join("redis-cli"),
            port,
        };
        let started_at = Instant::now();
        while redis.ask(&["ping"])? != "PONG" {
            if started_at.elapsed() > Duration::from_secs(10) {
                return Err("the redis-server does not answer".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(redis)
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let port = self.port.to_string();
        let mut client = Command::new(&self.program);
        let answer = client.args(["-p", &port]).args(words).output()?;
        Ok(String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    }

    fn kill(&mut self) {
        // It may have ended.
        self.server.kill().ok();
        self.server.wait().ok();
    }

    async fn tier(&self) -> Result<Arc<dyn RemoteTier>> {
        let secret = Secret::new([7; 32])?;
        let url = format!("redis://127.0.0.1:{}", self.port);
        Ok(Arc::new(Remote::open(&url, &secret).await?))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Measures prompts that another engine has computed, beside computed ones.
pub(crate) fn first_token(size: Size, model: Option<&Path>) -> Result<Records> {
    let (rounds, prompt_tokens) = (size.pick(7, 1), size.pick(2_048, 512));
    let spec = spec(model)?;
    let each = spec.tail_bytes(prompt_tokens + 2 * FRESH_TOKENS);
    let settings = config(&spec, each + each / 2, each * WAKING_PROMPTS);
    let mut numbers = ChaCha8Rng::seed_from_u64(3);
    runtime(2)?.block_on(async {
        let redis = Redis::start().await?;
        let tier = redis.tier().await?;
        let engine = on_model_with(model, settings.clone(), Some(Arc::clone(&tier))).await?;
        let mut former = Vec::new();
        for _ in 0..rounds {
            former.push(prompt(&mut numbers, prompt_tokens));
            ask(&engine, former[former.len() - 1].clone()).await?;
            until_sent(&engine, former.len()).await?;
        }
        engine.shutdown(Shutdown::Abort).await;

        let engine = on_model_with(model, settings, Some(tier)).await?;
        for _ in 0..=WAKING_PROMPTS {
            ask(&engine, prompt(&mut numbers, prompt_tokens)).await?;
            wait_until_idle(&engine, false).await?;
        }
        let mut pairs: Vec<(FirstToken, FirstToken)> = Vec::new();
        for former in &former {
            wait_until_idle(&engine, false).await?;
            let computed = ask(&engine, prompt(&mut numbers, prompt_tokens)).await?;
            wait_until_idle(&engine, false).await?;
            let tokens = [&former[..], &prompt(&mut numbers, FRESH_TOKENS)].concat();
            let loaded = ask(&engine, tokens).await?;
            if loaded.cached_tokens < prompt_tokens {
                let pager = engine.stats().pager;
                let found = loaded.cached_tokens;
                return Err(format!("only {found} tokens came from the store: {pager:?}").into());
            }
            pairs.push((computed, loaded));
        }
        engine.shutdown(Shutdown::Abort).await;
        Ok(report(&pairs, prompt_tokens, &spec))
    })
}

/// Waits until so many copies were sent.
async fn until_sent(engine: &Engine, copies: usize) -> Result<()> {
    wait_while(|| Ok(engine.stats().pager.sent < copies as u64)).await
}

fn report(pairs: &[(FirstToken, FirstToken)], prompt_tokens: usize, spec: &ModelSpec) -> Records {
    const FIGURE: &str = "fleet.ttft_remote";
    let mut records = Records::default();
    for (computed, loaded) in pairs {
        records.sample(FIGURE, loaded.seconds / computed.seconds);
    }
    let middle = |of: fn(&(FirstToken, FirstToken)) -> f64| 1e3 * median_of(pairs, of);
    let bytes = spec.segment_bytes(SegmentSize::whole(prompt_tokens));
    let remark = format!(
        "{prompt_tokens} tokens of {:.1} MB: {:.1} ms computed, {:.1} ms from the store",
        bytes as f64 / 1e6,
        middle(|(computed, _)| computed.seconds),
        middle(|(_, loaded)| loaded.seconds),
    );
    records.remark(FIGURE, remark);
    records
}

/// A fault of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It works.
    None,
    /// It answers no question for a while.
    Slow,
    /// It has no memory.
    Full,
    /// It is killed.
    Killed,
}

/// Measures gaps between tokens beside prompts that ask a store, and are sent to it, for each fault;
/// and without a store.
pub(crate) fn beside(size: Size, model: Option<&Path>) -> Result<Records> {
    const FIGURE: &str = "fleet.itl_beside_remote";
    let (rounds, tokens) = (size.pick(3, 1), size.pick(240, 48));
    let spec = spec(model)?;
    let visits = 16 * (tokens / VISIT_EVERY_TOKENS + 2);
    let device_bytes = DECODING * spec.tail_bytes(DECODING_PROMPT_TOKENS + WARM_TOKENS + tokens)
        + visits * spec.tail_bytes(VISIT_TOKENS + 8);
    let settings = config(&spec, device_bytes, device_bytes);
    let mut records = Records::default();
    runtime(2)?.block_on(async {
        for round in 0..rounds {
            let without = p99_beside(model, &settings, None, round, tokens).await?;
            let mut worst = 0.0_f64;
            for fault in [Fault::Slow, Fault::Full, Fault::Killed, Fault::None] {
                let with = p99_beside(model, &settings, Some(fault), round, tokens).await?;
                records.remark(
                    FIGURE,
                    format!(
                        "{fault:?}: {:.1} ms, {:.1} without",
                        1e3 * with,
                        1e3 * without
                    ),
                );
                if fault != Fault::None {
                    worst = worst.max(with / without);
                }
            }
            records.sample(FIGURE, worst);
        }
        Ok(records)
    })
}

/// The p99 gap between tokens of sequences that decode beside visits.
async fn p99_beside(
    model: Option<&Path>,
    settings: &EngineConfig,
    fault: Option<Fault>,
    seed: u64,
    tokens: usize,
) -> Result<f64> {
    let mut redis = match fault {
        Some(_) => Some(Redis::start().await?),
        None => None,
    };
    let tier = match &redis {
        Some(redis) => Some(redis.tier().await?),
        None => None,
    };
    let engine = on_model_with(model, settings.clone(), tier).await?;
    ask(
        &engine,
        prompt(&mut ChaCha8Rng::seed_from_u64(seed), WAKING_TOKENS),
    )
    .await?;
    if let (Some(fault), Some(redis)) = (fault, &mut redis) {
        match fault {
            Fault::None => {}
            Fault::Slow => drop(redis.ask(&["client", "pause", "600000"])?),
            Fault::Full => drop(redis.ask(&["config", "set", "maxmemory", "2mb"])?),
            Fault::Killed => redis.kill(),
        }
    }
    let gaps = gaps_beside_visits(&engine, seed, tokens).await;
    let pager = engine.stats().pager;
    let failed = matches!(fault, Some(Fault::Slow | Fault::Full | Fault::Killed));
    if fault.is_some() && pager.remote_asks == 0 || failed && pager.failed == 0 {
        return Err(format!("the store was not used: {pager:?}").into());
    }
    engine.shutdown(Shutdown::Abort).await;
    Ok(percentile(&gaps?, 0.99))
}

async fn gaps_beside_visits(engine: &Engine, seed: u64, tokens: usize) -> Result<Vec<f64>> {
    let mut numbers = ChaCha8Rng::seed_from_u64(1_000 + seed);
    let requests = (0..DECODING).map(|_| {
        let prompt: Vec<TokenId> = prompt(&mut numbers, DECODING_PROMPT_TOKENS);
        request(prompt, WARM_TOKENS + tokens)
    });
    let decoding = submit_all(engine, requests.collect()).await?;
    wait_for_tokens(&decoding, WARM_TOKENS / 2).await?;
    let from: Vec<usize> = decoding.iter().map(|one| one.times().len()).collect();
    let mut next = from[0];
    while !decoding[0].is_finished() {
        if decoding[0].times().len() >= next {
            ask(engine, prompt(&mut numbers, VISIT_TOKENS)).await?;
            next += VISIT_EVERY_TOKENS;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut gaps = Vec::new();
    for (reader, from) in decoding.into_iter().zip(from) {
        let times = reader.times();
        let counted = times[from - 1..].windows(2);
        gaps.extend(counted.map(|pair| (pair[1] - pair[0]).as_secs_f64()));
        reader.leave().await;
    }
    Ok(gaps)
}
