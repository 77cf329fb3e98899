//! A segment's export and import, beside a plain copy of as many bytes.
//!
//! One thread each, into memory that has been used before: the copy workers' own pool keeps
//! some, and so does a packer that needs it. The segment was computed and sealed as any other.
//! Passing it through the transfer queue is not measured: that moves handles.

use std::path::Path;
use std::time::Instant;

use motet::TokenId;
use motet::model::Model;
use motet::model::oracle::Oracle;
use motet_model::{DetachedState, OutputKind, Packer, Segment, Span};
use motet_storage::tiers::BufferPool;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::measured::{Records, median, median_of};
use crate::programs::Result;
use crate::programs::arrivals::prompt;
use crate::programs::engine::{load, slow_oracle};
use crate::protocol::Size;

/// Tokens of a step that computes the segment.
const STEP_TOKENS: usize = 256;
/// Copies of each kind in a round; the median counts.
const REPEATS: usize = 7;

/// The amount of work to measure.
#[derive(Clone, Copy, Debug)]
struct Measure {
    rounds: usize,
    /// Tokens of the segment.
    tokens: usize,
}

/// Seconds for as many bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    plain: f64,
    out: f64,
    back: f64,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let measure = Measure {
        rounds: size.rounds(),
        tokens: size.pick(2_048, 64),
    };
    match model {
        None => measure.take_turns(&mut Oracle::new(slow_oracle())?),
        Some(path) => measure.take_turns(&mut load(path, false)?),
    }
}

impl Measure {
    fn take_turns<M: Model>(self, model: &mut M) -> Result<Records> {
        let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(1), self.tokens);
        let segment = compute(model, &tokens)?;
        let detached_state = model.export(&segment)?;
        let packer = model.packer();
        let bytes = packer.packed_bytes(segment.segment_size());
        let mut records = Records::default();
        let mut all = Vec::new();
        // The first round warms the memory.
        for round in 0..=self.rounds {
            let times = self.turn::<M>(&packer, &segment, &detached_state, bytes)?;
            if round > 0 {
                records.sample(
                    "pager.copy_vs_memcpy",
                    times.plain / times.out.max(times.back),
                );
                all.push(times);
            }
        }
        let speed = |of: fn(&Times) -> f64| bytes as f64 / 1e9 / median_of(&all, of);
        records.remark(
            "pager.copy_vs_memcpy",
            format!(
                "{:.1} MB: plain {:.1} GB/s, out {:.1}, in {:.1}; one thread",
                bytes as f64 / 1e6,
                speed(|times| times.plain),
                speed(|times| times.out),
                speed(|times| times.back),
            ),
        );
        Ok(records)
    }

    fn turn<M: Model>(
        self,
        packer: &M::Packer,
        segment: &M::Segment,
        detached_state: &DetachedState<M>,
        bytes: usize,
    ) -> Result<Times> {
        let pool = BufferPool::new(2 * bytes);
        let mut packed = pool.take(bytes)?;
        packer.pack(detached_state, &mut packed)?;
        let mut beside = vec![1; bytes];
        let [mut plain, mut out, mut back] = [(); 3].map(|()| Vec::with_capacity(REPEATS));
        for _ in 0..REPEATS {
            plain.push(seconds(|| {
                beside.copy_from_slice(&packed);
                Ok(())
            })?);
            out.push(seconds(|| {
                let mut into = pool.take(bytes)?;
                Ok(packer.pack(detached_state, &mut into)?)
            })?);
            // Dropped untimed: the device does that when it evicts.
            let mut imported = None;
            back.push(seconds(|| {
                imported = Some(packer.unpack(segment.segment_size(), &packed)?);
                Ok(())
            })?);
        }
        Ok(Times {
            plain: median(&plain),
            out: median(&out),
            back: median(&back),
        })
    }
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started_at = Instant::now();
    work()?;
    Ok(started_at.elapsed().as_secs_f64())
}

fn compute<M: Model>(model: &mut M, tokens: &[TokenId]) -> Result<M::Segment> {
    let mut tail = model.tail(&[], 0)?;
    for chunk in tokens.chunks(STEP_TOKENS) {
        let span = Span {
            tokens: chunk.into(),
            path: &[],
            tail: &mut tail,
            output_kind: OutputKind::Nothing,
        };
        model.step(&mut [span])?;
    }
    Ok(model.seal(&mut tail, tokens.len())?)
}
