//! The source of a grammar of answers: rules, and the schemas in them.

use std::fmt;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::rewrite;
use motet_protocol::GrammarError;

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

    /// The schemas as they are compiled.
    pub(super) fn prepared(&self) -> Result<Vec<Value>, GrammarError> {
        let mut budget = rewrite::Budget::default();
        let prepared = self.0.schemas.iter().enumerate().map(|(number, of)| {
            let error = |what| GrammarError::Compile {
                kind: "JSON schema",
                what,
            };
            let prepared = rewrite::prepared(&of.schema, &mut budget);
            prepared.map_err(|what| self.name_tool(number, error(what)))
        });
        prepared.collect()
    }

    /// The whole grammar in Lark.
    pub(super) fn lark(&self, prepared: Vec<Value>) -> String {
        let mut lark = self.0.rules.clone();
        for (schema, prepared) in self.0.schemas.iter().zip(prepared) {
            let compiled = schema.with_options(prepared);
            lark.push_str(&format!("{}: %json {compiled}\n", schema.rule));
        }
        lark
    }

    /// The error of the first schema that is rejected on its own.
    pub(super) fn first_wrong(
        &self,
        error: impl Fn(TopLevelGrammar) -> Option<GrammarError>,
    ) -> Option<GrammarError> {
        let schemas = self.0.schemas.iter().zip(self.prepared().ok()?).enumerate();
        schemas
            .into_iter()
            .find_map(|(number, (schema, prepared))| {
                let schema = TopLevelGrammar::from_json_schema(schema.with_options(prepared));
                Some(self.name_tool(number, error(schema)?))
            })
    }
}

/// Shows the length only, since the schemas are part of a request.
impl fmt::Debug for AnswerGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnswerGrammar({} bytes)", self.bytes())
    }
}

impl AnswerSchema {
    /// A prepared schema with llguidance's options.
    fn with_options(&self, mut prepared: Value) -> Value {
        rewrite::set_escapes(&mut prepared);
        if self.tool.is_some() {
            rewrite::set_option(&mut prepared, "whitespace_flexible", json!(false));
            rewrite::set_option(&mut prepared, "key_separator", json!(": ?"));
            rewrite::set_option(&mut prepared, "item_separator", json!(", ?"));
        }
        prepared
    }
}
