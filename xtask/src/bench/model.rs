//! Figures of the model on MLX.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::mode::Mode;
use super::prompts::{prompt, prompts};
use super::side::{Answer, Side};
use super::statistics::{Measured, median};
use super::turns::{Pairs, Turn, take_turns};
use super::workbench::Workbench;
use crate::workspace;

/// Steps of one turn. The steps of all rounds stay within the 256 tokens by which both sides'
/// caches grow.
const STEPS: usize = 8;

/// GFLOP/s of one f32 product ÷ the same in mlx-lm's process.
pub(super) fn matmul_sanity(workbench: &mut Workbench) -> Result<Measured> {
    let (rows, inner, columns) = (512, 2_048, workbench.pick(2_048, 64));
    let rounds = workbench.rounds();
    let (ours, theirs) = workbench.against_mlx_lm()?;
    let request = json!({ "do": "matmul", "rows": rows, "inner": inner, "columns": columns });
    let pairs = take_turns(rounds, |turn| {
        side_of(turn, ours, theirs).ask(&request)?.number("seconds")
    })?;
    let operations = 2.0 * (rows * inner * columns) as f64 / 1e9;
    Ok(compared(&pairs, operations, "GFLOP/s"))
}

/// The two sides of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sides {
    /// Ours ÷ mlx-lm.
    MlxLm,
    /// Ours in this mode ÷ ours with exact products.
    Exact(Mode),
}

impl Sides {
    fn of(self, workbench: &mut Workbench) -> Result<(&mut Side, &mut Side)> {
        match self {
            Sides::MlxLm => workbench.against_mlx_lm(),
            Sides::Exact(mode) => workbench.against_exact(mode),
        }
    }

    /// Whether one side rounds numbers that the other does not.
    fn are_rounded(self) -> bool {
        matches!(self, Sides::Exact(mode) if mode.is_rounded())
    }
}

/// Decode tokens/s of `batch` contexts of `tokens` tokens ÷ the other side's.
pub(super) fn decode(
    workbench: &mut Workbench,
    sides: Sides,
    sequences: usize,
    context_tokens: usize,
) -> Result<Measured> {
    let context_tokens = workbench.pick(context_tokens, 16);
    let steps = workbench.pick(STEPS, 2);
    let rounds = workbench.rounds();
    let (ours, theirs) = sides.of(workbench)?;
    let prompts = prompts(sequences, context_tokens, vocab_size(ours)?);
    let open = json!({ "do": "decode_open", "batch": "decode", "prompts": prompts });
    let mut agreement = Agreement::default();
    for turn in [Turn::First, Turn::Second] {
        agreement.record(turn, &side_of(turn, ours, theirs).ask(&open)?)?;
    }
    let pairs = take_turns(rounds, |turn| {
        let answer = run(side_of(turn, ours, theirs), "decode", steps)?;
        agreement.record(turn, &answer)?;
        answer.number("seconds")
    })?;
    for side in [ours, theirs] {
        close(side, "decode")?;
    }
    let tokens = (sequences * steps) as f64;
    agreement.is_rounded = sides.are_rounded();
    Ok(agreement.note(compared(&pairs, tokens, "tok/s")))
}

/// The mean negative log-likelihood of a text in this mode ÷ with exact products: the change in
/// percent.
pub(super) fn loss(workbench: &mut Workbench, mode: Mode) -> Result<Measured> {
    let request = loss_request(workbench)?;
    let (ours, exact) = workbench.against_exact(mode)?;
    let bytes = |side: &Side| side.hello().number("cached_token_bytes");
    let bytes = [bytes(ours)?, bytes(exact)?];
    let loss = |side: &mut Side| side.ask(&request)?.number("loss");
    let [changed, exact] = [loss(ours)?, loss(exact)?];
    let remark = format!(
        "{changed:.5} against {exact:.5}, {:+.3} %; {} against {} bytes a token",
        100.0 * (changed / exact - 1.0),
        bytes[0],
        bytes[1],
    );
    Ok(Measured::new(vec![100.0 * (changed / exact - 1.0).abs()]).remark(remark))
}

