//! How much the model reasons.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How much the model is asked to reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl From<Effort> for String {
    /// The effort as templates spell it.
    fn from(effort: Effort) -> Self {
        let name = match effort {
            Effort::None => "none",
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::Xhigh => "xhigh",
            Effort::Max => "max",
        };
        name.to_owned()
    }
}
