//! The tools that a request offers, checked.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

/// A tool that the model may call. Its `Debug` output shows its name and sizes only.
#[derive(Clone, PartialEq, Eq)]
pub struct Tool {
    /// Its name: 1 to 64 letters, digits, `_` and `-`.
    pub name: String,
    /// What it does, for the model to read.
    pub description: Option<String>,
    /// The JSON schema of its arguments, which are an object. `Null` stands for no arguments.
    pub parameters: Value,
    /// Whether each of its calls follows the schema, also where the model is free to call or
    /// not.
    pub is_strict: bool,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.name)
            .field("is_strict", &self.is_strict)
            .finish_non_exhaustive()
    }
}

impl Tool {
    /// The tool as chat templates read it: an entry of the variable `tools`, in the shape of
    /// OpenAI's chat completions.
    #[must_use]
    pub fn for_template(&self) -> Value {
        let mut function = serde_json::Map::new();
        function.insert("name".into(), Value::String(self.name.clone()));
        let description = self.description.clone().unwrap_or_default();
        function.insert("description".into(), Value::String(description));
        function.insert("parameters".into(), self.parameters.clone());
        serde_json::json!({"type": "function", "function": function})
    }
}

/// The tools of a request: names are valid and unique, sizes are bounded, and the parameters of
/// each are the schema of an object. Cheap to clone.
///
/// ```
/// use motet_text::{Tool, Tools};
///
/// let now = Tool {
///     name: "now".into(),
///     description: None,
///     parameters: serde_json::json!({"type": "object", "properties": {}}),
///     is_strict: false,
/// };
/// let tools = Tools::new(vec![now.clone()])?;
/// assert!(tools.get("now").is_some());
/// assert!(Tools::new(vec![now.clone(), now]).is_err());
/// # Ok::<(), motet_text::ToolError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Tools(Arc<[Tool]>);

impl Tools {
    /// Most tools of a request.
    pub const COUNT_MAX: usize = 128;
    /// Longest name, in bytes.
    pub const NAME_BYTES_MAX: usize = 64;
    /// Most bytes that the descriptions and schemas of all tools have together.
    pub const BYTES_MAX: usize = 1 << 20;

    /// Checks the tools. Parameters that are `Null` become the schema of an empty object.
    ///
    /// # Errors
    ///
    /// [`ToolError`], which says which tool and which of its parts.
    pub fn new(mut tools: Vec<Tool>) -> Result<Self, ToolError> {
        if tools.len() > Self::COUNT_MAX {
            return Err(ToolError::TooMany {
                found: tools.len(),
                limit: Self::COUNT_MAX,
            });
        }
        let mut bytes = 0;
        for index in 0..tools.len() {
            check_name(index, &tools[index].name)?;
            if tools[..index].iter().any(|t| t.name == tools[index].name) {
                return Err(ToolError::Duplicate {
                    index,
                    name: tools[index].name.clone(),
                });
            }
            let tool = &mut tools[index];
            if tool.parameters.is_null() {
                tool.parameters = serde_json::json!({"type": "object", "properties": {}});
            }
            check_parameters(index, tool)?;
            bytes += tool.description.as_ref().map_or(0, String::len);
            bytes += tool.parameters.to_string().len();
            if bytes > Self::BYTES_MAX {
                return Err(ToolError::TooLong {
                    index,
                    limit: Self::BYTES_MAX,
                });
            }
        }
        Ok(Self(tools.into()))
    }

    /// The tool of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// The tools, in the request's order.
    pub fn iter(&self) -> std::slice::Iter<'_, Tool> {
        self.0.iter()
    }

    /// Number of tools.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no tool is offered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a tool is strict.
    #[must_use]
    pub fn has_strict(&self) -> bool {
        self.0.iter().any(|tool| tool.is_strict)
    }

    /// The tools as chat templates read them: the value of the variable `tools`.
    #[must_use]
    pub fn for_template(&self) -> Value {
        self.0.iter().map(Tool::for_template).collect()
    }
}

impl<'a> IntoIterator for &'a Tools {
    type Item = &'a Tool;
    type IntoIter = std::slice::Iter<'a, Tool>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

fn check_name(index: usize, name: &str) -> Result<(), ToolError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let what = if name.is_empty() {
        "it is empty"
    } else if name.len() > Tools::NAME_BYTES_MAX {
        "it is too long"
    } else if !name.bytes().all(is_allowed) {
        "it has another character"
    } else {
        return Ok(());
    };
    Err(ToolError::Name { index, what })
}

/// Arguments are an object. A schema that says nothing about the type passes: `{}` and `$ref`.
fn check_parameters(index: usize, tool: &Tool) -> Result<(), ToolError> {
    let reject = |what| {
        Err(ToolError::Parameters {
            index,
            name: tool.name.clone(),
            what,
        })
    };
    let Some(schema) = tool.parameters.as_object() else {
        return reject("they are no object");
    };
    match schema.get("type") {
        None => Ok(()),
        Some(Value::String(name)) if name == "object" => Ok(()),
        Some(_) => reject("their `type` is not `object`"),
    }
}

