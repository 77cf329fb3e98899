//! Cached bytes after the load generator's load, on the oracle.

use serde_json::Value;

use crate::measured::{Measured, Records, median};
use crate::programs::Result;
use crate::protocol::Size;

/// Bytes of cached state on the device after the demo's load ÷ bytes that the distinct tokens
/// need.
pub(crate) fn run(size: Size) -> Result<Records> {
    let turns = size.pick(3, 1).to_string();
    let (mut samples, mut most) = (Vec::new(), Vec::new());
    // The seed decides the users' questions and their order.
    for seed in 1..=size.rounds() {
        let arguments = ["--oracle", "--turns", &turns, "--seed", &seed.to_string()];
        let report = load(arguments.map(str::to_owned).to_vec())?;
        let number = |field: &str| {
            let value = report["memory"][field].as_f64();
            value.ok_or_else(|| format!("the load generator's report has no `memory.{field}`"))
        };
        samples.push(number("held_by_needed")?);
        most.push(number("held_max_by_needed")?);
    }
    let remark = format!("highest ratio at any time: {:.3}", median(&most));
    let measured = Measured::new(samples).remark(remark);
    Ok(Records::of("cache.held_vs_needed", measured))
}

/// The load generator's report of the load that these arguments describe.
pub(crate) fn load(arguments: Vec<String>) -> Result<Value> {
    let runtime = tokio::runtime::Runtime::new()?;
    let report = runtime.block_on(motet_load_generator::figures(arguments));
    report.map_err(|error| format!("{error:#}").into())
}
