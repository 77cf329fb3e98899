//! Figures of the server beside clients that want to stall it.
//!
//! | file | idea |
//! |---|---|
//! | `gaps.rs` | eight streams, first undisturbed and then beside an attack, in turns |
//! | `alone.rs` | cost of each hostile schema on a server that does nothing else |
//! | `bodies.rs` | memory under many bodies at once |
//! | `answers.rs` | memory under requests whose answers, or what they name, are far larger than they |
//! | `payloads.rs` | schemas, texts and bodies to attack with |
//! | `large_answers.rs` | requests to attack with that ask for much |
//! | `attack.rs` | hostile clients, each with one request at a time |
//! | `streams.rs` | honest clients, and the arrival times of their tokens |
//! | `victim.rs` | the watched server; its processor time and memory |
//!
//! All traffic goes over loopback and is bounded in count and time. The server is a process of
//! its own. It is ended when it grows beyond the memory that the machine can spare, and when it
//! still computes after an attack. The next round then has a new server.

mod alone;
mod answers;
mod attack;
mod bodies;
mod gaps;
#[path = "../../../../tests/hostile/grammars/mod.rs"]
#[allow(unreachable_pub, reason = "tests include it too")]
mod grammars;
mod large_answers;
mod payloads;
mod streams;
mod victim;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Result, anyhow};

use self::alone::Alone;
use self::gaps::{Gaps, Plan};
use self::large_answers::Sizes;
use self::victim::Victim;
use super::workbench::Workbench;
use crate::measured::Measured;
use crate::protocol::Size;

/// Honest streams beside the attack.
const STREAMS: usize = 8;
/// Most tokens that a stream requests before it starts over.
const STREAM_TOKENS: usize = 2_048;
/// Pairs of an undisturbed stretch and an attacked one.
const PAIRS: usize = 5;
/// Hostile clients at once.
const SCHEMA_CLIENTS: usize = 4;
const TEXT_CLIENTS: usize = 8;
/// Tokens that an answer after a hostile schema may have: each needs a mask.
const SCHEMA_TOKENS: usize = 16;
/// Length of a hostile text. The body around it stays below the server's limit.
const TEXT_BYTES: usize = 3_900_000;
/// The server's limit for a body.
const BODY_BYTES_MAX: usize = 4 << 20;
const BODIES: usize = 320;
const BODY_ROUNDS: usize = 5;
/// Few sequences at once take little memory themselves. They also make the server keep bodies for
/// longer, because their answers take longer.
const BODY_SEQUENCES: [&str; 2] = ["--sequences-max", "8"];

/// Largest growth of a server that gets requests with large answers, before it is ended.
const ANSWER_GROWTH_BYTES_MAX: u64 = 2 << 30;
/// Its address space: one allocation above that ends it. Its threads reserve a good part of this.
const ANSWER_ADDRESS_BYTES_MAX: u64 = 8 << 30;

const MEGABYTE: f64 = 1e6;
/// A server that grows by more is ended, so that the machine gets its memory back.
const GROWTH_BYTES_MAX: u64 = 4 << 30;

/// Measurements that several figures share, or the reason why one failed.
#[derive(Default)]
pub(super) struct Findings {
    schema_gaps: Option<Result<Gaps, String>>,
    schemas_alone: Option<Result<Alone, String>>,
}

/// Longest gap of eight streams beside hostile schemas ÷ their median step undisturbed.
pub(crate) fn grammar_gap(workbench: &mut Workbench) -> Result<Measured> {
    Ok(schema_gaps(workbench)?.longest_by_step())
}

/// Processor time for each of their tokens after hostile schemas ÷ before.
pub(crate) fn grammar_after(workbench: &mut Workbench) -> Result<Measured> {
    Ok(schema_gaps(workbench)?.after_by_before())
}

/// Processor seconds of the most expensive schema.
pub(crate) fn grammar_cpu(workbench: &mut Workbench) -> Result<Measured> {
    Ok(schemas_alone(workbench)?.processor_seconds())
}

/// Megabytes by which the server grows while it gets all schemas.
pub(crate) fn grammar_rss(workbench: &mut Workbench) -> Result<Measured> {
    Ok(schemas_alone(workbench)?.growth())
}

