//! A request's grammar: its source, and the compiled form.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use super::answer_source::AnswerGrammar;
use super::compiler::Compiler;
use super::{GrammarVocabulary, GrammarWalk, MaskPool, Matcher, cost, schema};
use motet_protocol::TokenId;
use motet_protocol::{
    ConstraintWalk, GrammarBound, GrammarError, GrammarLimits, Next, TokenConstraint,
};

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
    fn has_json(&self) -> bool {
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
        Err(GrammarError::TooDear {
            kind: self.kind(),
            bound: GrammarBound {
                bound,
                limit: limit as u64,
                found: found as u64,
            },
        })
    }

    /// Parses the source after its cost was checked; nothing costly happens before.
    fn parsed(&self, limits: &GrammarLimits) -> Result<TopLevelGrammar, GrammarError> {
        let kind = self.kind();
        let too_dear = |bound| GrammarError::TooDear { kind, bound };
        let compile = |what| GrammarError::Compile { kind, what };
        self.check_bytes()?;
        let is_judged = !limits.is_unbounded();
        Ok(match self {
            GrammarSource::Json => TopLevelGrammar::from_json_schema(json!({"type": "object"})),
            GrammarSource::JsonSchema(text) => {
                let schema = serde_json::from_str::<Value>(text);
                let schema = schema.map_err(|error| compile(format!("{error}; expected JSON")))?;
                let mut budget = schema::Budget::default();
                let prepared = schema::prepared(&schema, &mut budget);
                let mut schema = prepared.map_err(compile)?;
                let bytes = schema::expression_bytes(&schema);
                self.check("bytes of patterns", bytes, Self::EXPRESSION_BYTES_MAX)?;
                if is_judged {
                    cost::judge_schema(&schema, limits).map_err(too_dear)?;
                }
                schema::set_escapes(&mut schema);
                TopLevelGrammar::from_json_schema(schema)
            }
            GrammarSource::Regex(text) => TopLevelGrammar::from_regex(text),
            GrammarSource::Lark(text) => {
                if is_judged {
                    cost::judge_lark(text, limits).map_err(too_dear)?;
                }
                TopLevelGrammar::from_lark(text.clone())
            }
            GrammarSource::Answer(answer) => {
                let schemas = answer.prepared()?;
                let bytes = schemas.iter().map(schema::expression_bytes).sum();
                self.check("bytes of patterns", bytes, Self::EXPRESSION_BYTES_MAX)?;
                if is_judged {
                    let judged = cost::judge_schemas(&schemas, limits);
                    judged.map_err(|(index, bound)| answer.name_tool(index, too_dear(bound)))?;
                }
                TopLevelGrammar::from_lark(answer.lark(schemas))
            }
        })
    }
}

/// A compiled grammar. Cheap to clone; equal to its clones and to nothing else.
#[derive(Clone)]
pub struct Grammar {
    pub(super) compiled: Arc<Compiled>,
    pub(super) pool: Arc<MaskPool>,
    /// The walk of the one sequence that the grammar belongs to, if it belongs to one.
    walk: Option<Arc<GrammarWalk>>,
}

/// The part of a grammar that the pool's threads use.
pub(super) struct Compiled {
    source: GrammarSource,
    /// A matcher at the beginning. Its caches belong to its copies only.
    start: Mutex<Matcher>,
    pub(super) first: Next,
}

impl Grammar {
    /// Compiles a grammar for one tokenizer and computes its first mask. The threads of `pool`
    /// compute the masks that follow.
    ///
    /// Takes from less than a millisecond to a second or two, as the vocabulary's
    /// [`GrammarLimits`] allow: keep it off threads that others wait for.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Compile`], [`GrammarError::TooLarge`] and
    /// [`GrammarError::TooDear`].
    pub fn compile(
        source: &GrammarSource,
        vocabulary: &GrammarVocabulary,
        pool: &Arc<MaskPool>,
    ) -> Result<Self, GrammarError> {
        Self::compile_while(source, vocabulary, pool, || true)
    }

    /// Compiles as [`compile`](Self::compile) does, but stops between its stages once
    /// `still_needed` returns false.
    ///
    /// # Errors
    ///
    /// Those of [`compile`](Self::compile), and [`GrammarError::Unwanted`].
    pub fn compile_while(
        source: &GrammarSource,
        vocabulary: &GrammarVocabulary,
        pool: &Arc<MaskPool>,
        still_needed: impl Fn() -> bool,
    ) -> Result<Self, GrammarError> {
        let check_still_needed = || still_needed().then_some(()).ok_or(GrammarError::Unwanted);
        check_still_needed()?;
        let parsed = source.parsed(vocabulary.limits())?;
        check_still_needed()?;
        let compiler = Compiler::new(source, vocabulary);
        let (rules, lexer) = compiler.rules(parsed)?;
        check_still_needed()?;
        let parser = compiler.parser(rules, lexer)?;
        check_still_needed()?;
        let mut start = Matcher::new(parser, vocabulary, source.has_json());
        let first = start.next_tokens().map_err(|error| match error {
            GrammarError::Failed { what } => compiler.reject(what),
            other => other,
        })?;
        let start = Mutex::new(start);
        let source = source.clone();
        let compiled = Compiled {
            source,
            start,
            first,
        };
        Ok(Self {
            compiled: Arc::new(compiled),
            pool: Arc::clone(pool),
            walk: None,
        })
    }

    /// The source that it was compiled from.
    #[must_use]
    pub fn source(&self) -> &GrammarSource {
        &self.compiled.source
    }

    /// A matcher at the beginning, for use without a pool.
    #[must_use]
    pub fn matcher(&self) -> Matcher {
        self.compiled.matcher()
    }
}

impl TokenConstraint for Grammar {
    fn for_one_sequence(&self) -> Arc<dyn TokenConstraint> {
        Arc::new(Self {
            walk: Some(Arc::new(GrammarWalk::new(self, &[]))),
            ..self.clone()
        })
    }

    fn sequence_walk(&self) -> Option<Arc<dyn ConstraintWalk>> {
        let walk = self.walk.clone()?;
        Some(walk)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.compiled).addr()
    }

    fn walk(&self, output: &[TokenId]) -> Arc<dyn ConstraintWalk> {
        Arc::new(GrammarWalk::new(self, output))
    }
}

impl Compiled {
    pub(super) fn matcher(&self) -> Matcher {
        // Copying changes nothing that a panic could leave half-changed.
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        start.fresh()
    }
}

impl PartialEq for Grammar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.compiled, &other.compiled)
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Grammar").field(self.source()).finish()
    }
}

/// Shows the kind and the length only, since the source is part of a request.
impl fmt::Debug for GrammarSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.kind(), self.bytes())
    }
}

/// An error without the state and the backtrace that may follow it.
pub(super) fn first_lines(what: &str) -> String {
    let end = ["\n<state>", "\n<non-verbose/>", "\n<backtrace>"]
        .iter()
        .filter_map(|mark| what.find(mark))
        .min();
    what[..end.unwrap_or(what.len())].trim_end().to_owned()
}
