//! Figures of weights as their files store them, against llama.cpp and other engines on the same file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use xtask::model::Model;
use xtask::workspace;

use super::model::{Sides, close, compared, open, run};
use super::prompts::{prompt, prompts};
use super::servers::{OurServer, find_llama};
use super::sides::SideName;
use super::turns::{Turn, take_turns};
use super::workbench::Workbench;
use crate::measured::Measured;
use crate::protocol::Request;
use crate::system::{Process, forget_cached};

/// Log of a server that is started for one figure.
const LOG: &str = "other-server.log";
/// Tokens of each sequence in one turn.
const STEPS: usize = 32;
/// A pause in which the server returns unused memory to the system.
const PAUSE: Duration = Duration::from_secs(3);

/// Decode tokens/s of `sequences` contexts of 128 tokens ÷ the peer's.
pub(crate) fn decode(
    workbench: &mut Workbench,
    sides: Sides,
    sequences: usize,
) -> Result<Measured> {
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    let context_tokens = workbench.pick(128, 16);
    let prompts = prompts(sequences, context_tokens, sides.start(workbench)?);
    let generate = Request::Generate {
        prompts: prompts.clone(),
        tokens: steps,
    };
    let pairs = take_turns(rounds, |turn| match turn {
        Turn::First => {
            open(workbench, sides.first, "decode", &prompts)?;
            let seconds = run(workbench, sides.first, "decode", steps)?.number("seconds");
            close(workbench, sides.first, "decode")?;
            seconds
        }
        Turn::Second => workbench.ask(sides.second, &generate)?.number("seconds"),
    })?;
    let measured = compared(&pairs, (sequences * steps) as f64, "tok/s");
    name_peer(workbench, sides.second, measured)
}

/// Prefill tokens/s of a prompt of 512 tokens ÷ the peer's.
pub(crate) fn prefill(workbench: &mut Workbench, sides: Sides) -> Result<Measured> {
    let (tokens, rounds) = (workbench.pick(512, 32), workbench.rounds());
    let prompt = prompt(1, tokens, sides.start(workbench)?);
    let request = Request::Prefill { prompt };
    let pairs = take_turns(rounds, |turn| {
        workbench.ask(sides.of(turn), &request)?.number("seconds")
    })?;
    let measured = compared(&pairs, tokens as f64, "tok/s");
    name_peer(workbench, sides.second, measured)
}

/// Adds a remark on the peer's version and instructions, if it tells them.
fn name_peer(workbench: &mut Workbench, peer: SideName, measured: Measured) -> Result<Measured> {
    let hello = &workbench.side(peer)?.hello().0;
    Ok(
        match (hello["name"].as_str(), hello["instructions"].as_str()) {
            (Some(name), Some(instructions)) => measured.remark(format!("{name}: {instructions}")),
            _ => measured,
        },
    )
}

/// Resident memory of our server in the pause after one answer ÷ the bytes of its model's file. Its
/// resident memory right after the answer and its largest until then are in the remark.
pub(crate) fn resident_vs_file(workbench: &mut Workbench) -> Result<Measured> {
    let (server, file) = server_alone(workbench)?;
    let serving = server.start(&workspace::reports()?.join(LOG))?;
    let load = ["--users", "1", "--turns", "1", "--reply-tokens", "8"].map(str::to_owned);
    workbench.load_on_ours(&serving, &load)?;
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
pub(crate) enum Before {
    OnDisk,
    InSystemCache,
}

/// The time until our server is ready ÷ the time to read its model's file once, from the same
/// place.
pub(crate) fn load_vs_read(workbench: &mut Workbench, before: Before) -> Result<Measured> {
    let rounds = workbench.rounds();
    let (server, file) = server_alone(workbench)?;
    let log = workspace::reports()?.join(LOG);
    let mut serving = None;
    let pairs = take_turns(rounds, |turn| {
        // Pages that a process has mapped stay in the cache.
        drop(serving.take());
        if before == Before::OnDisk {
            ensure!(forget_cached(&file), "`dd` cannot drop cached pages");
        }
        match turn {
            Turn::First => seconds_to_read(&file),
            Turn::Second => {
                let started_at = Instant::now();
                serving = Some(server.start(&log)?);
                Ok(started_at.elapsed().as_secs_f64())
            }
        }
    })?;
    let (reading, starting) = pairs.medians();
    let remark = format!("ready after {starting:.2} s, read in {reading:.2} s (medians)");
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Our server for a large model, which does not run yet, and that model's file. Everything else that
/// has a model is ended.
fn server_alone(workbench: &mut Workbench) -> Result<(OurServer, PathBuf)> {
    find_llama()?;
    workbench.end_models();
    let file = Model::Qwen25Coder.ensure(&workbench.cache)?;
    Ok((workbench.our_server_on(&file)?, file))
}

fn seconds_to_read(path: &Path) -> Result<f64> {
    let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut buffer = vec![0; 1 << 20];
    let started_at = Instant::now();
    while file.read(&mut buffer)? > 0 {}
    Ok(started_at.elapsed().as_secs_f64())
}
