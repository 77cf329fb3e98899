//! The text of every token, as a trie for grammars to walk.

use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};

use super::forced::Encoder;
use super::memory::Memory;
use super::runs::FirstBytes;
use crate::tokenizer::Tokenizer;
use motet_protocol::TokenId;
use motet_protocol::{GrammarError, GrammarLimits};

/// The token texts of one tokenizer, prepared for grammars. Making it takes a fifth of a second
/// for 49,152 tokens. Cheap to clone; all clones share it.
#[derive(Clone)]
pub struct GrammarVocabulary {
    parts: Arc<Parts>,
    /// Spells the text that a grammar forces; `None` leaves its tokens to the model.
    encoder: Option<Encoder>,
    limits: Arc<GrammarLimits>,
    memory: Memory,
}

struct Parts {
    factory: ParserFactory,
    first_bytes: Arc<FirstBytes>,
    size: usize,
    end_tokens: Vec<TokenId>,
}

/// Longest token text, in bytes; the trie is as deep. Longer tokens are never sampled.
const TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of a lexer's state; llguidance's documentation says one to two kilobytes.
const STATE_BYTES: usize = 1280;
/// The trie stores a token's id in 24 bits.
const TOKENS_MAX: usize = 1 << 24;

impl GrammarVocabulary {
    /// The vocabulary of a tokenizer. Special tokens spell no text that a grammar could require;
    /// its end tokens end an output where the grammar allows it.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Vocabulary`].
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        Self::ending_with(tokenizer, tokenizer.end_tokens())
    }

    /// The same with these end tokens, such as those of an engine, which knows more than the
    /// tokenizer.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Vocabulary`].
    pub fn ending_with(
        tokenizer: &Tokenizer,
        end_tokens: &[TokenId],
    ) -> Result<Self, GrammarError> {
        let tokens = (0..tokenizer.vocab_size() as TokenId).map(|token| {
            let bytes = tokenizer.token_bytes(token);
            if tokenizer.is_special(token) {
                Vec::new()
            } else {
                bytes.map_or_else(|_| Vec::new(), <[u8]>::to_vec)
            }
        });
        let vocabulary = Self::from_bytes(tokens.collect(), end_tokens)?;
        let tokenizer = tokenizer.clone();
        Ok(vocabulary.with_encoder(move |text| tokenizer.encode(text, false).ok()))
    }

    /// The same vocabulary with a tokenizer, which spells the text that grammars force; it
    /// returns `None` for a text that it cannot spell.
    #[must_use]
    pub fn with_encoder(
        self,
        encode: impl Fn(&str) -> Option<Vec<TokenId>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            encoder: Some(Arc::new(encode)),
            ..self
        }
    }

    /// The same vocabulary, whose grammars leave the tokens of forced text to the model. It then
    /// spells the text with the tokens that it may sample, where it may not sample some.
    #[must_use]
    pub fn without_forced_tokens(self) -> Self {
        Self {
            encoder: None,
            ..self
        }
    }

    /// The vocabulary whose token `t` spells `tokens[t]`; a token that spells nothing is never
    /// allowed. Its grammars force no tokens, since it knows no tokenizer. End tokens end the output and spell nothing, whatever their bytes are. There may
    /// be none.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Vocabulary`] when there are no tokens or too many, or when an
    /// end token is not one of them.
    pub fn from_bytes(
        mut tokens: Vec<Vec<u8>>,
        end_tokens: &[TokenId],
    ) -> Result<Self, GrammarError> {
        let size = tokens.len();
        let reject = |what: String, expected: String| GrammarError::Vocabulary { what, expected };
        if size == 0 || size > TOKENS_MAX {
            let expected = format!("1 to {TOKENS_MAX}");
            return Err(reject(format!("{size} tokens"), expected));
        }
        for &end in end_tokens {
            let Some(bytes) = tokens.get_mut(end as usize) else {
                let expected = format!("an id below {size}");
                return Err(reject(format!("end token {end}"), expected));
            };
            bytes.clear();
        }
        for bytes in &mut tokens {
            // With this first byte, tokens would be names of special tokens, which grammars can
            // require. No UTF-8 text contains it.
            let is_name = bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER);
            if is_name || bytes.len() > TOKEN_BYTES_MAX {
                bytes.clear();
            }
        }
        let first_bytes = Arc::new(FirstBytes::new(&tokens));
        let first_end = end_tokens.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(size as u32, first_end), &tokens);
        if !end_tokens.is_empty() {
            trie = trie.with_eos_tokens(end_tokens);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let factory = ParserFactory::new_simple(&environment);
        let mut factory = factory.map_err(|error| {
            let expected = "token texts that make a trie".to_owned();
            reject(error.to_string(), expected)
        })?;
        factory.quiet();
        set_bounds(&mut factory);
        let end_tokens = end_tokens.to_vec();
        let parts = Arc::new(Parts {
            factory,
            first_bytes,
            size,
            end_tokens,
        });
        let limits = GrammarLimits::default();
        Ok(Self {
            parts,
            encoder: None,
            memory: Memory::new(&limits),
            limits: Arc::new(limits),
        })
    }

    /// The same vocabulary, with these limits on the cost of its grammars. All outputs that
    /// follow its grammars share one budget of bytes.
    #[must_use]
    pub fn with_limits(self, limits: GrammarLimits) -> Self {
        Self {
            memory: Memory::new(&limits),
            limits: Arc::new(limits),
            ..self
        }
    }

    /// Limits on the cost of a grammar.
    #[must_use]
    pub fn limits(&self) -> &GrammarLimits {
        &self.limits
    }

    /// Token ids are below this.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.parts.size
    }

    /// The tokens that end an output.
    #[must_use]
    pub fn end_tokens(&self) -> &[TokenId] {
        &self.parts.end_tokens
    }

    /// Bytes that the lexers' states of all outputs take now.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.memory.used()
    }

    pub(super) fn encoder(&self) -> Option<&Encoder> {
        // Without an end token nothing says that an output may end, and no text is forced.
        self.encoder
            .as_ref()
            .filter(|_| !self.end_tokens().is_empty())
    }

    pub(super) fn first_bytes(&self) -> &Arc<FirstBytes> {
        &self.parts.first_bytes
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// llguidance's own limits on one grammar. They allow an output only as many states as fit
    /// into its bytes.
    pub(super) fn parser_limits(&self) -> ParserLimits {
        let mut limits = self.factory().limits().clone();
        let states = self.limits.sequence_bytes_max / STATE_BYTES;
        limits.max_lexer_states = limits.max_lexer_states.min(states);
        limits
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.parts.factory
    }
}

/// Sets llguidance's bounds on one grammar. In its units, compiling uses 50 thousand units of
/// fuel per millisecond, and a mask 14 thousand. The time of a mask of an ambiguous grammar grows
/// with the third power of the items in its rows: a tenth of a second at 1000.
fn set_bounds(factory: &mut ParserFactory) {
    let limits = factory.limits_mut();
    limits.initial_lexer_fuel = 1_000_000;
    limits.step_lexer_fuel = 200_000;
    limits.step_max_items = 50_000;
    limits.max_items_in_row = 1000;
    limits.max_lexer_states = 25_000;
    limits.max_grammar_size = 250_000;
    // Verbose errors would contain the output so far.
    limits.verbose_errors = false;
}

impl fmt::Debug for GrammarVocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarVocabulary")
            .field("vocab_size", &self.parts.size)
            .field("end_tokens", &self.parts.end_tokens)
            .finish_non_exhaustive()
    }
}
