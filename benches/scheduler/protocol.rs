//! The requests, and their dispatch.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::report::Report;
use crate::{
    Result, cache_off, fair, host, hybrid, idle, overload, preemption, priority, stall,
    stall_virtual, wire,
};

/// The requests.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Asks for the kind of measurements.
    Hello,
    /// The engine's own cost for each sequence and step.
    Host(host::Measure),
    /// A polite user beside a greedy one.
    Fair(fair::Measure),
    /// An urgent class above a full background.
    Priority(priority::Measure),
    /// Less memory than the load needs.
    Preemption(preemption::Measure),
    /// A cache without hits.
    CacheOff(cache_off::Measure),
    /// Many times more than can be served.
    Overload(overload::Measure),
    /// Long prompts beside decoding sequences.
    Stall(stall::Measure),
    /// The same in the virtual engine.
    StallVirtual(stall_virtual::Measure),
    /// How long the device waits.
    Idle(idle::Measure),
    /// Chats on a model that cannot resume after any token.
    Hybrid(hybrid::Measure),
}

/// Measures the request.
pub(crate) fn answer(request: Request, model: Option<&Path>) -> Result<Value> {
    let report: Report = match request {
        Request::Hello => return Ok(wire::hello()),
        Request::Host(measure) => host::run(&measure)?,
        Request::Fair(measure) => fair::run(measure)?,
        Request::Priority(measure) => priority::run(measure)?,
        Request::Preemption(measure) => preemption::run(measure)?,
        Request::CacheOff(measure) => cache_off::run(measure, model)?,
        Request::Overload(measure) => overload::run(measure)?,
        Request::Stall(measure) => stall::run(measure, model)?,
        Request::StallVirtual(measure) => stall_virtual::run(measure)?,
        Request::Idle(measure) => idle::run(measure, model)?,
        Request::Hybrid(measure) => hybrid::run(measure)?,
    };
    Ok(serde_json::to_value(report)?)
}
