//! The stages of compiling a source: rules without dead ends, then a parser.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;

use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::earley::Grammar as Rules;
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, TokenParser, panic_utils};

use super::error_text::first_lines;
use super::productive::without_dead_ends;
use super::source::GrammarSource;
use super::vocabulary::GrammarVocabulary;
use motet_protocol::GrammarError;

/// Compiles one source. llguidance may panic, which is an error as well.
pub(super) struct Compiler<'a> {
    source: &'a GrammarSource,
    vocabulary: &'a GrammarVocabulary,
    limits: ParserLimits,
}

/// Rules, and whether some that no text follows were removed.
struct Kept {
    rules: Rules,
    lexer: LexerSpec,
    is_cut: bool,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(source: &'a GrammarSource, vocabulary: &'a GrammarVocabulary) -> Self {
        let limits = vocabulary.parser_limits();
        Self {
            source,
            vocabulary,
            limits,
        }
    }

    /// The rules and expressions of the whole grammar.
    pub(super) fn rules(
        &self,
        grammar: TopLevelGrammar,
    ) -> Result<(Rules, LexerSpec), GrammarError> {
        // The message has the place in the whole text; the schema alone says which tool it is. A
        // tool that nothing follows does not vanish beside others.
        let wrong_tool = || match self.source {
            GrammarSource::Answer(answer) => answer.first_wrong(|schema| self.kept(schema).err()),
            _ => None,
        };
        let kept = self.kept(grammar);
        let kept = kept.map_err(|error| wrong_tool().unwrap_or(error))?;
        match kept.is_cut.then(wrong_tool).flatten() {
            Some(error) => Err(error),
            None => Ok((kept.rules, kept.lexer)),
        }
    }

    fn kept(&self, grammar: TopLevelGrammar) -> Result<Kept, GrammarError> {
        let environment = self.vocabulary.factory().tok_env().clone();
        let kept = || {
            let init = GrammarInit::Serialized(grammar);
            let (rules, lexer) = init
                .to_internal(Some(environment), self.limits.clone())
                .map_err(|error| format!("{error:#}"))?;
            let kept = without_dead_ends(&rules, &lexer, &self.limits)?;
            Ok(Kept {
                is_cut: kept.is_some(),
                rules: kept.unwrap_or(rules),
                lexer,
            })
        };
        let kept = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(kept())));
        let kept: Result<Kept, String> = kept.map_err(|error| self.reject_any(&error))?;
        kept.map_err(|what| self.reject(what))
    }

    /// The parser at the beginning of an output.
    pub(super) fn parser(
        &self,
        rules: Rules,
        lexer: LexerSpec,
    ) -> Result<TokenParser, GrammarError> {
        let init = GrammarInit::Internal(rules, lexer);
        let parser = || {
            self.vocabulary.factory().create_parser_from_init_ext(
                init,
                Logger::new(0, 0),
                InferenceCapabilities::default(),
                self.limits.clone(),
            )
        };
        let parser = panic_utils::catch_unwind(AssertUnwindSafe(parser));
        parser.map_err(|error| self.reject_any(&error))
    }

    /// The error of a source that does not compile.
    pub(super) fn reject(&self, what: String) -> GrammarError {
        let kind = self.source.kind();
        let what = first_lines(&what);
        if is_about_bounds(&what) {
            GrammarError::TooLarge { kind, what }
        } else {
            GrammarError::Compile { kind, what }
        }
    }

    fn reject_any(&self, error: &dyn Display) -> GrammarError {
        self.reject(format!("{error:#}"))
    }
}

/// llguidance distinguishes its bounds from other errors by words only.
fn is_about_bounds(what: &str) -> bool {
    let words = [
        "too big",
        "too large",
        "fuel",
        "too complex",
        "Too many items",
    ];
    words.iter().any(|word| what.contains(word))
}
