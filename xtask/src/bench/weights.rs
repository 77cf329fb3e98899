//! Figures of weights as their files store them, against llama.cpp on the same file.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::counters::Process;

use super::model::{close, compared, run, vocab_size};
use super::prompts::{prompt, prompts};
use super::side::Side;
use super::statistics::Measured;
use super::turns::{Turn, take_turns};
use super::workbench::Workbench;
use crate::model::Model;

/// Tokens of each sequence in one turn.
const STEPS: usize = 32;
/// A pause in which the server returns unused memory to the system.
const PAUSE: Duration = Duration::from_secs(3);

/// Our side, by its arithmetic, and llama.cpp's: [`Workbench::against_llama`] or
/// [`Workbench::exact_against_llama`].
type Sides = for<'a> fn(&'a mut Workbench, Model) -> Result<(&'a mut Side, &'a mut Side)>;

/// Decode tokens/s of `sequences` contexts of 128 tokens ÷ llama.cpp's.
pub(super) fn decode(
    workbench: &mut Workbench,
    sides: Sides,
    model: Model,
    sequences: usize,
) -> Result<Measured> {
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    let (ours, theirs) = sides(workbench, model)?;
    let prompts = prompts(sequences, 128, vocab_size(ours)?);
    let open = json!({ "do": "decode_open", "batch": "decode", "prompts": prompts });
    let generate = json!({ "do": "generate", "prompts": prompts, "tokens": steps });
    let pairs = take_turns(rounds, |turn| match turn {
        Turn::First => {
            ours.ask(&open)?;
            let seconds = run(ours, "decode", steps)?.number("seconds");
            close(ours, "decode")?;
            seconds
        }
        Turn::Second => theirs.ask(&generate)?.number("seconds"),
    })?;
    Ok(compared(&pairs, (sequences * steps) as f64, "tok/s"))
}

/// Prefill tokens/s of a prompt of 512 tokens ÷ llama.cpp's.
pub(super) fn prefill(workbench: &mut Workbench, sides: Sides, model: Model) -> Result<Measured> {
    let (tokens, rounds) = (workbench.pick(512, 32), workbench.rounds());
    let (ours, theirs) = sides(workbench, model)?;
    let prompt = prompt(1, tokens, vocab_size(ours)?);
    let request = json!({ "do": "prefill", "prompt": prompt });
    let pairs = take_turns(rounds, |turn| {
        let side = match turn {
            Turn::First => &mut *ours,
            Turn::Second => &mut *theirs,
        };
        side.ask(&request)?.number("seconds")
    })?;
    Ok(compared(&pairs, tokens as f64, "tok/s"))
}

/// Resident memory of our server in the pause after one answer ÷ the bytes of its model's file. Its
/// resident memory right after the answer and its largest until then are in the remark.
pub(super) fn resident_vs_file(workbench: &mut Workbench) -> Result<Measured> {
    let (server, file) = workbench.server_of(Model::Qwen25Coder)?;
    let (generator, serving, json) = workbench.started(&server)?;
    let load = ["--users", "1", "--turns", "1", "--reply-tokens", "8"].map(str::to_owned);
    serving.load(generator, &load, json)?;
    let process = Process::new(serving.id())?;
    let (right_after, peak) = (process.resident_bytes()?, process.peak_bytes()?);
    thread::sleep(PAUSE);
    let resident = process.resident_bytes()?;
    let bytes = std::fs::metadata(&file)?.len();
    let remark = format!(
        "{:.0} MB resident, {:.0} MB right after the answer, at most {:.0} MB, for a file of {:.0} MB",
        resident as f64 / 1e6,
        right_after as f64 / 1e6,
        peak as f64 / 1e6,
        bytes as f64 / 1e6,
    );
    Ok(Measured::new(vec![resident as f64 / bytes as f64]).remark(remark))
}

/// The place of a model's file before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    OnDisk,
    InSystemCache,
}

/// The time until our server is ready ÷ the time to read its model's file once, from the same
/// place.
pub(super) fn load_vs_read(workbench: &mut Workbench, before: Before) -> Result<Measured> {
    let rounds = workbench.rounds();
    let (server, file) = workbench.server_of(Model::Qwen25Coder)?;
    let pairs = take_turns(rounds, |turn| {
        // Pages that a process has mapped stay in the cache.
        workbench.end_other_server();
        if before == Before::OnDisk {
            forget_cached(&file)?;
        }
        match turn {
            Turn::First => seconds_to_read(&file),
            Turn::Second => {
                let started_at = Instant::now();
                workbench.started(&server)?;
                Ok(started_at.elapsed().as_secs_f64())
            }
        }
    })?;
    let (reading, starting) = pairs.medians();
    let remark = format!("ready after {starting:.2} s, read in {reading:.2} s (medians)");
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Removes a file from the system's cache.
fn forget_cached(path: &Path) -> Result<()> {
    // GNU's dd calls `posix_fadvise`.
    let mut dd = Command::new("dd");
    dd.arg(format!("if={}", path.display()));
    dd.args(["iflag=nocache", "count=0", "status=none"]);
    let status = dd.status().context("cannot run `dd`")?;
    ensure!(status.success(), "`dd` cannot drop cached pages: {status}");
    Ok(())
}

fn seconds_to_read(path: &Path) -> Result<f64> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buffer = vec![0; 1 << 20];
    let started_at = Instant::now();
    while file.read(&mut buffer)? > 0 {}
    Ok(started_at.elapsed().as_secs_f64())
}
