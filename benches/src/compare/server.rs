//! Figures of the server, under the load generator's load over HTTP.

use anyhow::Result;

use xtask::ui;

use super::servers::{LoadResult, ServerName};
use super::turns::take_turns;
use super::workbench::Workbench;
use crate::measured::{Measured, median, median_of};
use crate::system::Process;

/// Pairs of turns: mlx-lm takes most of a minute for the first load.
const ROUNDS_MAX: usize = 5;
/// Name of the threads that tokenise, schedule, detokenise and write.
const HOST_THREADS: &str = "tokio-rt-worker";

/// Our wall time for the load generator's default load ÷ that of the peer's server.
pub(crate) fn shared(workbench: &mut Workbench, peer: ServerName) -> Result<Measured> {
    let load = workbench.pick(
        "--users 16 --turns 3 --reply-tokens 48",
        "--users 2 --turns 1 --reply-tokens 4",
    );
    let load = format!("--fresh --system-words 400 {load}");
    against(workbench, [ServerName::Ours, peer], &load)
}

/// The same for prompts that share nothing.
pub(crate) fn unique(workbench: &mut Workbench, peer: ServerName) -> Result<Measured> {
    let load = workbench.pick("--users 16 --reply-tokens 48", "--users 2 --reply-tokens 4");
    let load = format!("--unique-words 100 {load}");
    against(workbench, [ServerName::Ours, peer], &load)
}

/// That of one of these servers for one user with two turns ÷ that of the other.
pub(crate) fn single(workbench: &mut Workbench, servers: [ServerName; 2]) -> Result<Measured> {
    let load = workbench.pick(
        "--users 1 --turns 2 --reply-tokens 128",
        "--users 1 --turns 1 --reply-tokens 4",
    );
    let load = format!("--fresh --system-words 40 {load}");
    against(workbench, servers, &load)
}

/// Both servers answer until the model's own end. Their greedy replies can differ from where two
/// tokens are almost equally likely, so times are compared per token of output.
fn against(
    workbench: &mut Workbench,
    [ours, peer]: [ServerName; 2],
    load: &str,
) -> Result<Measured> {
    let rounds = workbench.rounds().min(ROUNDS_MAX);
    for server in [peer, ours] {
        workbench.server(server)?;
    }
    let (mut of_peer, mut of_ours) = (Vec::new(), Vec::new());
    let mut turns = 0;
    let pairs = take_turns(rounds, |turn| {
        // Both turns of a pair get the same load, and no pair finds another pair's prompts in a
        // cache.
        let pair = turns / 2;
        let arguments = words(load, pair + 1);
        turns += 1;
        let (server, results) = turn.pick((peer, &mut of_peer), (ours, &mut of_ours));
        let load_result = workbench.load_on(server, &arguments)?;
        announce(pair, rounds, workbench.server(server)?.name(), load_result);
        if pair > 0 {
            results.push(load_result);
        }
        Ok(load_result.seconds / load_result.output_tokens)
    })?;
    let remark = format!(
        "wall time {:.2} s for {:.0} tokens against {:.2} s for {:.0}; compared per token",
        median_of(&of_ours, |result| result.seconds),
        median_of(&of_ours, |result| result.output_tokens),
        median_of(&of_peer, |result| result.seconds),
        median_of(&of_peer, |result| result.output_tokens),
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Processor time of the threads that do not compute the model ÷ time of the load.
pub(crate) fn overhead_share(workbench: &mut Workbench) -> Result<Measured> {
    let load = workbench.pick(
        "--unique-words 20 --users 16 --reply-tokens 128 --ignore-end",
        "--unique-words 20 --users 2 --reply-tokens 4 --ignore-end",
    );
    let rounds = workbench.rounds().min(ROUNDS_MAX);
    let server = workbench.server(ServerName::Ours)?;
    let (process, name) = (Process::new(server.id())?, server.name());
    let (mut samples, mut micros) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let before = process.thread_seconds(HOST_THREADS)?;
        let load_result = workbench.load_on(ServerName::Ours, &words(load, round + 1))?;
        let spent = process.thread_seconds(HOST_THREADS)? - before;
        announce(round, rounds, name, load_result);
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
fn announce(round: usize, rounds: usize, server: &str, load_result: LoadResult) {
    let round = match round {
        0 => "to warm up".to_owned(),
        _ => format!("{round} of {rounds}"),
    };
    ui::note(&format!(
        "{round}: {server} took {:.1} s for {:.0} tokens",
        load_result.seconds, load_result.output_tokens
    ));
}

fn words(load: &str, seed: usize) -> Vec<String> {
    let load = load.split_whitespace().map(str::to_owned);
    load.chain(["--seed".to_owned(), seed.to_string()])
        .collect()
}
