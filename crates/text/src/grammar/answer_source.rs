//! The source of a grammar of answers: rules, and the schemas in them.

use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use super::numbers;
use motet_core::protocol::GrammarError;

/// The grammar of an answer: what may stand before a call, the calls of tools, and the schema of
/// each one's arguments. Made by [`AnswerFormat::grammar`](crate::AnswerFormat::grammar). Cheap to
/// clone.
///
/// The bound on options of llguidance ([`GrammarLimits::options_allowed`]) is about the schemas as
/// callers write them. Those of tools get one option when they are compiled: at most one space
/// after `,` and `:`. A weak model would write white space without end.
///
/// [`GrammarLimits::options_allowed`]: super::GrammarLimits::options_allowed
#[derive(Clone, PartialEq, Eq)]
pub struct AnswerGrammar(Arc<Parts>);

#[derive(PartialEq, Eq)]
struct Parts {
    /// Lark, which names the rule of each schema.
    rules: String,
    schemas: Vec<AnswerSchema>,
    bytes: usize,
}

/// A schema in a grammar of answers.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct AnswerSchema {
    /// The name of its rule.
    pub(crate) rule: String,
    /// The tool of these arguments; `None` for the schema of a text.
    pub(crate) tool: Option<String>,
    /// The schema.
    pub(crate) schema: Value,
}

impl AnswerGrammar {
    pub(crate) fn new(rules: String, schemas: Vec<AnswerSchema>) -> Self {
        let texts = schemas.iter().map(|schema| schema.schema.to_string().len());
        let bytes = rules.len() + texts.sum::<usize>();
        Self(Arc::new(Parts {
            rules,
            schemas,
            bytes,
        }))
    }

    /// Length of the rules and the schemas, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    pub(super) fn schemas(&self) -> impl Iterator<Item = &AnswerSchema> {
        self.0.schemas.iter()
    }

    /// The error of the schema of this number, with its tool.
    pub(super) fn name_tool(&self, number: usize, error: GrammarError) -> GrammarError {
        match self.0.schemas.get(number).and_then(|s| s.tool.clone()) {
            Some(name) => GrammarError::Tool {
                name,
                error: Box::new(error),
            },
            None => error,
        }
    }

    /// The whole grammar in Lark.
    pub(super) fn lark(&self) -> String {
        let mut lark = self.0.rules.clone();
        for schema in &self.0.schemas {
            lark.push_str(&format!(
                "{}: %json {}\n",
                schema.rule,
                schema.with_options()
            ));
        }
        lark
    }
}

/// Shows the length only, since the schemas are part of a request.
impl fmt::Debug for AnswerGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerGrammar({} bytes)", self.bytes())
    }
}

impl AnswerSchema {
    pub(super) fn value(&self) -> &Value {
        &self.schema
    }

    /// The schema as llguidance compiles it.
    pub(super) fn with_options(&self) -> Value {
        let mut schema = self.schema.clone();
        numbers::narrow(&mut schema);
        if self.tool.is_some()
            && let Some(fields) = schema.as_object_mut()
        {
            let options = json!({
                "whitespace_flexible": false,
                "key_separator": ": ?",
                "item_separator": ", ?",
            });
            fields.insert("x-guidance".to_owned(), options);
        }
        schema
    }
}
