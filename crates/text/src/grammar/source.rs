//! The source of a grammar.

use std::fmt;

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::answer_source::AnswerGrammar;
use super::{cost, rewrite};
use crate::schema::walk::pattern_bytes;
use motet_protocol::{GrammarBound, GrammarError, GrammarLimits};

/// The grammar that an output follows to its end. The output may end only when the grammar is
/// complete.
#[derive(Clone, PartialEq, Eq)]
pub enum GrammarSource {
    /// Any JSON object.
    Json,
    /// JSON that a schema accepts, in JSON, with `$ref`s within itself only. Members
    /// come in the order of the schema. Numbers are accepted after reading them as `f64`s, too,
    /// except for multiples of a step that no `f64` holds.
    JsonSchema(String),
    /// A regular expression in the syntax of the `regex` crate, without look-around; it matches
    /// the whole output.
    Regex(String),
    /// A context-free grammar in llguidance's variant of Lark.
    Lark(String),
    /// An answer with reasoning, or with calls of tools, by
    /// [`AnswerFormat::grammar`](crate::AnswerFormat::grammar).
    Answer(AnswerGrammar),
}

impl GrammarSource {
    /// Longest schema, in bytes.
    pub const SCHEMA_BYTES_MAX: usize = 64 << 10;
    /// Longest Lark grammar, in bytes.
    pub const LARK_BYTES_MAX: usize = 16 << 10;
    /// Longest regular expression, in bytes, and the most that those in a schema have together.
    /// No fuel bounds the time that llguidance takes to compile one: 16 ms for 4 KB that are
    /// nothing but groups, but minutes for some of a few hundred KB.
    pub const EXPRESSION_BYTES_MAX: usize = 4 << 10;

    /// A grammar of these texts and no other. `None` without texts.
    #[must_use]
    pub fn of_choices(choices: &[String]) -> Option<Self> {
        let quoted = choices
            .iter()
            .map(|choice| serde_json::Value::from(choice.as_str()));
        let quoted: Vec<String> = quoted.map(|choice| choice.to_string()).collect();
        (!quoted.is_empty()).then(|| Self::Lark(format!("start: {}", quoted.join(" | "))))
    }

    /// The kind of source, for errors.
    pub fn kind(&self) -> &'static str {
        match self {
            GrammarSource::Json => "JSON",
            GrammarSource::JsonSchema(_) => "JSON schema",
            GrammarSource::Regex(_) => "regular expression",
            GrammarSource::Lark(_) => "Lark grammar",
            GrammarSource::Answer(_) => "grammar of an answer",
        }
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        match self {
            GrammarSource::Json => 0,
            GrammarSource::JsonSchema(text)
            | GrammarSource::Regex(text)
            | GrammarSource::Lark(text) => text.len(),
            GrammarSource::Answer(answer) => answer.bytes(),
        }
    }

    /// Whether its numbers are those of JSON.
    pub(super) fn has_json(&self) -> bool {
        match self {
            GrammarSource::Json | GrammarSource::JsonSchema(_) | GrammarSource::Answer(_) => true,
            GrammarSource::Regex(_) | GrammarSource::Lark(_) => false,
        }
    }

    /// Rejects a source that is too long. It checks nothing else, so that it costs nothing.
    pub fn check_bytes(&self) -> Result<(), GrammarError> {
        let (name, bytes_max) = match self {
            GrammarSource::Regex(_) => ("bytes of the expression", Self::EXPRESSION_BYTES_MAX),
            GrammarSource::Lark(_) => ("bytes of the text", Self::LARK_BYTES_MAX),
            _ => ("bytes of the schema", Self::SCHEMA_BYTES_MAX),
        };
        self.check(name, self.bytes(), bytes_max)
    }

    fn check(&self, bound: &'static str, found: usize, limit: usize) -> Result<(), GrammarError> {
        if found <= limit {
            return Ok(());
        }
        Err(GrammarError::TooExpensive {
            kind: self.kind(),
            bound: GrammarBound {
                bound,
                limit: limit as u64,
                found: found as u64,
            },
        })
    }

    /// Parses the source after its cost was checked; nothing costly happens before.
    pub(super) fn parsed(&self, limits: &GrammarLimits) -> Result<TopLevelGrammar, GrammarError> {
        let kind = self.kind();
        let too_expensive = |bound| GrammarError::TooExpensive { kind, bound };
        let compile = |what| GrammarError::Compile { kind, what };
        self.check_bytes()?;
        let is_judged = !limits.is_unbounded();
        Ok(match self {
            GrammarSource::Json => TopLevelGrammar::from_json_schema(json!({"type": "object"})),
            GrammarSource::JsonSchema(text) => {
                let schema = serde_json::from_str::<Value>(text);
                let schema = schema.map_err(|error| compile(format!("{error}; expected JSON")))?;
                let mut budget = rewrite::Budget::default();
                let prepared = rewrite::prepared(&schema, &mut budget);
                let mut schema = prepared.map_err(compile)?;
                let bytes = pattern_bytes(&schema);
                self.check("bytes of patterns", bytes, Self::EXPRESSION_BYTES_MAX)?;
                if is_judged {
                    cost::judge_schema(&schema, limits).map_err(too_expensive)?;
                }
                rewrite::set_escapes(&mut schema);
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarSource::Regex(text) => TopLevelGrammar::from_regex(text),
            GrammarSource::Lark(text) => {
                if is_judged {
                    cost::judge_lark(text, limits).map_err(too_expensive)?;
                }
                TopLevelGrammar::from_lark(text.clone())
            }
            GrammarSource::Answer(answer) => {
                let schemas = answer.prepared()?;
                let bytes = schemas.iter().map(pattern_bytes).sum();
                self.check("bytes of patterns", bytes, Self::EXPRESSION_BYTES_MAX)?;
                if is_judged {
                    let judged = cost::judge_schemas(&schemas, limits);
                    judged
                        .map_err(|(index, bound)| answer.name_tool(index, too_expensive(bound)))?;
                }
                TopLevelGrammar::from_lark(answer.lark(schemas))
            }
        })
    }
}

/// Shows the kind and the length only, since the source is part of a request.
impl fmt::Debug for GrammarSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.kind(), self.bytes())
    }
}
