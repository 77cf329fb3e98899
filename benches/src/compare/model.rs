//! Figures of the model on MLX.

use std::fs;

use anyhow::{Context, Result};
use xtask::model::Model;
use xtask::workspace;

use super::engines::Engine;
use super::prompts::{prompt, prompts};
use super::side::Answer;
use super::sides::SideName;
use super::turns::{Pairs, Turn, take_turns};
use super::workbench::Workbench;
use crate::measured::{Measured, median};
use crate::mode::Mode;
use crate::protocol::{Prefix, Request};

/// Steps of one turn. The steps of all rounds stay within the 256 tokens by which both sides'
/// caches grow.
pub(super) const STEPS: usize = 8;

/// The two sides of a comparison: the first ÷ the second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides {
    pub(crate) first: SideName,
    pub(crate) second: SideName,
}

impl Sides {
    /// Ours ÷ mlx-lm.
    pub(crate) const MLX_LM: Self = Self {
        first: SideName::Ours,
        second: SideName::MlxLm,
    };

    /// Ours in this mode ÷ ours with exact products.
    pub(crate) const fn exact(mode: Mode) -> Self {
        Self {
            first: SideName::OursOn(Model::SmolLm2, mode),
            second: SideName::Ours,
        }
    }

    /// Ours in this mode ÷ llama.cpp, both with this model's file.
    pub(crate) const fn llama(model: Model, mode: Mode) -> Self {
        Self {
            first: SideName::OursOn(model, mode),
            second: SideName::Llama(model),
        }
    }

    /// Ours ÷ another engine, both with this model's file.
    pub(crate) const fn engine(engine: Engine, model: Model) -> Self {
        Self {
            first: SideName::OursOn(model, Mode::Default),
            second: SideName::Engine(engine, Some(model)),
        }
    }

    /// Starts both, the peer first, and returns the number of tokens that ours knows.
    pub(crate) fn start(self, workbench: &mut Workbench) -> Result<usize> {
        workbench.side(self.second)?;
        vocab_size(workbench, self.first)
    }

    pub(crate) fn of(self, turn: Turn) -> SideName {
        turn.pick(self.first, self.second)
    }

    /// Whether one side rounds numbers that the other does not.
    fn are_rounded(self) -> bool {
        matches!(self.first, SideName::OursOn(_, mode) if mode.is_rounded())
    }
}

/// GFLOP/s of one f32 product ÷ the same in mlx-lm's process.
pub(crate) fn matmul_sanity(workbench: &mut Workbench) -> Result<Measured> {
    let (rows, inner, columns) = (512, 2_048, workbench.pick(2_048, 64));
    let rounds = workbench.rounds();
    let sides = Sides::MLX_LM;
    sides.start(workbench)?;
    let request = Request::Matmul {
        rows,
        inner,
        columns,
    };
    let pairs = take_turns(rounds, |turn| {
        workbench.ask(sides.of(turn), &request)?.number("seconds")
    })?;
    let operations = 2.0 * (rows * inner * columns) as f64 / 1e9;
    Ok(compared(&pairs, operations, "GFLOP/s"))
}

/// Decode tokens/s of `batch` contexts of `tokens` tokens ÷ the other side's.
pub(crate) fn decode(
    workbench: &mut Workbench,
    sides: Sides,
    sequences: usize,
    context_tokens: usize,
) -> Result<Measured> {
    let context_tokens = workbench.pick(context_tokens, 16);
    let steps = workbench.pick(STEPS, 2);
    let rounds = workbench.rounds();
    let vocab_size = sides.start(workbench)?;
    let prompts = prompts(sequences, context_tokens, vocab_size);
    let mut agreement = Agreement::default();
    for turn in [Turn::First, Turn::Second] {
        let answer = open(workbench, sides.of(turn), "decode", &prompts)?;
        agreement.record(turn, &answer)?;
    }
    let pairs = take_turns(rounds, |turn| {
        let answer = run(workbench, sides.of(turn), "decode", steps)?;
        agreement.record(turn, &answer)?;
        answer.number("seconds")
    })?;
    for side in [sides.first, sides.second] {
        close(workbench, side, "decode")?;
    }
    let tokens = (sequences * steps) as f64;
    agreement.is_rounded = sides.are_rounded();
    Ok(agreement.note(compared(&pairs, tokens, "tok/s")))
}

/// The mean negative log-likelihood of a text in this mode ÷ with exact products: the change in
/// percent.
pub(crate) fn loss(workbench: &mut Workbench, mode: Mode) -> Result<Measured> {
    let request = loss_request(workbench)?;
    let sides = Sides::exact(mode);
    sides.start(workbench)?;
    let mut of = |side| -> Result<(f64, f64)> {
        let bytes = workbench.side(side)?.hello().number("cached_token_bytes")?;
        Ok((workbench.ask(side, &request)?.number("loss")?, bytes))
    };
    let ((changed, bytes), (exact, exact_bytes)) = (of(sides.first)?, of(sides.second)?);
    let remark = format!(
        "{changed:.5} against {exact:.5}, {:+.3} %; {bytes} against {exact_bytes} bytes a token",
        100.0 * (changed / exact - 1.0),
    );
    Ok(Measured::new(vec![100.0 * (changed / exact - 1.0).abs()]).remark(remark))
}

