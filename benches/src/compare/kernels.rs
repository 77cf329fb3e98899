//! Figures of integer products, and the speed of kernels as a limit of a model's step.

use anyhow::{Context, Result};
use xtask::model::Model;

use super::engines::Engine;
use super::model::{STEPS, Sides, bytes_read, close, compared, open, run, vocab_size};
use super::prompts::prompts;
use super::sides::SideName;
use super::turns::{Turn, take_turns};
use super::workbench::Workbench;
use crate::measured::{Measured, median};
use crate::mode::Mode;
use crate::protocol::{Products, Request};

/// Numbers of a row and rows of the weights: the shape of Qwen2.5-Coder 1.5B's largest matrices.
const SHAPE: [usize; 2] = [8_960, 1_536];
/// More than the caches of two processors hold.
const WEIGHT_BYTES: usize = 256 << 20;
/// Numbers of rows among which kernels are searched for their highest speed.
const ROWS: [usize; 4] = [8, 16, 64, 512];

/// The time of a product with `rows` rows ÷ the same with one.
pub(crate) fn rows_vs_one(
    workbench: &mut Workbench,
    format: &str,
    rows: usize,
) -> Result<Measured> {
    let rounds = workbench.rounds();
    // Each copy is read once.
    let times = workbench.pick(32, 2);
    let [one, more] = [1, rows].map(|rows| products(workbench, format, rows, times));
    let pairs = take_turns(rounds, |turn| {
        seconds(workbench, SideName::Kernels, turn.pick(&one, &more))
    })?;
    let (one_seconds, more_seconds) = pairs.medians();
    let remark = format!(
        "{:.1} billion products a second with {rows} rows, {:.1} with one (medians), {}",
        more.count() / 1e9 / more_seconds,
        one.count() / 1e9 / one_seconds,
        instructions(workbench, SideName::Kernels)?,
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Products a second with 512 rows ÷ ik_llama.cpp's.
pub(crate) fn many_rows_vs_ik(workbench: &mut Workbench, format: &str) -> Result<Measured> {
    let rounds = workbench.rounds();
    let rows = workbench.pick(512, 32);
    let times = workbench.pick(4, 1);
    let asked = products(workbench, format, rows, times);
    let sides = Sides {
        first: SideName::Kernels,
        second: SideName::Engine(Engine::Ik, None),
    };
    let theirs = instructions(workbench, sides.second)?;
    let ours = instructions(workbench, sides.first)?;
    let pairs = take_turns(rounds, |turn: Turn| {
        seconds(workbench, sides.of(turn), &asked)
    })?;
    let measured = compared(&pairs, asked.count() / 1e9, "billion products a second");
    Ok(measured.remark(format!("ours {ours}, theirs {theirs}")))
}

/// The time of a decode step of contexts of 128 tokens ÷ the longer of two: the time to read the bytes
/// of its weights and its cached state from memory by as many threads, and the time of its products
/// at the best speed of the kernels.
pub(crate) fn step_vs_limit(
    workbench: &mut Workbench,
    model: Model,
    sequences: usize,
) -> Result<Measured> {
    let side = SideName::OursOn(model, Mode::Default);
    let context_tokens = workbench.pick(128, 16);
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    let prompts = prompts(sequences, context_tokens, vocab_size(workbench, side)?);
    open(workbench, side, "decode", &prompts)?;
    // Half of the decoded tokens are cached before the middle step.
    let decoded = (rounds + 1) * steps / 2;
    let bytes = bytes_read(workbench, side, sequences * (context_tokens + decoded))?;
    let read = Request::ReadMemory {
        bytes: bytes as usize,
        times: steps,
    };
    let fastest = Fastest::of(workbench, side)?;
    let (mut reading, mut multiplying) = (Vec::new(), Vec::new());
    let pairs = take_turns(rounds, |turn| match turn {
        Turn::First => {
            let read_seconds = workbench.ask(side, &read)?.number("seconds")? / steps as f64;
            let product_seconds = fastest.row_seconds(workbench)? * sequences as f64;
            reading.push(read_seconds);
            multiplying.push(product_seconds);
            Ok(read_seconds.max(product_seconds))
        }
        Turn::Second => {
            Ok(run(workbench, side, "decode", steps)?.number("seconds")? / steps as f64)
        }
    })?;
    close(workbench, side, "decode")?;
    let (read_seconds, product_seconds) = (median(&reading), median(&multiplying));
    let products = fastest.row_products() * sequences as f64;
    let remark = format!(
        "a step takes {:.1} ms; {} holds: its {:.0} MB are read in {:.1} ms, at {:.1} GB/s, and its \
         {:.2} billion products take {:.1} ms, at {:.0} billion a second (medians)",
        pairs.medians().1 * 1e3,
        if read_seconds > product_seconds {
            "reading"
        } else {
            "multiplying"
        },
        bytes / 1e6,
        read_seconds * 1e3,
        bytes / 1e9 / read_seconds,
        products / 1e9,
        product_seconds * 1e3,
        products / 1e9 / product_seconds,
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Products of one row with a model's weights, each format with the rows at which its kernel is
/// fastest.
struct Fastest {
    side: SideName,
    /// The products of each format, and the number of the model's weights.
    formats: Vec<(Products, f64)>,
}

impl Fastest {
    /// Searches the speeds of kernels in this side's process.
    fn of(workbench: &mut Workbench, side: SideName) -> Result<Self> {
        let weights = workbench.side(side)?.hello().0["weights"].clone();
        let weights = weights.as_object().context("a side without weights")?;
        let mut formats = Vec::new();
        for (format, count) in weights {
            let mut best: Option<(f64, Products)> = None;
            for rows in ROWS {
                let times = workbench.pick(512 / rows, 1);
                let asked = products(workbench, format, rows, times);
                let rate = asked.count() / seconds(workbench, side, &asked)?;
                if best.as_ref().is_none_or(|(before, _)| *before < rate) {
                    best = Some((rate, asked));
                }
            }
            let (_, asked) = best.expect("rows are named");
            formats.push((asked, count.as_f64().context("a number of weights")?));
        }
        Ok(Self { side, formats })
    }

    /// The seconds of one row's products with all weights, as measured now.
    fn row_seconds(&self, workbench: &mut Workbench) -> Result<f64> {
        let mut sum = 0.0;
        for (asked, weights) in &self.formats {
            sum += seconds(workbench, self.side, asked)? / asked.count() * weights;
        }
        Ok(sum)
    }

    /// Products of one row.
    fn row_products(&self) -> f64 {
        self.formats.iter().map(|(_, weights)| weights).sum()
    }
}

fn products(workbench: &Workbench, format: &str, rows: usize, times: usize) -> Products {
    let [inner, columns] = SHAPE;
    Products {
        format: format.to_owned(),
        rows,
        inner,
        columns: workbench.pick(columns, 64),
        bytes: workbench.pick(WEIGHT_BYTES, 1),
        times,
    }
}

fn seconds(workbench: &mut Workbench, side: SideName, asked: &Products) -> Result<f64> {
    let request = Request::Products(asked.clone());
    workbench.ask(side, &request)?.number("seconds")
}

fn instructions(workbench: &mut Workbench, side: SideName) -> Result<String> {
    let instructions = workbench.side(side)?.hello().0["instructions"].as_str();
    Ok(instructions
        .context("a side without instructions")?
        .to_owned())
}
