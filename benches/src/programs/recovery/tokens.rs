//! Tokens of streams whose device thread is killed repeatedly, beside undisturbed ones.
//!
//! The model runs deterministically, so that each stream must have exactly the tokens of the
//! undisturbed run, each once.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use motet::{Shutdown, TokenId, TokenStream};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinHandle;

use crate::measured::Records;
use crate::programs::Result;
use crate::programs::engine::{request, runtime};
use crate::programs::pages::spec;
use crate::programs::recovery::killed::{Killable, Mode, config, prompts};
use crate::protocol::Size;

/// The count of a reader that has everything.
const ALL: usize = usize::MAX;
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    kills: usize,
    streams: usize,
    prompt_tokens: usize,
    output_tokens: usize,
}

/// A stream with its reader.
struct Reader {
    count: Arc<AtomicUsize>,
    tokens: JoinHandle<Result<Vec<TokenId>>>,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        kills: size.pick(20, 2),
        streams: size.pick(16, 4),
        prompt_tokens: size.pick(96, 80),
        output_tokens: size.pick(96, 24),
    };
    let spec = spec(model)?;
    runtime(2)?.block_on(async {
        let mut records = Records::default();
        let mut undisturbed = None;
        for (is_paged, kills) in [(false, 0), (false, measure.kills), (true, measure.kills)] {
            let tokens = measure.prompt_tokens + measure.output_tokens;
            let config = config(&spec, measure.streams, tokens, is_paged);
            let killable = Killable::start(model, config, Mode::Deterministic, true).await?;
            let all = measure.all(&killable, kills).await;
            killable.engine.shutdown(Shutdown::Abort).await;
            let all = all?;
            let Some(undisturbed) = &undisturbed else {
                undisturbed = Some(all);
                continue;
            };
            let wrong = all
                .iter()
                .zip(undisturbed)
                .filter(|(own, other)| own != other);
            let wrong = wrong.count();
            records.sample("recovery.tokens_wrong", wrong as f64);
            let with = if is_paged { "with" } else { "without" };
            records.remark(
                "recovery.tokens_wrong",
                format!(
                    "{wrong} of {} streams after {kills} kills, {with} host memory",
                    all.len()
                ),
            );
        }
        Ok(records)
    })
}

impl Measure {
    /// Runs all streams at once. The device thread is killed so often: each time that each
    /// unfinished stream has had a token since the last kill.
    async fn all(self, killable: &Killable, kills: usize) -> Result<Vec<Vec<TokenId>>> {
        let mut numbers = ChaCha8Rng::seed_from_u64(5);
        let mut readers = Vec::new();
        for prompt in prompts(&mut numbers, self.streams, self.prompt_tokens) {
            let asked = request(prompt, self.output_tokens);
            readers.push(Reader::new(killable.engine.submit(asked).await?));
        }
        let mut before = vec![0; self.streams];
        for kill in 0..kills {
            loop {
                let now: Vec<usize> = readers.iter().map(Reader::count).collect();
                let waits = |(now, before): (&usize, &usize)| *now != ALL && now <= before;
                if !now.iter().zip(&before).any(waits) {
                    before = now;
                    break;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            if before.iter().all(|now| *now == ALL) {
                return Err(format!("all streams ended after {kill} of {kills} kills").into());
            }
            killable.kill().await?;
            while killable.engine.stats().rebuilds <= kill as u64 {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        let mut all = Vec::new();
        for reader in readers {
            all.push(reader.tokens.await??);
        }
        Ok(all)
    }
}

impl Reader {
    fn new(mut stream: TokenStream) -> Self {
        let count = Arc::new(AtomicUsize::new(0));
        let own = Arc::clone(&count);
        let tokens = tokio::spawn(async move {
            let mut tokens = Vec::new();
            while let Some(piece) = stream.next().await {
                tokens.extend(piece?.token);
                own.store(tokens.len(), Ordering::Relaxed);
            }
            own.store(ALL, Ordering::Relaxed);
            Ok(tokens)
        });
        Self { count, tokens }
    }

    fn count(&self) -> usize {
        if self.tokens.is_finished() {
            ALL
        } else {
            self.count.load(Ordering::Relaxed)
        }
    }
}
