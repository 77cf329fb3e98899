//! The runs of our programs, by name. A run takes one or several figures.

use std::path::Path;

use serde_json::{Value, json};

use super::products::{Products, instructions};
use super::{Result, pager, recovery, scheduler, speculation};
use crate::measured::Records;
use crate::protocol::{self, Request, Size};

/// Measures so much, on this model if there is one.
type Run = fn(Size, Option<&Path>) -> Result<Records>;

#[rustfmt::skip] // a table
const RUNS: &[(&str, Run)] = &[
    ("cache_off", scheduler::cache_off::run),
    ("fair", |size, _| scheduler::fair::run(size)),
    ("held", |size, _| scheduler::held::run(size)),
    ("host", |size, _| scheduler::host::run(size)),
    ("hybrid", |size, _| scheduler::hybrid::run(size)),
    ("idle", scheduler::idle::run),
    ("overload", |size, _| scheduler::overload::run(size)),
    ("preemption", |size, _| scheduler::preemption::run(size)),
    ("priority", |size, _| scheduler::priority::run(size)),
    ("stall", scheduler::stall::run),
    ("stall_virtual", |size, _| scheduler::stall_virtual::run(size)),
    ("system_prompt", |size, _| scheduler::system_prompt::run(size)),
    ("trace", |_, _| scheduler::trace::run()),
    ("copy", pager::copy::run),
    ("decode", pager::decode::run),
    ("from_host", pager::first_token::from_host),
    ("from_disk", pager::first_token::from_disk),
    ("oversubscribed", pager::oversubscribed::run),
    ("from_remote", pager::remote::first_token),
    ("beside_remote", pager::remote::beside),
    ("pause", recovery::pause::run),
    ("tokens", recovery::tokens::run),
    ("overhead", recovery::overhead::run),
    ("speculation_texts", speculation::texts::run),
    ("speculation_agents", speculation::agents::run),
    ("speculation_tokens", speculation::tokens::run),
    ("speculation_draft_model", speculation::draft_model::run),
];

/// Answers requests for runs, loads and products.
pub(super) fn serve(model: Option<&Path>) -> Result<()> {
    let mut products = Products::default();
    Ok(protocol::serve(|request| {
        answer(request, model, &mut products)
    })?)
}

fn answer(request: Request, model: Option<&Path>, products: &mut Products) -> Result<Value> {
    match request {
        Request::Hello => Ok(json!({ "instructions": instructions() })),
        Request::Products(asked) => Ok(json!({ "seconds": products.seconds(&asked)? })),
        Request::Run { name, size } => {
            let run = named(&name).ok_or_else(|| format!("no run is named {name}"))?;
            Ok(serde_json::to_value(run(size, model)?)?)
        }
        Request::Load { arguments } => scheduler::held::load(arguments),
        other => Err(format!("not a run, a load or products: {other:?}").into()),
    }
}

fn named(name: &str) -> Option<Run> {
    let (_, run) = RUNS.iter().find(|(known, _)| *known == name)?;
    Some(*run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::{self, Measure, Program};

    #[test]
    fn figures_name_runs_that_exist() {
        for figure in figures::all() {
            if let Measure::Run(program, run) = figure.measure {
                let is_elsewhere =
                    matches!(program, Program::Cache | Program::Fleet | Program::Mocker);
                let is_known = is_elsewhere || named(run).is_some();
                assert!(is_known, "{}: no run is named {run}", figure.name);
            }
        }
    }

    #[test]
    fn virtual_figures_are_measured_quickly() {
        for (run, figure) in [
            ("fair", "scheduler.polite_ttft"),
            ("stall_virtual", "scheduler.stall_virtual"),
            ("system_prompt", "demo.system_prompt_computed"),
        ] {
            let records = named(run).unwrap()(Size::Quick, None).unwrap();
            assert!(records.get(figure).unwrap().value() > 0.0, "{figure}");
        }
    }
}