/// A request for the mean negative log-likelihood of 2,048 tokens: of the decision records.
fn loss_request(workbench: &Workbench) -> Result<Request> {
    let folder = workspace::root().join("docs/adr");
    let files =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = files
        .map(|file| Ok(file?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    let texts = paths.iter().map(fs::read_to_string);
    let text = texts.collect::<std::io::Result<String>>()?;
    let tokens = workbench.pick(2_048, 64);
    Ok(Request::Loss { text, tokens })
}

/// Prefill tokens/s of a prompt of `tokens` tokens, up to its first token, ÷ the other side's.
pub(crate) fn prefill(workbench: &mut Workbench, sides: Sides, tokens: usize) -> Result<Measured> {
    let tokens = workbench.pick(tokens, 32);
    let rounds = workbench.rounds();
    let prompt = prompt(1, tokens, sides.start(workbench)?);
    let request = Request::Prefill { prompt };
    let mut agreement = Agreement::default();
    let pairs = take_turns(rounds, |turn| {
        let answer = workbench.ask(sides.of(turn), &request)?;
        agreement.record(turn, &answer)?;
        answer.number("seconds")
    })?;
    agreement.is_rounded = sides.are_rounded();
    Ok(agreement.note(compared(&pairs, tokens as f64, "tok/s")))
}

/// Decode tokens/s of 16 sequences on one shared prefix ÷ the same on private copies.
pub(crate) fn shared_prefix_gain(workbench: &mut Workbench) -> Result<Measured> {
    const SEQUENCES: usize = 16;
    const SIDE: SideName = SideName::Ours;
    let (prefix_tokens, steps) = (workbench.pick(1_024, 32), workbench.pick(STEPS / 2, 2));
    let rounds = workbench.rounds();
    let vocab_size = vocab_size(workbench, SIDE)?;
    let batch = |turn: Turn| turn.pick("shared", "private");
    let mut agreement = Agreement::default();
    for turn in [Turn::First, Turn::Second] {
        let request = Request::DecodeOpen {
            batch: batch(turn).to_owned(),
            prefix: Some(Prefix {
                tokens: prompt(0, prefix_tokens, vocab_size),
                shared: turn == Turn::First,
            }),
            prompts: prompts(SEQUENCES, 8, vocab_size),
        };
        agreement.record(turn, &workbench.ask(SIDE, &request)?)?;
    }
    let pairs = take_turns(rounds, |turn| {
        let answer = run(workbench, SIDE, batch(turn), steps)?;
        agreement.record(turn, &answer)?;
        answer.number("seconds")
    })?;
    close(workbench, SIDE, "shared")?;
    close(workbench, SIDE, "private")?;
    let tokens = (SEQUENCES * steps) as f64;
    Ok(agreement.note(compared(&pairs, tokens, "tok/s")))
}

/// Growth of a decode step's time from 128 to 4,096 cached tokens ÷ growth of the bytes of
/// weights and cached state that it reads.
pub(crate) fn tail_growth(workbench: &mut Workbench) -> Result<Measured> {
    let tails = Tails::of(workbench);
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    tails.open(workbench)?;
    let pairs = take_turns(rounds, |turn| {
        let batch = turn.pick("short", "long");
        run(workbench, Tails::SIDE, batch, steps)?.number("seconds")
    })?;
    tails.close(workbench)?;

    let mut bytes = |tokens| bytes_read(workbench, Tails::SIDE, tokens);
    let by_bytes = bytes(tails.long)? / bytes(tails.short)?;
    let growths = pairs.second_by_first();
    let (short, long) = pairs.medians();
    let per_step_ms = 1e3 / steps as f64;
    let remark = format!(
        "a step takes {:.1} ms at {} tokens and {:.1} ms at {}: {:.2} times as long; {:.2} times the bytes",
        short * per_step_ms,
        tails.short,
        long * per_step_ms,
        tails.long,
        median(&growths),
        by_bytes,
    );
    let samples = growths.iter().map(|growth| growth / by_bytes).collect();
    Ok(Measured::new(samples).remark(remark))
}

/// Most bytes that a decode step at 4,096 cached tokens has allocated at any one time.
pub(crate) fn step_bytes_allocated(workbench: &mut Workbench) -> Result<Measured> {
    let tails = Tails::of(workbench);
    let rounds = workbench.rounds();
    tails.open(workbench)?;
    let mut bytes = |batch| -> Result<Vec<f64>> {
        let mut step = || run(workbench, Tails::SIDE, batch, 1);
        step()?; // a full tail grows by a block
        (0..rounds)
            .map(|_| step()?.number("scratch_bytes"))
            .collect()
    };
    let (short, long) = (bytes("short")?, bytes("long")?);
    tails.close(workbench)?;
    let remark = format!(
        "at {} cached tokens {:.0} bytes",
        tails.short,
        median(&short)
    );
    Ok(Measured::new(long).remark(remark))
}

/// Two sequences, each with all its state in its own tail.
#[derive(Clone, Copy)]
struct Tails {
    short: usize,
    long: usize,
}

impl Tails {
    const SIDE: SideName = SideName::Ours;

    fn of(workbench: &Workbench) -> Self {
        Self {
            short: workbench.pick(128, 16),
            long: workbench.pick(4_096, 64),
        }
    }

    fn open(self, workbench: &mut Workbench) -> Result<()> {
        let vocab_size = vocab_size(workbench, Self::SIDE)?;
        for (batch, tokens) in [("short", self.short), ("long", self.long)] {
            open(
                workbench,
                Self::SIDE,
                batch,
                &prompts(1, tokens, vocab_size),
            )?;
        }
        Ok(())
    }

    fn close(self, workbench: &mut Workbench) -> Result<()> {
        close(workbench, Self::SIDE, "short")?;
        close(workbench, Self::SIDE, "long")
    }
}

/// The tokens that both sides sampled.
#[derive(Default)]
struct Agreement {
    first: Vec<Vec<u64>>,
    second: Vec<Vec<u64>>,
    /// Whether one side rounds numbers, and may sample other tokens for that reason.
    is_rounded: bool,
}

impl Agreement {
    fn record(&mut self, turn: Turn, answer: &Answer) -> Result<()> {
        let steps = match turn {
            Turn::First => &mut self.first,
            Turn::Second => &mut self.second,
        };
        steps.extend(answer.tokens()?);
        Ok(())
    }

    /// Adds a remark whether all greedy tokens were the same.
    fn note(&self, measured: Measured) -> Measured {
        let steps = self.first.len();
        let disagreed = self
            .first
            .iter()
            .zip(&self.second)
            .position(|(a, b)| a != b);
        match disagreed {
            None => measured.remark(format!("greedy tokens of {steps} steps agree")),
            Some(step) => {
                let (ours, theirs) = (&self.first[step], &self.second[step]);
                let differing = ours.iter().zip(theirs).filter(|(a, b)| a != b).count();
                let warning = if self.is_rounded { "" } else { "WARNING: " };
                measured.remark(format!(
                    "{warning}greedy tokens differ from step {} of {steps} on, there in {differing} of {} sequences",
                    step + 1,
                    ours.len()
                ))
            }
        }
    }
}

pub(crate) fn open(
    workbench: &mut Workbench,
    side: SideName,
    batch: &str,
    prompts: &[Vec<u32>],
) -> Result<Answer> {
    let request = Request::DecodeOpen {
        batch: batch.to_owned(),
        prefix: None,
        prompts: prompts.to_vec(),
    };
    workbench.ask(side, &request)
}

pub(crate) fn run(
    workbench: &mut Workbench,
    side: SideName,
    batch: &str,
    steps: usize,
) -> Result<Answer> {
    let batch = batch.to_owned();
    workbench.ask(side, &Request::DecodeRun { batch, steps })
}

pub(crate) fn close(workbench: &mut Workbench, side: SideName, batch: &str) -> Result<()> {
    let batch = batch.to_owned();
    workbench
        .ask(side, &Request::DecodeClose { batch })
        .map(drop)
}

/// Bytes of weights and cached state that a step reads with `cached_tokens` tokens cached.
pub(super) fn bytes_read(
    workbench: &mut Workbench,
    side: SideName,
    cached_tokens: usize,
) -> Result<f64> {
    let hello = workbench.side(side)?.hello();
    let cached = hello.number("cached_token_bytes")? * cached_tokens as f64;
    Ok(hello.number("weight_bytes")? + cached)
}

/// The number of tokens that a side knows. It is started unless it runs.
pub(super) fn vocab_size(workbench: &mut Workbench, side: SideName) -> Result<usize> {
    Ok(workbench.side(side)?.hello().number("vocab_size")? as usize)
}

/// The first side's speed ÷ the second's, where each turn did `work` units.
pub(crate) fn compared(pairs: &Pairs, work: f64, unit: &str) -> Measured {
    let (first, second) = pairs.medians();
    let remark = format!(
        "{:.1} against {:.1} {unit} (medians)",
        work / first,
        work / second
    );
    Measured::new(pairs.second_by_first()).remark(remark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disagreement_is_a_warning() {
        let mut agreement = Agreement {
            first: vec![vec![1, 2], vec![3, 4]],
            second: vec![vec![1, 2], vec![3, 4]],
            is_rounded: false,
        };
        let remarks = |agreement: &Agreement| agreement.note(Measured::default()).remarks;
        assert_eq!(remarks(&agreement), ["greedy tokens of 2 steps agree"]);
        agreement.second[1][0] = 9;
        let remarks = remarks(&agreement);
        assert!(remarks[0].starts_with("WARNING: greedy tokens differ from step 2 of 2 on"));
        assert!(remarks[0].ends_with("in 1 of 2 sequences"));
        agreement.is_rounded = true;
        let remarks = agreement.note(Measured::default()).remarks;
        assert!(remarks[0].starts_with("greedy tokens differ from step 2 of 2 on"));
    }
}
