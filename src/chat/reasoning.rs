//! Settings of a model's reasoning.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ChatError, ChatField};

/// The reasoning that a request asks for. Effort and switch reach the model as variables of its chat
/// template, as far as the template reads them. The budget is the engine's and holds for every
/// model that writes marks around its reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "thinking")]
pub struct Reasoning {
    /// How much the model is asked to reason, as its template spells it: gpt-oss knows `low`,
    /// `medium` and `high`. `none` turns reasoning off.
    #[doc(alias = "reasoning_effort")]
    pub effort: Option<String>,
    /// Whether the model is to reason; `None` leaves that to the effort and the template.
    #[doc(alias = "enable_thinking")]
    pub is_enabled: Option<bool>,
    /// Most tokens of reasoning, without its marks; then the reasoning is ended. It has no effect
    /// on a model that does not reason.
    pub tokens_max: Option<usize>,
}

/// Variables that turn the reasoning of templates on and off: Qwen's and SmolLM's, DeepSeek's and
/// Granite's.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// The variable for the effort: that of gpt-oss.
const EFFORT: &str = "reasoning_effort";
/// The effort that turns reasoning off.
const NO_EFFORT: &str = "none";

type Variables = BTreeMap<String, Value>;

impl Reasoning {
    /// Turns reasoning on.
    #[must_use]
    pub fn on() -> Self {
        Self {
            is_enabled: Some(true),
            ..Self::default()
        }
    }

    /// Turns reasoning off.
    #[must_use]
    pub fn off() -> Self {
        Self {
            is_enabled: Some(false),
            ..Self::default()
        }
    }

    /// Asks for an effort.
    #[must_use]
    pub fn with_effort(effort: impl Into<String>) -> Self {
        Self {
            effort: Some(effort.into()),
            ..Self::default()
        }
    }

    /// Sets the most tokens of reasoning.
    #[must_use]
    pub fn tokens_max(mut self, tokens: usize) -> Self {
        self.tokens_max = Some(tokens);
        self
    }

    /// Whether the settings turn the reasoning on or off.
    fn switch(&self) -> Option<bool> {
        let by_effort = self.effort.as_deref().map(|effort| effort != NO_EFFORT);
        self.is_enabled.or(by_effort)
    }

    /// Adds the variables of the template to those that the caller sets itself. Settings that
    /// contradict each other are an error.
    pub(super) fn apply(&self, variables: &mut Variables) -> Result<(), ChatError> {
        self.check(variables)?;
        if let Some(effort) = self.effort.as_deref().filter(|effort| *effort != NO_EFFORT) {
            variables.insert(EFFORT.to_owned(), json!(effort));
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
    pub(super) fn is_asked_for(&self, variables: &Variables) -> bool {
        let is_on = |switch: &str| variables.get(switch) == Some(&json!(true));
        self.tokens_max.is_some() || SWITCHES.iter().any(|switch| is_on(switch))
    }

    /// Turns the reasoning off where no setting says anything about it: an answer that follows a
    /// form from its first token on has none.
    pub(super) fn turn_off(variables: &mut Variables) {
        for switch in SWITCHES {
            variables.entry(switch.to_owned()).or_insert(json!(false));
        }
    }

    fn check(&self, variables: &Variables) -> Result<(), ChatError> {
        let contradicts = |field, found: String, other| {
            Err(ChatError::Contradiction {
                field,
                found,
                other,
            })
        };
        let is_off = self.switch() == Some(false)
            || SWITCHES
                .iter()
                .any(|switch| variables.get(*switch) == Some(&json!(false)));
        if let Some(tokens) = self.tokens_max.filter(|_| is_off) {
            return contradicts(ChatField::ReasoningTokensMax, tokens.to_string(), None);
        }
        if let (Some(effort), Some(is_enabled)) = (&self.effort, self.is_enabled)
            && (effort != NO_EFFORT) != is_enabled
        {
            return contradicts(ChatField::ReasoningEffort, effort.clone(), None);
        }
        let Some(is_enabled) = self.switch() else {
            return Ok(());
        };
        let (field, found) = match &self.effort {
            Some(effort) => (ChatField::ReasoningEffort, format!("{effort:?}")),
            None => (ChatField::ReasoningSwitch, is_enabled.to_string()),
        };
        let other = |variable: &'static str| {
            let set = variables.get(variable)?.to_string();
            Some((ChatField::Variable(variable), set))
        };
        for switch in SWITCHES {
            if variables
                .get(switch)
                .is_some_and(|set| *set != json!(is_enabled))
            {
                return contradicts(field, found, other(switch));
            }
        }
        match (&self.effort, variables.get(EFFORT)) {
            (Some(effort), Some(set)) if *set != json!(effort) => {
                contradicts(field, found, other(EFFORT))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_variables() {
        let applied = |reasoning: Reasoning, variables: &[(&str, Value)]| {
            let own = variables.iter().cloned();
            let mut variables = own.map(|(name, value)| (name.to_owned(), value)).collect();
            let error = reasoning.apply(&mut variables).err();
            error.map_or(Ok(variables), |error| Err(error.to_string()))
        };
        let names = |reasoning, variables: &[(&str, Value)]| {
            let variables = applied(reasoning, variables).expect("no contradiction");
            variables.into_keys().collect::<Vec<_>>()
        };
        assert!(names(Reasoning::default(), &[]).is_empty());
        assert_eq!(
            names(Reasoning::off(), &[]),
            ["enable_thinking", "thinking"]
        );
        let all = ["enable_thinking", "reasoning_effort", "thinking"];
        assert_eq!(names(Reasoning::with_effort("high"), &[]), all);
        let none = names(Reasoning::with_effort("none"), &[]);
        assert_eq!(none, ["enable_thinking", "thinking"]);

        let rejected = |reasoning, variables: &[(&str, Value)], expected: &str| {
            assert_eq!(applied(reasoning, variables), Err(expected.to_owned()));
        };
        rejected(
            Reasoning::off().tokens_max(5),
            &[],
            "`reasoning.tokens_max` is 5, which contradicts reasoning that is turned off",
        );
        rejected(
            Reasoning::on(),
            &[("thinking", json!(false))],
            "`reasoning.is_enabled` is true, which contradicts `chat.variables.thinking`, which is \
             false",
        );
        let both = Reasoning {
            effort: Some("low".into()),
            ..Reasoning::off()
        };
        rejected(
            both,
            &[],
            "`reasoning.effort` is low, which contradicts the setting that turns reasoning on or \
             off",
        );
    }
}
