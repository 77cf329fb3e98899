//! The place of a trace of real requests.

use std::env;
use std::path::{Path, PathBuf};

use xtask::workspace;

/// Environment variable that names the trace.
const VARIABLE: &str = "MOTET_TRACE";
/// Path of the trace otherwise, beside the checkout.
const BESIDE: &str = "../shared/traces/mooncake_conversation.jsonl";

/// Path of the trace, which may not be there.
pub(crate) fn path() -> PathBuf {
    env::var_os(VARIABLE).map_or_else(|| workspace::root().join(BESIDE), PathBuf::from)
}

/// Says that the trace is missing.
pub(crate) fn missing(path: &Path) -> String {
    format!("no trace at {}; {VARIABLE} names one", path.display())
}

/// Environment variable that names the folder of agents' traces.
const AGENTS_VARIABLE: &str = "MOTET_AGENT_TRACE";
/// Path of that folder otherwise, beside the checkout.
const AGENTS_BESIDE: &str = "../shared/traces/agent_taubench";

/// Path of the folder of agents' traces, which may not be there.
pub(crate) fn agents_path() -> PathBuf {
    let beside = || workspace::root().join(AGENTS_BESIDE);
    env::var_os(AGENTS_VARIABLE).map_or_else(beside, PathBuf::from)
}

/// Says that the agents' traces are missing.
pub(crate) fn agents_missing(path: &Path) -> String {
    format!(
        "no traces in {}; {AGENTS_VARIABLE} names a folder",
        path.display()
    )
}
