//! A folder of schemas: counts those that compile, and times their masks.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use motet::grammar::{GrammarError, GrammarLimits, GrammarSource};
use motet_text::grammar::{Grammar, GrammarVocabulary, MaskPool, Next};
use serde_json::Value;

/// The vocabulary's size, that of SmolLM2.
const TOKENS: usize = 49_152;
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16;

#[derive(Default)]
struct Report {
    schemas: usize,
    compile: usize,
    rejected: BTreeMap<&'static str, Vec<String>>,
    compile_times: Vec<Duration>,
    mask_times: Vec<Duration>,
    mask_work: Vec<Duration>,
    instances: usize,
    not_followed: usize,
}

pub(crate) fn report(folder: &Path) -> Result<()> {
    let mut paths: Vec<_> = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    paths.sort();
    let tokens = tokens(&paths)?;
    let ids: HashMap<Vec<u8>, u32> = tokens
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), id as u32))
        .collect();
    let bounded = GrammarVocabulary::from_bytes(tokens, &[0])?;
    let unbounded = bounded.clone().with_limits(GrammarLimits::unbounded());
    let pool = MaskPool::start(1)?;
    let mut report = Report::default();
    for path in &paths {
        let text = std::fs::read_to_string(path)?;
        let file: Value = serde_json::from_str(&text)?;
        let schema = file.get("schema").unwrap_or(&file);
        let source = GrammarSource::JsonSchema(schema.to_string());
        report.schemas += 1;
        let name = path.file_name().context("a file")?.to_string_lossy();
        let began = Instant::now();
        match Grammar::compile(&source, &bounded, &pool) {
            Ok(grammar) => {
                report.compile += 1;
                report.compile_times.push(began.elapsed());
                for instance in valid(&file) {
                    report.follow(&grammar, &instance, &ids);
                }
            }
            Err(GrammarError::TooExpensive { bound, .. }) => {
                if Grammar::compile(&source, &unbounded, &pool).is_ok() {
                    report.compile += 1;
                    let line = format!("{name}: {bound}");
                    report.rejected.entry(bound.bound).or_default().push(line);
                }
            }
            Err(_) => {}
        }
    }
    report.print();
    Ok(())
}

fn valid(file: &Value) -> Vec<String> {
    let tests = file.get("tests").and_then(Value::as_array);
    let tests = tests.into_iter().flatten();
    tests
        .filter(|test| test["valid"] == true)
        .map(|test| test["data"].to_string())
        .collect()
}

impl Report {
    fn follow(&mut self, grammar: &Grammar, text: &str, ids: &HashMap<Vec<u8>, u32>) {
        self.instances += 1;
        let mut matcher = grammar.matcher();
        for token in encode(text.as_bytes(), ids) {
            matcher.take_work();
            let began = Instant::now();
            let next = matcher.next_tokens();
            self.mask_times.push(began.elapsed());
            let allowed = next.as_ref().ok().and_then(Next::mask);
            let allows = allowed.is_some_and(|mask| mask.allows(token));
            if !allows || matcher.accept(token).is_err() {
                self.not_followed += 1;
                return;
            }
            self.mask_work
                .push(Duration::from_micros(matcher.take_work()));
        }
    }

    fn print(&mut self) {
        println!(
            "{} schemas, of which {} compile with the bounds off",
            self.schemas, self.compile
        );
        let rejected: usize = self.rejected.values().map(Vec::len).sum();
        let part = 100.0 * rejected as f64 / self.compile.max(1) as f64;
        println!("rejected with the bounds on: {rejected}, {part:.2} %");
        for (bound, lines) in &self.rejected {
            println!("  {bound}: {}", lines.len());
            lines.iter().for_each(|line| println!("    {line}"));
        }
        println!(
            "{} valid instances, {} not followed",
            self.instances, self.not_followed
        );
        quantiles("compilation, us", &mut self.compile_times);
        quantiles("mask, us", &mut self.mask_times);
        quantiles("work of a token, units", &mut self.mask_work);
    }
}

fn quantiles(what: &str, times: &mut [Duration]) {
    if times.is_empty() {
        return;
    }
    times.sort_unstable();
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let mean = times.iter().copied().map(micros).sum::<f64>() / times.len() as f64;
    let at = |part: f64| micros(times[((times.len() - 1) as f64 * part) as usize]);
    println!(
        "{what}: n {}, mean {mean:.0}, p50 {:.0}, p95 {:.0}, p99 {:.0}, p99.9 {:.0}, max {:.0}",
        times.len(),
        at(0.5),
        at(0.95),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

/// Makes a vocabulary from the folder's own texts, so that no tokenizer file is needed. It holds all bytes and the most
/// frequent pieces: words with or without a space before them, numbers, runs of anything else.
fn tokens(paths: &[std::path::PathBuf]) -> Result<Vec<Vec<u8>>> {
    let mut counts: HashMap<Vec<u8>, usize> = HashMap::new();
    for path in paths {
        let text = std::fs::read(path)?;
        let mut from = 0;
        while from < text.len() {
            let kind = |byte: u8| match byte {
                b'a'..=b'z' | b'A'..=b'Z' => 0,
                b'0'..=b'9' => 1,
                0x80.. => 2,
                b' ' | b'\n' => 3,
                _ => 4,
            };
            let skips = usize::from(text[from] == b' ' && from + 1 < text.len());
            let first = kind(text[from + skips]);
            let run = text[from + skips..].iter().take(TOKEN_BYTES_MAX - 1);
            let length = skips + run.take_while(|byte| kind(**byte) == first).count().max(1);
            *counts
                .entry(text[from..from + length].to_vec())
                .or_default() += 1;
            from += length;
        }
    }
    let mut pieces: Vec<(usize, Vec<u8>)> = counts
        .into_iter()
        .filter(|(piece, _)| piece.len() > 1)
        .map(|(piece, count)| (count, piece))
        .collect();
    pieces.sort_unstable_by(|a, b| b.cmp(a));
    let mut tokens = vec![Vec::new()];
    tokens.extend((0..=255u8).map(|byte| vec![byte]));
    let remaining = TOKENS - tokens.len();
    tokens.extend(pieces.into_iter().take(remaining).map(|(_, piece)| piece));
    Ok(tokens)
}

/// Encodes greedily: the longest token that matches comes first.
fn encode(text: &[u8], ids: &HashMap<Vec<u8>, u32>) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut from = 0;
    while from < text.len() {
        let longest = (1..=TOKEN_BYTES_MAX.min(text.len() - from)).rev();
        let found =
            longest.filter_map(|length| Some((length, ids.get(&text[from..from + length])?)));
        let (length, id) = found.into_iter().next().expect("each byte is a token");
        tokens.push(*id);
        from += length;
    }
    tokens
}