/// Which calls an answer may or must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No call: tools in the prompt are only for the model to know.
    None,
    /// At least one call, of any tool.
    Required,
    /// A call of this tool.
    Named(String),
}

/// Why a request's tools are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// Too many tools.
    #[error("{found} tools; expected at most {limit}")]
    TooMany {
        /// Number of tools.
        found: usize,
        /// The most that are allowed.
        limit: usize,
    },
    /// Descriptions and schemas are too long together.
    #[error(
        "the descriptions and parameters of the tools are too long; expected at most {limit} bytes together"
    )]
    TooLong {
        /// The tool with which the limit is exceeded.
        index: usize,
        /// The most bytes that are allowed.
        limit: usize,
    },
    /// A name is invalid.
    #[error(
        "the name of tool {index} is invalid: {what}; expected 1 to 64 letters, digits, `_` and `-`"
    )]
    Name {
        /// Position of the tool, from 0.
        index: usize,
        /// The problem.
        what: &'static str,
    },
    /// Two tools have one name.
    #[error("tool {index} has the name `{name}`, as an earlier one; expected unique names")]
    Duplicate {
        /// Position of the later tool, from 0.
        index: usize,
        /// The name.
        name: String,
    },
    /// The parameters are no schema of an object.
    #[error(
        "the parameters of tool {index}, `{name}`, are invalid: {what}; expected a JSON schema of an object"
    )]
    Parameters {
        /// Position of the tool, from 0.
        index: usize,
        /// Its name.
        name: String,
        /// The problem.
        what: &'static str,
    },
    /// The choice names a tool that is not offered.
    #[error("tool `{name}` is chosen but not offered; expected the name of an offered tool")]
    UnknownTool {
        /// The name.
        name: String,
    },
    /// A call is required, but no tool is offered.
    #[error("a call is required but no tool is offered; expected at least one tool")]
    NoTools,
}

/// The part of a request that a [`ToolError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolPart {
    /// The list of tools.
    Tools,
    /// The name of the tool at this position.
    Name(usize),
    /// The parameters of the tool at this position.
    Parameters(usize),
    /// The choice among the tools.
    Choice,
}

impl ToolError {
    /// The part of the request that is invalid, so that an API can name its own field.
    #[must_use]
    pub fn part(&self) -> ToolPart {
        match *self {
            Self::TooMany { .. } | Self::TooLong { .. } => ToolPart::Tools,
            Self::Name { index, .. } | Self::Duplicate { index, .. } => ToolPart::Name(index),
            Self::Parameters { index, .. } => ToolPart::Parameters(index),
            Self::UnknownTool { .. } | Self::NoTools => ToolPart::Choice,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, parameters: Value) -> Tool {
        Tool {
            name: name.into(),
            description: None,
            parameters,
            is_strict: false,
        }
    }

    #[test]
    fn invalid_tools_name_their_part() {
        let check = |tools: Vec<Tool>, part| {
            let error = Tools::new(tools).expect_err("rejected");
            assert_eq!(error.part(), part, "{error}");
        };
        let good = || tool("good-1_A", json!({"type": "object"}));
        check(vec![good(), tool("", json!({}))], ToolPart::Name(1));
        check(vec![tool("a b", json!({}))], ToolPart::Name(0));
        check(vec![tool("é", json!({}))], ToolPart::Name(0));
        check(vec![tool(&"a".repeat(65), json!({}))], ToolPart::Name(0));
        check(vec![good(), good()], ToolPart::Name(1));
        check(vec![tool("a", json!([]))], ToolPart::Parameters(0));
        check(vec![tool("a", json!(true))], ToolPart::Parameters(0));
        let text = json!({"type": "string"});
        check(vec![good(), tool("a", text)], ToolPart::Parameters(1));
        let many = (0..129).map(|n| tool(&format!("t{n}"), json!({})));
        check(many.collect(), ToolPart::Tools);
        let mut long = good();
        long.description = Some("a".repeat(Tools::BYTES_MAX));
        check(vec![long], ToolPart::Tools);
    }

    #[test]
    fn good_tools_are_found_by_name() {
        let tools = vec![tool(&"a".repeat(64), Value::Null), tool("b", json!({}))];
        let tools = Tools::new(tools).expect("good");
        assert_eq!(tools.len(), 2);
        assert!(tools.get("b").is_some() && tools.get("c").is_none());
        let empty = &tools.iter().next().expect("there").parameters;
        assert_eq!(empty["type"], "object");
        assert_eq!(tools.for_template()[1]["function"]["name"], "b");
        assert!(Tools::new(Vec::new()).expect("none").is_empty());
    }

    #[test]
    fn debug_output_shows_no_description() {
        let mut secret = tool("a", json!({"title": "secret"}));
        secret.description = Some("secret".into());
        let shown = format!("{:?}", Tools::new(vec![secret]).expect("good"));
        assert!(shown.contains('a') && !shown.contains("secret"));
    }
}
