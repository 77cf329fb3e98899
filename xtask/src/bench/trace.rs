//! Hit rates on a trace of real requests. The trace is not part of the project.

use std::env;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use super::statistics::Measured;
use super::workbench::{Unavailable, Workbench};
use crate::workspace;

/// The example that replays traces through the cache's core.
pub(super) const EXAMPLE: &str = "trace_replay";
/// Environment variable that names the trace.
const VARIABLE: &str = "MOTET_TRACE";
/// Path of the trace otherwise, beside the checkout.
const BESIDE: &str = "../shared/traces/mooncake_conversation.jsonl";
/// The policy that is judged; the others are for comparison.
const OURS: &str = "foresight";
/// All policies that are replayed.
pub(super) const POLICIES: &str = "lru,foresight,optimum";

/// Hit rate in percent, with capacity for this percentage of the distinct blocks. A replay is
/// deterministic, so one sample is enough.
pub(super) fn hit_rate(workbench: &mut Workbench, capacity_percent: u32) -> Result<Measured> {
    let replayed = workbench.replayed_trace()?;
    let rate = |policy| percent(replayed, policy, capacity_percent);
    let (ours, lru, optimum) = (rate(OURS)?, rate("lru")?, rate("optimum")?);
    let remark = format!("LRU {lru:.2} %, the optimum {optimum:.2} %");
    Ok(Measured::new(vec![ours]).remark(remark))
}

/// Path of the trace.
///
/// # Errors
///
/// [`Unavailable`] when there is no trace, or no example that replays it.
pub(super) fn find() -> Result<PathBuf> {
    let example = workspace::root().join("examples").join(EXAMPLE);
    if !example.exists() {
        let why = format!("this checkout has no example `{EXAMPLE}`");
        return Err(Unavailable(why).into());
    }
    let trace = env::var_os(VARIABLE).map_or_else(|| workspace::root().join(BESIDE), PathBuf::from);
    if trace.exists() {
        Ok(trace)
    } else {
        let why = format!("no trace at {}; {VARIABLE} names one", trace.display());
        Err(Unavailable(why).into())
    }
}

/// Hit rate of a policy according to the replay, in percent.
fn percent(replayed: &Value, policy: &str, capacity_percent: u32) -> Result<f64> {
    let rows = replayed["traces"][0]["rows"].as_array();
    rows.into_iter()
        .flatten()
        .find(|row| {
            row["policy"] == policy
                && row["capacity_percent"].as_f64() == Some(capacity_percent.into())
        })
        .and_then(|row| row["hit_percent"].as_f64())
        .with_context(|| format!("the replay has no hit rate of {policy} at {capacity_percent} %"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_found_by_policy_and_capacity() {
        let row = |policy, capacity: f64, hit: f64| json!({ "policy": policy, "capacity_percent": capacity, "hit_percent": hit });
        let rows = [row("lru", 2.0, 7.9), row("foresight", 2.0, 14.5)];
        let replayed = json!({ "traces": [{ "rows": rows }] });
        assert_eq!(percent(&replayed, "foresight", 2).unwrap(), 14.5);
        assert_eq!(percent(&replayed, "lru", 2).unwrap(), 7.9);
        assert!(percent(&replayed, "lru", 5).is_err());
        assert!(percent(&json!({}), "lru", 2).is_err());
    }
}
