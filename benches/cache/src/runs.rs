//! The runs, by name.

use serde_json::Value;

use crate::measured::Records;
use crate::protocol::{self, Request};
use crate::{Result, eviction, host_bytes, matching, session};

/// Answers requests until standard input ends.
pub(crate) fn serve() -> Result<()> {
    Ok(protocol::serve(answer)?)
}

fn answer(request: Request) -> Result<Value> {
    let Request::Run { name, size } = request else {
        return Err(format!("not a run: {request:?}").into());
    };
    let (figure, measured) = match &name[..] {
        "match" => ("cache.match_gbps", matching::measure(size)),
        "session" => ("cache.session_vs_kvbm", session::measure(size)?),
        "evict_growth" => ("cache.evict_growth", eviction::measure(size)?),
        "host_bytes" => ("cache.host_bytes_per_token", host_bytes::measure(size)),
        _ => return Err(format!("no run is named {name}").into()),
    };
    Ok(serde_json::to_value(Records::of(figure, measured))?)
}
