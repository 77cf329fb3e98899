//! Settings of a model's reasoning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::FieldNames;
use crate::error::ApiError;

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

/// The reasoning that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reasoning {
    /// The effort, if the client names one.
    pub(crate) effort: Option<Effort>,
    /// Whether the model is to reason; `None` leaves that to the effort and the template.
    pub(crate) is_enabled: Option<bool>,
    /// Most tokens of reasoning. A limit holds by itself for a model that does not reason.
    pub(crate) tokens_max: Option<usize>,
}

/// Variables that turn the reasoning of templates on and off: Qwen's and SmolLM's, DeepSeek's and
/// Granite's.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// The variable for the effort: that of gpt-oss.
const EFFORT: &str = "reasoning_effort";

impl Effort {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

impl Reasoning {
    /// Whether the settings turn the reasoning on or off.
    fn switch(self) -> Option<bool> {
        self.is_enabled
            .or(self.effort.map(|effort| effort != Effort::None))
    }

    /// Adds the variables of the template to those that the client sets itself.
    ///
    /// # Errors
    ///
    /// Settings that contradict each other are an error, which names one of their fields.
    pub(crate) fn apply(
        self,
        variables: &mut BTreeMap<String, Value>,
        names: &FieldNames,
    ) -> Result<(), ApiError> {
        self.check(variables, names)?;
        if let Some(effort) = self.effort.filter(|effort| *effort != Effort::None) {
            variables.insert(EFFORT.to_owned(), json!(effort.name()));
        }
        if let Some(is_enabled) = self.switch() {
            for switch in SWITCHES {
                let variable = variables.entry(switch.to_owned());
                variable.or_insert(json!(is_enabled));
            }
        }
        Ok(())
    }

    /// Whether a setting asks for reasoning, be it a variable of the template.
    pub(super) fn is_asked_for(self, variables: &BTreeMap<String, Value>) -> bool {
        let is_on = |switch: &str| variables.get(switch) == Some(&json!(true));
        self.tokens_max.is_some() || SWITCHES.iter().any(|switch| is_on(switch))
    }

    /// Turns the reasoning off where no setting says anything about it: an answer that is held to
    /// a form from its first token on has none.
    pub(super) fn turn_off(variables: &mut BTreeMap<String, Value>) {
        for switch in SWITCHES {
            variables.entry(switch.to_owned()).or_insert(json!(false));
        }
    }

    fn check(
        self,
        variables: &BTreeMap<String, Value>,
        names: &FieldNames,
    ) -> Result<(), ApiError> {
        let contradicts = |field: &str, found: &str, other: &str| {
            let message = format!("`{field}` is {found}, which contradicts {other}");
            Err(ApiError::field(field, message))
        };
        let is_off = self.switch() == Some(false)
            || SWITCHES
                .iter()
                .any(|switch| variables.get(*switch) == Some(&json!(false)));
        if let Some(tokens) = self.tokens_max.filter(|_| is_off) {
            let other = "reasoning that is turned off";
            return contradicts(names.reasoning_tokens_max, &tokens.to_string(), other);
        }
        if let (Some(effort), Some(is_enabled)) = (self.effort, self.is_enabled)
            && (effort != Effort::None) != is_enabled
        {
            let other = "the setting that turns reasoning on or off";
            return contradicts(names.effort, effort.name(), other);
        }
        let Some(is_enabled) = self.switch() else {
            return Ok(());
        };
        let (field, found) = match self.effort {
            Some(effort) => (names.effort, format!("\"{}\"", effort.name())),
            None => (names.reasoning_switch, is_enabled.to_string()),
        };
        for switch in SWITCHES {
            let set = variables
                .get(switch)
                .filter(|set| **set != json!(is_enabled));
            if let Some(set) = set {
                let other = format!("`{}.{switch}`, which is {set}", names.template_variables);
                return contradicts(field, &found, &other);
            }
        }
        match (self.effort, variables.get(EFFORT)) {
            (Some(effort), Some(set)) if *set != json!(effort.name()) => {
                let other = format!("`{}.{EFFORT}`, which is {set}", names.template_variables);
                contradicts(field, &found, &other)
            }
            _ => Ok(()),
        }
    }
}
