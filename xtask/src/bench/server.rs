//! Figures of the server, under the load generator's load over HTTP.

use anyhow::Result;

use super::serving::{LoadResult, Serving};
use super::statistics::{Measured, median};
use super::turns::{Turn, take_turns};
use super::workbench::{Peer, Workbench};
use crate::ui;

/// Pairs of turns: mlx-lm takes most of a minute for the first load.
const ROUNDS_MAX: usize = 5;
/// Name of the threads that tokenise, schedule, detokenise and write.
const HOST_THREADS: &str = "tokio-rt-worker";

/// Our wall time for the load generator's default load ÷ that of the peer's server.
pub(super) fn shared(workbench: &mut Workbench, peer: Peer) -> Result<Measured> {
    let load = if workbench.is_quick() {
        "--users 2 --turns 1 --reply-tokens 4"
    } else {
        "--users 16 --turns 3 --reply-tokens 48"
    };
    against(
        workbench,
        peer,
        &format!("--fresh --system-words 400 {load}"),
    )
}

/// The same for prompts that share nothing.
pub(super) fn unique(workbench: &mut Workbench, peer: Peer) -> Result<Measured> {
    let load = if workbench.is_quick() {
        "--users 2 --reply-tokens 4"
    } else {
        "--users 16 --reply-tokens 48"
    };
    against(workbench, peer, &format!("--unique-words 100 {load}"))
}

/// The same for one user with two turns.
pub(super) fn single(workbench: &mut Workbench, peer: Peer) -> Result<Measured> {
    let load = if workbench.is_quick() {
        "--users 1 --turns 1 --reply-tokens 4"
    } else {
        "--users 1 --turns 2 --reply-tokens 128"
    };
    against(
        workbench,
        peer,
        &format!("--fresh --system-words 40 {load}"),
    )
}

/// Both servers answer until the model's own end. Their greedy replies can differ from where two
/// tokens are almost equally likely, so times are compared per token of output.
fn against(workbench: &mut Workbench, peer: Peer, load: &str) -> Result<Measured> {
    let rounds = workbench.rounds().min(ROUNDS_MAX);
    let (generator, ours, theirs, json) = workbench.servers(peer)?;
    let mut counts = (Vec::new(), Vec::new());
    let mut walls = (Vec::new(), Vec::new());
    let mut turns = 0;
    let pairs = take_turns(rounds, |turn| {
        // Both turns of a pair get the same load, and no pair finds another pair's prompts in a
        // cache.
        let pair = turns / 2;
        let arguments = words(load, pair + 1);
        turns += 1;
        let (server, counts, walls) = match turn {
            Turn::First => (theirs, &mut counts.0, &mut walls.0),
            Turn::Second => (ours, &mut counts.1, &mut walls.1),
        };
        let load_result = server.load(generator, &arguments, json)?;
        announce(pair, rounds, server, load_result);
        if pair > 0 {
            counts.push(load_result.output_tokens);
            walls.push(load_result.seconds);
        }
        Ok(load_result.seconds / load_result.output_tokens)
    })?;
    let remark = format!(
        "wall time {:.2} s for {:.0} tokens against {:.2} s for {:.0}; compared per token",
        median(&walls.1),
        median(&counts.1),
        median(&walls.0),
        median(&counts.0),
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Processor time of the threads that do not compute the model ÷ time of the load.
pub(super) fn overhead_share(workbench: &mut Workbench) -> Result<Measured> {
    let load = if workbench.is_quick() {
        "--unique-words 20 --users 2 --reply-tokens 4 --ignore-end"
    } else {
        "--unique-words 20 --users 16 --reply-tokens 128 --ignore-end"
    };
    let rounds = workbench.rounds().min(ROUNDS_MAX);
    let (generator, server, json) = workbench.server()?;
    let (mut samples, mut micros) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let before = server.thread_seconds(HOST_THREADS)?;
        let load_result = server.load(generator, &words(load, round + 1), json)?;
        let spent = server.thread_seconds(HOST_THREADS)? - before;
        announce(round, rounds, server, load_result);
        // The first round warms up.
        if round > 0 {
            samples.push(spent / load_result.seconds);
            micros.push(1e6 * spent / load_result.output_tokens);
        }
    }
    let remark = format!(
        "{:.0} µs of a processor for each token, the actors' work included",
        median(&micros)
    );
    Ok(Measured::new(samples).remark(remark))
}

/// Prints the time of a turn: all turns together take minutes.
fn announce(round: usize, rounds: usize, server: &Serving, load_result: LoadResult) {
    let round = match round {
        0 => "to warm up".to_owned(),
        _ => format!("{round} of {rounds}"),
    };
    ui::note(&format!(
        "{round}: {} took {:.1} s for {:.0} tokens",
        server.name(),
        load_result.seconds,
        load_result.output_tokens
    ));
}

fn words(load: &str, seed: usize) -> Vec<String> {
    let load = load.split_whitespace().map(str::to_owned);
    load.chain(["--seed".to_owned(), seed.to_string()])
        .collect()
}
