//! Measures what grammars cost: those of the hostile corpus, and a folder of schemas.
//!
//! ```sh
//! cargo run -p motet-benches --bin grammars -- corpus
//! cargo run -p motet-benches --bin grammars -- schemas FOLDER
//! ```
//!
//! `corpus` runs each hostile grammar in a process of its own, and prints its processor time and memory.
//! `schemas` compiles every schema of a folder with the bounds off and on. It lists the bounds that reject schemas which
//! would compile, and times the masks along the valid instances. A file is a schema; or it holds the schema as `schema`,
//! and instances as `tests`, each with `valid` and `data`, as in `maskbench/data` of JSONSchemaBench.
//! Processor time and memory are read from `/proc`, so the figures need Linux.

#[path = "../../../../tests/hostile/grammars/mod.rs"]
mod hostile;
mod schemas;
#[path = "../../../../tests/hostile/vocabulary.rs"]
mod vocabulary;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use motet::grammar::GrammarSource;
use motet_text::grammar::{Grammar, GrammarVocabulary, MaskPool, Next};

/// Measures what grammars cost.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Debug, Subcommand)]
enum Mode {
    /// Runs each hostile grammar in a process of its own
    Corpus,
    /// Runs one of them in this process
    One { name: String },
    /// Compiles all schemas of a folder, and times masks
    Schemas { folder: std::path::PathBuf },
}

fn main() -> Result<()> {
    match Arguments::parse().mode {
        Mode::Corpus => corpus(),
        Mode::One { name } => one(&name),
        Mode::Schemas { folder } => schemas::report(&folder),
    }
}

fn corpus() -> Result<()> {
    println!(
        "{:<32} {:>7} {:>9} {:>10} {:>6}  answer",
        "grammar", "cpu", "grown", "mask", "work"
    );
    for hostile in hostile::grammars() {
        let program = std::env::current_exe()?;
        let output = Command::new(program).args(["one", hostile.name]).output()?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            println!("{:<32} {}", hostile.name, output.status);
        }
    }
    Ok(())
}

/// Prints what one grammar takes: its compilation, and a hundred tokens along it.
fn one(name: &str) -> Result<()> {
    let all = hostile::grammars();
    let hostile = all.iter().find(|hostile| hostile.name == name);
    let hostile = hostile.context("there is no such grammar")?;
    let source = match hostile.kind {
        "json_schema" => GrammarSource::JsonSchema(hostile.source.clone()),
        "regex" => GrammarSource::Regex(hostile.source.clone()),
        _ => GrammarSource::Lark(hostile.source.clone()),
    };
    let vocabulary = GrammarVocabulary::from_bytes(vocabulary::tokens(), &[0])?;
    let pool = MaskPool::start(1)?;
    let (time, bytes) = (processor_seconds()?, resident_kilobytes()?);
    let Answer {
        outcome,
        mask_max,
        work_max,
    } = answer(&source, &vocabulary, &pool);
    let (time, bytes) = (
        processor_seconds()? - time,
        resident_kilobytes()?.saturating_sub(bytes),
    );
    let mask_max = mask_max.as_secs_f64() * 1e3;
    println!("{name:<32} {time:>5.2} s {bytes:>6} kB {mask_max:>7.2} ms {work_max:>6}  {outcome}");
    Ok(())
}

/// The figures of one grammar.
struct Answer {
    outcome: String,
    /// The longest time of one token: accepting it, and computing the mask after it.
    mask_max: Duration,
    /// The most work of one token, as motet counts it.
    work_max: u64,
}

fn answer(source: &GrammarSource, vocabulary: &GrammarVocabulary, pool: &Arc<MaskPool>) -> Answer {
    let mut answer = Answer {
        outcome: String::new(),
        mask_max: Duration::ZERO,
        work_max: 0,
    };
    answer.outcome = match Grammar::compile(source, vocabulary, pool) {
        Ok(grammar) => follow(&grammar, &mut answer),
        Err(error) => {
            let line = error.to_string().replace('\n', " ");
            line.chars().take(110).collect()
        }
    };
    answer
}

/// Follows a grammar for a hundred tokens. Returns a text that says how far it got.
fn follow(grammar: &Grammar, answer: &mut Answer) -> String {
    let mut matcher = grammar.matcher();
    let mut choice: u64 = 7;
    let mut accept_time = Duration::ZERO;
    for step in 0..100 {
        let mut started_at = Instant::now();
        let next = matcher.next_tokens();
        answer.mask_max = answer.mask_max.max(accept_time + started_at.elapsed());
        answer.work_max = answer.work_max.max(matcher.take_work());
        let next = match next {
            Ok(Next::Mask(mask)) => mask,
            Ok(Next::Forced(forced)) => forced.mask,
            Ok(Next::Finished) => return format!("compiled; finished after {step} tokens"),
            Err(error) => return format!("compiled; after {step} tokens {error}"),
        };
        choice = choice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let nth = (choice >> 33) as usize % next.count();
        let token = next.tokens().nth(nth).expect("there are as many");
        started_at = Instant::now();
        if let Err(error) = matcher.accept(token) {
            return format!("compiled; after {step} tokens {error}");
        }
        accept_time = started_at.elapsed();
    }
    "compiled; 100 tokens".into()
}

/// The processor time of this process, in seconds.
fn processor_seconds() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().context("a name in brackets")?;
    let hundredths = |at: usize| -> Result<f64> {
        let field = fields.split_whitespace().nth(at).context("a time")?;
        Ok(field.parse()?)
    };
    // User and system time, in hundredths of a second.
    Ok((hundredths(11)? + hundredths(12)?) / 100.0)
}

/// The peak resident memory of this process, in kilobytes.
fn resident_kilobytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let field = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(field.context("a size")?.parse()?)
}
