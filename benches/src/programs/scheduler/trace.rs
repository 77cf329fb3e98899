//! Hit rates on a trace of real requests, in percent, with capacity for a part of the distinct
//! blocks. A replay is deterministic, so one sample is enough.

use crate::figures::trace;
use crate::measured::Records;
use crate::programs::Result;
use crate::replay;

/// The policy that is judged; the others are for comparison.
const OURS: &str = "foresight";

pub(crate) fn run() -> Result<Records> {
    let replayed = replay::of_file(&trace::path())?;
    let mut records = Records::default();
    for row in &replayed.rows {
        let figure = format!("cache.hit_{}", row.capacity_percent);
        if row.policy == OURS {
            records.sample(&figure, row.hit_percent);
        } else {
            records.remark(&figure, format!("{} {:.2} %", row.policy, row.hit_percent));
        }
    }
    Ok(records)
}
