//! The tools of a request, and how the model may call them.

use motet_text::{AnswerFormat, ReasoningStart, Tool, ToolChoice, ToolError, Tools};
use serde_json::{Value, json};

use super::ChatError;
use crate::optional::{GrammarSource, answer_grammar};

/// The tools of a request, checked.
#[derive(Debug)]
pub(super) struct CallableTools {
    pub(super) tools: Tools,
    choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub(super) is_parallel: bool,
    /// The tools as templates read them.
    pub(super) for_template: Value,
}

impl CallableTools {
    /// Checks the tools and the choice. Returns `None` if the model is to know of no tool.
    pub(super) fn new(
        tools: Vec<Tool>,
        choice: ToolChoice,
        is_parallel: bool,
    ) -> Result<Option<Self>, ToolError> {
        let for_template = tools.iter().map(for_template).collect();
        let tools = Tools::new(tools)?;
        match &choice {
            ToolChoice::Required if tools.is_empty() => return Err(ToolError::NoTools),
            ToolChoice::Named(name) if tools.get(name).is_none() => {
                return Err(ToolError::UnknownTool { name: name.clone() });
            }
            _ => {}
        }
        if tools.is_empty() || choice == ToolChoice::None {
            return Ok(None);
        }
        Ok(Some(Self {
            tools,
            choice,
            is_parallel,
            for_template,
        }))
    }

    /// Whether the answer is nothing but calls.
    pub(super) fn is_call_required(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }

    /// The grammar of an answer with calls, if it has one.
    pub(super) fn grammar(
        &self,
        format: &AnswerFormat,
        reasoning: ReasoningStart,
    ) -> Result<Option<GrammarSource>, ChatError> {
        if !self.is_call_required() && !self.tools.has_strict() {
            return Ok(None);
        }
        let (tools, choice) = (&self.tools, &self.choice);
        let grammar = answer_grammar(format, tools, choice, self.is_parallel, reasoning);
        Ok(Some(grammar.ok_or(ChatError::NoGrammars)?))
    }
}

/// The tool in the shape of OpenAI's chat completions, which is that of templates.
fn for_template(tool: &Tool) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        function["description"] = json!(description);
    }
    if !tool.parameters.is_null() {
        function["parameters"] = tool.parameters.clone();
    }
    json!({"type": "function", "function": function})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::fixtures::clock;

    #[test]
    fn templates_get_what_the_tool_has() {
        let function = json!({"name": "clock", "description": "Tells the time."});
        let expected = json!({"type": "function", "function": function});
        assert_eq!(for_template(&clock()), expected);
    }

    #[test]
    fn choice_is_among_the_tools() {
        let new = |tools: Vec<Tool>, choice| CallableTools::new(tools, choice, true);
        let named = |name: &str| ToolChoice::Named(name.into());
        assert!(new(vec![clock()], named("clock")).is_ok_and(|tools| tools.is_some()));
        let unknown = new(vec![clock()], named("bell"));
        assert!(matches!(unknown, Err(ToolError::UnknownTool { .. })));
        let none = new(Vec::new(), ToolChoice::Required);
        assert!(matches!(none, Err(ToolError::NoTools)));
        for (tools, choice) in [
            (Vec::new(), ToolChoice::Auto),
            (vec![clock()], ToolChoice::None),
        ] {
            assert!(new(tools, choice).is_ok_and(|tools| tools.is_none()));
        }
    }
}
