//! A profile as a Markdown table.

use std::time::Duration;

use motet::model::mlx::profile::Op;

use crate::programs::model::profile::{Line, Profile};

const HEADINGS: [&str; 11] = [
    "operation",
    "times",
    "MB",
    "before: µs each",
    "ms",
    "share",
    "after: µs each",
    "ms",
    "share",
    "GB/s",
    "GFLOP/s",
];

type Row = [String; HEADINGS.len()];

/// The times of both ways' steps: a row for each kind of operation, and for the remainder.
pub(crate) fn table(profiles: &[Profile; 2]) -> String {
    let [before, after] = profiles;
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    for line in &after.lines {
        let earlier = before.lines.iter().find(|earlier| earlier.op == line.op);
        rows.push(operation(line, [earlier, Some(line)], profiles));
    }
    let sums = profiles.each_ref().map(|profile| {
        let totals = profile.lines.iter().map(|line| line.total);
        totals.sum()
    });
    rows.push(remainder("all of these", sums, profiles));
    for (index, name) in ["before the first", "between two", "after the last"]
        .into_iter()
        .enumerate()
    {
        let idle = profiles.each_ref().map(|profile| profile.idle[index]);
        rows.push(remainder(name, idle, profiles));
    }
    let clocked = profiles.each_ref().map(|profile| profile.clocked);
    rows.push(remainder("the step", clocked, profiles));
    let plain = profiles.each_ref().map(|profile| profile.plain);
    rows.push(remainder("without clocks", plain, profiles));
    aligned(&rows)
}

fn operation(line: &Line, both: [Option<&Line>; 2], profiles: &[Profile; 2]) -> Row {
    let count = line.count as f64;
    let per_second = |of: usize| of as f64 / 1e9 / line.total.as_secs_f64();
    let [before, after] = [0, 1].map(|way| {
        both[way].map_or_else(Default::default, |line| {
            let [ms, share] = whole(line.total, &profiles[way]);
            [micros(line.total / line.count as u32), ms, share]
        })
    });
    let gflops = match line.cost.flops {
        0 => String::new(),
        flops => format!("{:.0}", per_second(flops)),
    };
    row(
        [
            name(line.op).to_owned(),
            line.count.to_string(),
            format!("{:.2}", line.cost.read_bytes as f64 / 1e6 / count),
        ],
        before,
        after,
        [format!("{:.1}", per_second(line.cost.read_bytes)), gflops],
    )
}

/// A row for time that no single operation takes.
fn remainder(name: &str, took: [Duration; 2], profiles: &[Profile; 2]) -> Row {
    let [before, after] = [0, 1].map(|way| {
        let [ms, share] = whole(took[way], &profiles[way]);
        [String::new(), ms, share]
    });
    let begins = [name.to_owned(), String::new(), String::new()];
    row(begins, before, after, Default::default())
}

fn row(begins: [String; 3], before: [String; 3], after: [String; 3], ends: [String; 2]) -> Row {
    let mut cells = begins.into_iter().chain(before).chain(after).chain(ends);
    std::array::from_fn(|_| cells.next().expect("eleven cells"))
}

/// Milliseconds, and the share of the step.
fn whole(took: Duration, profile: &Profile) -> [String; 2] {
    let share = 100.0 * took.as_secs_f64() / profile.clocked.as_secs_f64();
    [
        format!("{:.2}", took.as_secs_f64() * 1e3),
        format!("{share:.1} %"),
    ]
}

fn micros(took: Duration) -> String {
    format!("{:.1}", took.as_secs_f64() * 1e6)
}

fn name(op: Op) -> &'static str {
    match op {
        Op::EmbeddingRows => "embedding rows",
        Op::Norm => "norm",
        Op::PackedProduct => "QKV product",
        Op::Attention => "attention over paths",
        Op::OutputProduct => "output product",
        Op::AddNorm => "add and norm",
        Op::GateUpProduct => "gate and up product",
        Op::Activation => "activation",
        Op::DownProduct => "down product",
        Op::HeadProduct => "head product",
        Op::Sample => "sampling tokens",
        Op::OutputGate => "attention's gate",
        Op::ShortConv => "short convolution",
        Op::DeltaNet => "delta net",
        Op::Mamba2 => "Mamba 2",
        Op::GatedNorm => "gated norm",
        Op::StateCopy => "copies of recurrent state",
        Op::RouterProduct => "router product",
        Op::Experts => "experts",
        Op::Softcap => "bound on logits",
        _ => "another",
    }
}

/// The rows below each other; the first are headings.
fn aligned(rows: &[Row]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..HEADINGS.len()).filter_map(width).collect();
    let line = |row: &Row| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!(" {cell:<width$} |"),
            _ => format!(" {cell:>width$} |"),
        });
        format!("|{}\n", cells.collect::<String>())
    };
    let rules = widths.iter().enumerate().map(|(column, width)| {
        let rule = "-".repeat(width + 1);
        if column == 0 {
            format!("{rule}-|")
        } else {
            format!("{rule}:|")
        }
    });
    let rules = format!("|{}\n", rules.collect::<String>());
    let mut lines = rows.iter().map(line);
    let headings = lines.next().unwrap_or_default();
    headings + &rules + &lines.collect::<String>()
}
