//! Tools that a request has, and how the model may call them.

use motet::text::{Tool, ToolChoice, Tools};
use serde_json::{Value, json};

use super::FieldNames;
use crate::error::ApiError;

/// A tool as a body has it.
#[derive(Debug)]
pub(crate) struct CallableTool {
    /// The name.
    pub(crate) name: String,
    /// A description of the tool, for the model.
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
pub(crate) struct CallableTools {
    pub(crate) tools: Tools,
    pub(crate) choice: ToolChoice,
    /// Whether one answer may have several calls.
    pub(crate) is_parallel: bool,
    /// The tools as templates read them.
    for_template: Vec<Value>,
}

impl CallableTool {
    /// A tool whose body has another shape than chat completions, which is that of templates.
    pub(crate) fn new(
        name: String,
        description: Option<String>,
        schema: Value,
        is_strict: bool,
    ) -> Self {
        let for_template = Self::function(&name, description.as_deref(), &schema);
        Self {
            name,
            description,
            schema,
            is_strict,
            for_template,
        }
    }

    fn function(name: &str, description: Option<&str>, schema: &Value) -> Value {
        let mut function = json!({"name": name});
        if let Some(description) = description {
            function["description"] = json!(description);
        }
        if !schema.is_null() {
            function["parameters"] = schema.clone();
        }
        json!({"type": "function", "function": function})
    }
}

impl CallableTools {
    /// Checks the tools and the choice. Returns `None` if the model is to know of no tool.
    ///
    /// # Errors
    ///
    /// The error names the tool by its index, or the choice.
    pub(crate) fn new(
        callable: Vec<CallableTool>,
        choice: ToolChoice,
        is_parallel: bool,
        names: &FieldNames,
    ) -> Result<Option<Self>, ApiError> {
        let mut tools = Vec::with_capacity(callable.len());
        let mut for_template = Vec::with_capacity(callable.len());
        for callable in callable {
            for_template.push(callable.for_template);
            tools.push(Tool {
                name: callable.name,
                description: callable.description,
                parameters: callable.schema,
                is_strict: callable.is_strict,
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

    /// The value of the template's variable `tools`.
    pub(super) fn variable(&self) -> Value {
        Value::Array(self.for_template.clone())
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
            let message = format!(
                "`{field}` requires a call, and `{}` has no tool",
                names.tools
            );
            Err(ApiError::field(field, message))
        }
        ToolChoice::Named(name) if tools.get(name).is_none() => {
            let message = format!(
                "`{field}` names the tool {name:?}, which is not in `{}`",
                names.tools
            );
            Err(ApiError::field(field, message))
        }
        _ => Ok(()),
    }
}