/// Longest gap of eight streams beside texts that are far too long ÷ their median step
/// undisturbed.
pub(crate) fn text_gap(workbench: &mut Workbench) -> Result<Measured> {
    let clients = workbench.pick(TEXT_CLIENTS, 2);
    let bytes = workbench.pick(TEXT_BYTES, 40_000);
    let plan = plan(workbench, clients, Duration::from_secs(60));
    let mut victim = victim(workbench)?;
    let gaps = Gaps::measure("texts", &mut victim, &plan, |round| {
        payloads::text_shots(clients, bytes, round)
    });
    Ok(gaps?.longest_by_step())
}

/// Megabytes by which the server grows under many bodies at once.
pub(crate) fn body_rss(workbench: &mut Workbench) -> Result<Measured> {
    let count = workbench.pick(BODIES, 12);
    let bytes = workbench.pick(BODY_BYTES_MAX - 64, 100_000);
    let rounds = workbench.pick(BODY_ROUNDS, 1);
    let mut server = workbench.our_server()?;
    server.arguments.extend(BODY_SEQUENCES.map(OsString::from));
    let mut victim = Victim::start(server, GROWTH_BYTES_MAX)?;
    bodies::measure(&mut victim, rounds, count, bytes)
}

/// Megabytes by which the server grows under requests whose answers are large. It serves the
/// oracle, which writes faster than a model.
pub(crate) fn answer_rss(workbench: &mut Workbench) -> Result<Measured> {
    let server = workbench.our_server_on_oracle()?;
    let server = server.with_address_space(ANSWER_ADDRESS_BYTES_MAX);
    let mut victim = Victim::start(server, ANSWER_GROWTH_BYTES_MAX)?;
    answers::measure(&mut victim, &Sizes::new(workbench.size == Size::Quick))
}

fn schema_gaps(workbench: &mut Workbench) -> Result<&Gaps> {
    if workbench.hostile.schema_gaps.is_none() {
        let measured = measure_schema_gaps(workbench);
        workbench.hostile.schema_gaps = Some(measured.map_err(|error| format!("{error:#}")));
    }
    cached_result(workbench.hostile.schema_gaps.as_ref())
}

fn measure_schema_gaps(workbench: &Workbench) -> Result<Gaps> {
    let (schemas, left_out) = payloads::schemas(workbench.size == Size::Quick);
    let plan = plan(workbench, SCHEMA_CLIENTS, Duration::from_secs(40));
    let mut victim = victim(workbench)?;
    let mut gaps = Gaps::measure("schemas", &mut victim, &plan, |round| {
        payloads::schema_shots(&schemas, SCHEMA_TOKENS, round, plan.pairs)
    })?;
    victim.restart()?;
    let honest = vec![payloads::honest(); schemas.len()];
    let others = Gaps::measure("honest schemas", &mut victim, &plan, |round| {
        payloads::schema_shots(&honest, SCHEMA_TOKENS, plan.pairs + round, 2 * plan.pairs)
    })?;
    gaps.remark(format!(
        "beside as many clients that send an honest schema: {}",
        others.longest_line()
    ));
    gaps.remark(format!(
        "{} schemas; {left_out} other grammars of the corpus have no field in the server's API",
        schemas.len()
    ));
    Ok(gaps)
}

fn schemas_alone(workbench: &mut Workbench) -> Result<&Alone> {
    if workbench.hostile.schemas_alone.is_none() {
        let (schemas, _) = payloads::schemas(workbench.size == Size::Quick);
        let measured =
            victim(workbench).and_then(|mut victim| Alone::measure(&mut victim, &schemas));
        workbench.hostile.schemas_alone = Some(measured.map_err(|error| format!("{error:#}")));
    }
    cached_result(workbench.hostile.schemas_alone.as_ref())
}

fn cached_result<T>(measured: Option<&Result<T, String>>) -> Result<&T> {
    let measured = measured.expect("it was just measured");
    measured.as_ref().map_err(|why| anyhow!("{why}"))
}

fn plan(workbench: &Workbench, clients: usize, attack_max: Duration) -> Plan {
    let time = |full, quick| Duration::from_millis(workbench.pick(full, quick));
    Plan {
        pairs: workbench.pick(PAIRS, 1),
        streams: workbench.pick(STREAMS, 2),
        stream_tokens: workbench.pick(STREAM_TOKENS, 256),
        clients,
        calm: time(5_000, 300),
        attack_max: attack_max.min(time(60_000, 5_000)),
        grace: time(2_000, 100),
    }
}

fn victim(workbench: &Workbench) -> Result<Victim> {
    Victim::start(workbench.our_server()?, GROWTH_BYTES_MAX)
}
