//! The time to the first token of a prompt whose beginning only the host, or only the disk,
//! has, beside that of a prompt of the same length that is computed.
//!
//! The device has memory for one and a half such prompts, so that each evicts the one before;
//! it has been copied by then. The repeated request is the whole former prompt and a few tokens
//! more, as in a conversation.

use std::path::Path;

use motet::config::{DiskConfig, EngineConfig};
use motet::model::{ModelSpec, SegmentSize};
use motet::{Engine, Shutdown, TokenId};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median_of};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{on_model, runtime};
use crate::programs::pager::folder::Folder;
use crate::programs::pages::{FirstToken, ask, config, is_on_device, spec, wait_until_idle};
use crate::protocol::Size;

/// Tokens after the former prompt.
const FRESH_TOKENS: usize = 8;
/// Tokens of a prompt that warms up a new engine.
const WAKING_TOKENS: usize = 64;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    rounds: usize,
    prompt_tokens: usize,
}

/// Pairs of a computed prompt and a loaded one.
#[derive(Debug, Default)]
struct Pairs(Vec<(FirstToken, FirstToken)>);

/// Measures the repeated prompt, loaded from the host.
pub(crate) fn from_host(size: Size, model: Option<&Path>) -> Result<Records> {
    let (measure, spec) = (Measure::new(size), spec(model)?);
    let mut numbers = ChaCha8Rng::seed_from_u64(1);
    runtime(2)?.block_on(async {
        let engine = on_model(model, measure.config(&spec)).await?;
        let mut pairs = Pairs::default();
        let mut former = measure.prompt(&mut numbers);
        ask(&engine, former.clone()).await?;
        for _ in 0..measure.rounds {
            wait_until_idle(&engine, false).await?;
            let next = measure.prompt(&mut numbers);
            let computed = ask(&engine, next.clone()).await?;
            wait_until_idle(&engine, false).await?;
            let loaded = measure.reload(&engine, &former, &mut numbers).await?;
            pairs.0.push((computed, loaded));
            former = next;
        }
        let loaded = engine.stats().pager.unpacked;
        engine.shutdown(Shutdown::Abort).await;
        let how = format!("from host memory, {loaded} copies loaded");
        Ok(pairs.report("pager.ttft_host", measure, &spec, &how))
    })
}

/// Measures the repeated prompt after a restart, loaded from the disk.
pub(crate) fn from_disk(size: Size, model: Option<&Path>) -> Result<Records> {
    let (measure, spec) = (Measure::new(size), spec(model)?);
    let folder = Folder::new()?;
    let mut numbers = ChaCha8Rng::seed_from_u64(2);
    let mut config = measure.config(&spec);
    config.pager.disk = Some(DiskConfig {
        folder: folder.path().to_path_buf(),
        bytes_max: 2 * config.pager.host_bytes_max,
    });
    runtime(2)?.block_on(async {
        let engine = on_model(model, config.clone()).await?;
        let mut former = Vec::new();
        for _ in 0..measure.rounds {
            former.push(measure.prompt(&mut numbers));
            ask(&engine, former[former.len() - 1].clone()).await?;
            wait_until_idle(&engine, true).await?;
        }
        engine.shutdown(Shutdown::Finish).await;

        let engine = on_model(model, config).await?;
        ask(&engine, prompt(&mut numbers, WAKING_TOKENS)).await?;
        let mut pairs = Pairs::default();
        let mut forgets = true;
        for former in &former {
            wait_until_idle(&engine, true).await?;
            let computed = ask(&engine, measure.prompt(&mut numbers)).await?;
            wait_until_idle(&engine, true).await?;
            forgets &= folder.forget_cached()?;
            let loaded = measure.reload(&engine, former, &mut numbers).await?;
            pairs.0.push((computed, loaded));
        }
        let read = engine.stats().pager.read;
        engine.shutdown(Shutdown::Abort).await;
        if read < measure.rounds as u64 {
            return Err(format!("only {read} copies were read from the disk").into());
        }
        let from = if forgets {
            "dropped from the system's page cache before"
        } else {
            "some possibly in the system's page cache, which cannot be dropped here"
        };
        let how = format!("after a restart, {read} copies read from files, {from}");
        Ok(pairs.report("pager.ttft_disk", measure, &spec, &how))
    })
}

impl Measure {
    fn new(size: Size) -> Self {
        Self {
            rounds: size.pick(7, 1),
            prompt_tokens: size.pick(2_048, 128),
        }
    }

    fn config(self, spec: &ModelSpec) -> EngineConfig {
        let each = spec.tail_bytes(self.prompt_tokens + 2 * FRESH_TOKENS);
        // Twice as many prompts as rounds, with their appended tokens.
        let copies = each * (2 * self.rounds + 2) * 2;
        let mut config = config(spec, each + each / 2, copies);
        // Everything is copied before the next prompt comes.
        config.pager.clean_part = 1.0;
        // Writes at the end are not measured.
        config.pager.flush_time = std::time::Duration::from_secs(60);
        config
    }

    fn prompt(self, numbers: &mut ChaCha8Rng) -> Vec<TokenId> {
        prompt(numbers, self.prompt_tokens)
    }

    /// A prompt that begins with a former one, which the device does not hold.
    async fn reload(
        self,
        engine: &Engine,
        former: &[TokenId],
        numbers: &mut ChaCha8Rng,
    ) -> Result<FirstToken> {
        if is_on_device(engine, former).await? {
            return Err("the device still holds a prefix that is to be loaded".into());
        }
        let tokens = [former, &prompt(numbers, FRESH_TOKENS)].concat();
        let asked = ask(engine, tokens).await?;
        if asked.cached_tokens >= self.prompt_tokens {
            Ok(asked)
        } else {
            Err(format!(
                "only {} of {} tokens were loaded: {:?}",
                asked.cached_tokens,
                self.prompt_tokens,
                engine.stats().pager
            )
            .into())
        }
    }
}

impl Pairs {
    fn report(&self, figure: &str, measure: Measure, spec: &ModelSpec, how: &str) -> Records {
        let mut records = Records::default();
        for (computed, loaded) in &self.0 {
            records.sample(figure, loaded.seconds / computed.seconds);
        }
        let middle = |of: fn(&(FirstToken, FirstToken)) -> f64| 1e3 * median_of(&self.0, of);
        let bytes = spec.segment_bytes(SegmentSize::whole(measure.prompt_tokens));
        let remark = format!(
            "{} tokens of {:.1} MB: {:.1} ms computed, {:.1} ms {how}",
            measure.prompt_tokens,
            bytes as f64 / 1e6,
            middle(|(computed, _)| computed.seconds),
            middle(|(_, loaded)| loaded.seconds),
        );
        records.remark(figure, remark);
        records
    }
}