/// A request for the mean negative log-likelihood of 2,048 tokens: of the decision records.
fn loss_request(workbench: &Workbench) -> Result<Value> {
    let folder = workspace::root().join("docs/adr");
    let files =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut paths = files
        .map(|file| Ok(file?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    let texts = paths.iter().map(fs::read_to_string);
    let text = texts.collect::<std::io::Result<String>>()?;
    Ok(json!({ "do": "loss", "text": text, "tokens": workbench.pick(2_048, 64) }))
}

/// Prefill tokens/s of a prompt of `tokens` tokens, up to its first token, ÷ the other side's.
pub(super) fn prefill(workbench: &mut Workbench, sides: Sides, tokens: usize) -> Result<Measured> {
    let tokens = workbench.pick(tokens, 32);
    let rounds = workbench.rounds();
    let (ours, theirs) = sides.of(workbench)?;
    let prompt = prompt(1, tokens, vocab_size(ours)?);
    let request = json!({ "do": "prefill", "prompt": prompt });
    let mut agreement = Agreement::default();
    let pairs = take_turns(rounds, |turn| {
        let answer = side_of(turn, ours, theirs).ask(&request)?;
        agreement.record(turn, &answer)?;
        answer.number("seconds")
    })?;
    agreement.is_rounded = sides.are_rounded();
    Ok(agreement.note(compared(&pairs, tokens as f64, "tok/s")))
}

/// The time of a decode step ÷ the time to read the bytes of its weights and its cached state
/// from memory. As many threads read them and do nothing else.
pub(super) fn step_vs_roofline(
    workbench: &mut Workbench,
    side: fn(&mut Workbench) -> Result<&mut Side>,
    sequences: usize,
    context_tokens: usize,
) -> Result<Measured> {
    let context_tokens = workbench.pick(context_tokens, 16);
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    let ours = side(workbench)?;
    let prompts = prompts(sequences, context_tokens, vocab_size(ours)?);
    ours.ask(&json!({ "do": "decode_open", "batch": "decode", "prompts": prompts }))?;
    // Half of the decoded tokens are cached before the middle step.
    let decoded = (rounds + 1) * steps / 2;
    let bytes = bytes_read(ours, sequences * (context_tokens + decoded))?;
    let read = json!({ "do": "read_memory", "bytes": bytes as u64, "times": steps });
    let pairs = take_turns(rounds, |turn| match turn {
        Turn::First => ours.ask(&read)?.number("seconds"),
        Turn::Second => run(ours, "decode", steps)?.number("seconds"),
    })?;
    close(ours, "decode")?;
    let (reading, stepping) = pairs.medians();
    let remark = format!(
        "a step takes {:.1} ms; its {:.0} MB are read in {:.1} ms, at {:.1} GB/s (medians)",
        stepping * 1e3 / steps as f64,
        bytes / 1e6,
        reading * 1e3 / steps as f64,
        bytes / 1e9 * steps as f64 / reading,
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Decode tokens/s of 16 sequences on one shared prefix ÷ the same on private copies.
pub(super) fn shared_prefix_gain(workbench: &mut Workbench) -> Result<Measured> {
    const SEQUENCES: usize = 16;
    let (prefix_tokens, steps) = (workbench.pick(1_024, 32), workbench.pick(STEPS / 2, 2));
    let rounds = workbench.rounds();
    let ours = workbench.ours()?;
    let vocab_size = vocab_size(ours)?;
    let prefix = prompt(0, prefix_tokens, vocab_size);
    let mut agreement = Agreement::default();
    for (turn, batch, shared) in [
        (Turn::First, "shared", true),
        (Turn::Second, "private", false),
    ] {
        let answer = ours.ask(&json!({
            "do": "decode_open",
            "batch": batch,
            "prefix": { "tokens": prefix, "shared": shared },
            "prompts": prompts(SEQUENCES, 8, vocab_size),
        }))?;
        agreement.record(turn, &answer)?;
    }
    let pairs = take_turns(rounds, |turn| {
        let answer = run(ours, pick(turn, "shared", "private"), steps)?;
        agreement.record(turn, &answer)?;
        answer.number("seconds")
    })?;
    close(ours, "shared")?;
    close(ours, "private")?;
    let tokens = (SEQUENCES * steps) as f64;
    Ok(agreement.note(compared(&pairs, tokens, "tok/s")))
}

/// Growth of a decode step's time from 128 to 4,096 cached tokens ÷ growth of the bytes of
/// weights and cached state that it reads.
pub(super) fn tail_growth(workbench: &mut Workbench) -> Result<Measured> {
    let tails = Tails::of(workbench);
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    let ours = workbench.ours()?;
    tails.open(ours)?;
    let pairs = take_turns(rounds, |turn| {
        run(ours, pick(turn, "short", "long"), steps)?.number("seconds")
    })?;
    tails.close(ours)?;

    let by_bytes = bytes_read(ours, tails.long)? / bytes_read(ours, tails.short)?;
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
pub(super) fn step_bytes_allocated(workbench: &mut Workbench) -> Result<Measured> {
    let tails = Tails::of(workbench);
    let rounds = workbench.rounds();
    let ours = workbench.ours()?;
    tails.open(ours)?;
    let mut bytes = |batch| -> Result<Vec<f64>> {
        run(ours, batch, 1)?; // a full tail grows by a block
        let steps = (0..rounds).map(|_| run(ours, batch, 1)?.number("scratch_bytes"));
        steps.collect()
    };
    let (short, long) = (bytes("short")?, bytes("long")?);
    tails.close(ours)?;
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
    fn of(workbench: &Workbench) -> Self {
        Self {
            short: workbench.pick(128, 16),
            long: workbench.pick(4_096, 64),
        }
    }

    fn open(self, side: &mut Side) -> Result<()> {
        for (batch, tokens) in [("short", self.short), ("long", self.long)] {
            let prompts = prompts(1, tokens, vocab_size(side)?);
            side.ask(&json!({ "do": "decode_open", "batch": batch, "prompts": prompts }))?;
        }
        Ok(())
    }

    fn close(self, side: &mut Side) -> Result<()> {
        close(side, "short")?;
        close(side, "long")
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

fn side_of<'a>(turn: Turn, ours: &'a mut Side, theirs: &'a mut Side) -> &'a mut Side {
    pick(turn, ours, theirs)
}

fn pick<T>(turn: Turn, first: T, second: T) -> T {
    match turn {
        Turn::First => first,
        Turn::Second => second,
    }
}

pub(super) fn run(side: &mut Side, batch: &str, steps: usize) -> Result<Answer> {
    side.ask(&json!({ "do": "decode_run", "batch": batch, "steps": steps }))
}

pub(super) fn close(side: &mut Side, batch: &str) -> Result<()> {
    let request: Value = json!({ "do": "decode_close", "batch": batch });
    side.ask(&request).map(drop)
}

/// Bytes of weights and cached state that a step reads with `cached_tokens` tokens cached.
fn bytes_read(side: &Side, cached_tokens: usize) -> Result<f64> {
    let hello = side.hello();
    let cached = hello.number("cached_token_bytes")? * cached_tokens as f64;
    Ok(hello.number("weight_bytes")? + cached)
}

pub(super) fn vocab_size(side: &Side) -> Result<usize> {
    Ok(side.hello().number("vocab_size")? as usize)
}

/// The first side's speed ÷ the second's, where each turn did `work` units.
pub(super) fn compared(pairs: &Pairs, work: f64, unit: &str) -> Measured {
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
