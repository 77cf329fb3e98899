//! Tools that a request offers, and how the model may call them.

use motet::text::{Tool, ToolChoice, Tools};
use serde_json::{Value, json};

use super::FieldNames;
use crate::error::ApiError;

/// A tool as a body offers it.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The name, empty if the body has none.
    pub(crate) name: String,
    /// What the tool does, for the model.
    pub(crate) description: Option<String>,
    /// The JSON schema of its arguments; `null` means no arguments.
    pub(crate) schema: Value,
    /// Whether calls of it must follow the schema even where the model is free to call.
    pub(crate) is_strict: bool,
    /// The tool as templates read it: in the shape of chat completions.
    pub(crate) for_template: Value,
}

/// The tools of a request, checked.
#[derive(Debug)]
pub(crate) struct OfferedTools {
    pub(crate) tools: Tools,
    pub(crate) choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub(crate) is_parallel: bool,
    /// The tools as templates read them.
    for_template: Vec<Value>,
}

impl Offer {
    /// A tool in the shape of chat completions, which is what templates read.
    pub(crate) fn function(name: &str, description: Option<&str>, schema: &Value) -> Value {
        let mut function = json!({"name": name});
        if let Some(description) = description {
            function["description"] = json!(description);
        }
        function["parameters"] = schema.clone();
        json!({"type": "function", "function": function})
    }
}

impl OfferedTools {
    /// Checks the tools and the choice. Returns `None` if the model is to know of no tool.
    ///
    /// # Errors
    ///
    /// The error names the tool by its index, or the choice.
    pub(crate) fn new(
        offers: Vec<Offer>,
        choice: ToolChoice,
        is_parallel: bool,
        names: &FieldNames,
    ) -> Result<Option<Self>, ApiError> {
        let mut tools = Vec::with_capacity(offers.len());
        let mut for_template = Vec::with_capacity(offers.len());
        for offer in offers {
            for_template.push(offer.for_template);
            tools.push(Tool {
                name: offer.name,
                description: offer.description,
                parameters: offer.schema,
                is_strict: offer.is_strict,
            });
        }
        let tools = Tools::new(tools).map_err(|error| names.tool_error(&error))?;
        check_choice(&choice, &tools, names)?;
        if for_template.is_empty() || choice == ToolChoice::None {
            return Ok(None);
        }
        Ok(Some(Self {
            tools,
            choice,
            is_parallel,
            for_template,
        }))
    }

    /// Takes the value of the template's variable `tools`.
    pub(super) fn take_variable(&mut self) -> Value {
        Value::Array(std::mem::take(&mut self.for_template))
    }

    /// Whether the answer is nothing but calls.
    pub(crate) fn is_call_required(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }
}

fn check_choice(choice: &ToolChoice, tools: &Tools, names: &FieldNames) -> Result<(), ApiError> {
    let field = names.tool_choice;
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            let message = format!("`{field}` requires a call, and `{}` offers no tool", names.tools);
            Err(ApiError::field(field, message))
        }
        ToolChoice::Named(name) if !tools.contains(name) => {
            let message = format!(
                "`{field}` names the tool {name:?}, which `{}` does not offer",
                names.tools
            );
            Err(ApiError::field(field, message))
        }
        _ => Ok(()),
    }
}
