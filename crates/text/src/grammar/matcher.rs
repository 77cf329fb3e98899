//! Position of one sequence in a grammar.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::earley::ParserStats;

use super::error_text::first_lines;
use super::forced::{self, Encoder};
use super::memory::Charge;
use super::runs::{FirstBytes, Runs};
use super::vocabulary::GrammarVocabulary;
use motet_protocol::FORCED_TOKENS_MAX;
use motet_protocol::TokenId;
use motet_protocol::{ForcedTokens, GrammarError, Next, TokenMask};

/// Follows one output through a grammar, token by token, on the calling thread.
pub struct Matcher {
    parser: TokenParser,
    encoder: Option<Encoder>,
    /// Most tokens that are forced at once.
    forced_max: usize,
    /// The tokens that must come next. They are a function of the output.
    forced: VecDeque<TokenId>,
    /// The last token of the output.
    last: Option<TokenId>,
    /// Ends digits and white space, where the grammar is of JSON.
    first_bytes: Option<Arc<FirstBytes>>,
    /// The digits and the white space that the output ends with.
    runs: Runs,
    /// The error after which it cannot go on.
    failed: Option<GrammarError>,
    /// Memory charge for its lexer's states.
    charge: Charge,
    /// The parser's counters at the last call of `take_work`.
    counted: ParserStats,
    /// The parser's counters after the last accepted token.
    accepted: ParserStats,
    /// Mean number of items per row that recent tokens added.
    row: u64,
    vocab_size: usize,
    end_tokens: Arc<[TokenId]>,
    ended: bool,
    /// Whether it has looked ahead. Its caches and its memory are then not a function of the output.
    has_looked_ahead: bool,
}

/// The findings of a matcher along a draft.
#[derive(Debug)]
pub(super) struct LookAhead {
    /// The tokens that may come next, after the draft's first token, and so on.
    pub(super) next_tokens: Vec<Next>,
    /// Whether the matcher is where it was. If not, it is of no use any more.
    pub(super) is_back: bool,
}

/// Work of a look-ahead, in the units of [`Matcher::take_work`], after which it ends. A step waits
/// for it, beside the masks of other sequences.
const AHEAD_WORK_MAX: u64 = 1_000;

impl Matcher {
    /// A matcher at the beginning of a grammar, whose numbers are those of JSON if `has_json`.
    pub(super) fn new(
        mut parser: TokenParser,
        vocabulary: &GrammarVocabulary,
        has_json: bool,
    ) -> Self {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let counted = parser.parser_stats().clone();
        let mut matcher = Self {
            parser,
            encoder: vocabulary.encoder().cloned(),
            forced_max: if vocabulary.limits().forced_tokens {
                FORCED_TOKENS_MAX
            } else {
                1
            },
            forced: VecDeque::new(),
            last: None,
            first_bytes: has_json.then(|| Arc::clone(vocabulary.first_bytes())),
            runs: Runs::default(),
            failed: None,
            charge: vocabulary.memory().charge(),
            accepted: counted.clone(),
            counted,
            row: 0,
            vocab_size: vocabulary.vocab_size(),
            end_tokens: vocabulary.end_tokens().into(),
            ended: false,
            has_looked_ahead: false,
        };
        // After an error the next operation fails too.
        matcher.find_forced().ok();
        matcher
    }

    /// A copy with a lexer of its own. The caches of a shared lexer would count against the
    /// bounds of all its users.
    pub(super) fn fresh(&self) -> Self {
        Self {
            parser: self.parser.deep_clone(),
            encoder: self.encoder.clone(),
            forced: self.forced.clone(),
            first_bytes: self.first_bytes.clone(),
            failed: self.failed.clone(),
            charge: self.charge.new_sibling(),
            counted: self.counted.clone(),
            accepted: self.accepted.clone(),
            end_tokens: Arc::clone(&self.end_tokens),
            ..*self
        }
    }

    /// Accepts the next token of the output.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Failed`] when the grammar does not allow the token here, or when it costs
    /// too much. The matcher cannot go on then.
    pub fn accept(&mut self, token: TokenId) -> Result<(), GrammarError> {
        if self.end_tokens.contains(&token) && self.is_complete() {
            self.ended = true;
            return Ok(());
        }
        let taken = self.attempt(|parser| {
            parser.consume_token(token)?;
            parser.check_stop()
        });
        self.last = Some(token);
        if taken.is_ok() {
            let text = self.parser.token_env.tok_trie().token(token);
            self.runs = self.runs.after(text);
        }
        let was_forced = self.forced.front() == Some(&token);
        if was_forced {
            self.forced.pop_front();
        } else {
            self.forced.clear();
        }
        let found = match taken {
            Ok(false) if self.forced.is_empty() => self.find_forced(),
            taken => taken.map(|_| ()),
        };
        self.accepted = self.parser.parser_stats().clone();
        found.map_err(|error| self.fail(error))
    }

    /// Finds the tokens that the grammar forces here.
    fn find_forced(&mut self) -> Result<(), GrammarError> {
        if let Some(encoder) = self.encoder.clone() {
            let last = self.last;
            let found = |parser: &mut TokenParser| {
                Ok::<_, GrammarError>(forced::tokens(parser, &encoder, last))
            };
            self.forced = self.attempt(found)?.into();
        }
        Ok(())
    }

    /// Computes the tokens that may come next. Unless they are forced, this is the costly part:
    /// up to milliseconds.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Failed`] when it costs too much, or when no token spells the text that the
    /// grammar requires.
    pub fn next_tokens(&mut self) -> Result<Next, GrammarError> {
        if self.ended {
            return Ok(Next::Finished);
        }
        let complete = self.is_complete();
        if self.is_at_an_end() {
            return Ok(self.only_ends());
        }
        if let Some(first) = self.forced.front() {
            let mask = TokenMask::of(&[*first], self.vocab_size);
            let tokens = self.forced.iter().take(self.forced_max).copied();
            return Ok(Next::Forced(ForcedTokens {
                mask: Arc::new(mask),
                tokens: tokens.collect(),
            }));
        }
        let mask = self.attempt(TokenParser::compute_mask);
        let has_nothing = self.parser.stop_reason() == StopReason::NoExtensionBias;
        match mask {
            Ok(mask) => {
                self.weigh()?;
                let mask = TokenMask::from_words(mask.into(), self.vocab_size);
                let mask = match &self.first_bytes {
                    Some(first_bytes) => first_bytes.end_runs(mask, self.runs),
                    None => mask,
                };
                Ok(Next::Mask(Arc::new(mask)))
            }
            // If there are end tokens, a mask of a complete grammar has them.
            Err(_) if complete && has_nothing => {
                self.ended = true;
                Ok(Next::Finished)
            }
            Err(_) if has_nothing => Err(self.fail(failed(
                "no token of the vocabulary spells what must come next",
            ))),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Computes the tokens that may come next along a draft, where `next` may come now. Goes ahead
    /// with the draft's tokens as long as they are allowed, and back.
    ///
    /// A grammar that cannot go back does not look ahead. The work is not
    /// counted: [`take_work`](Self::take_work) must have been called before.
    pub(super) fn look_ahead(&mut self, next: Next, draft: &[TokenId]) -> LookAhead {
        let mut found = LookAhead {
            next_tokens: vec![next],
            is_back: true,
        };
        if !self.can_go_back() {
            return found;
        }
        let forced = self.forced.clone();
        let (last, runs, row) = (self.last, self.runs, self.row);
        let (mut moved, mut work) = (0, 0);
        for token in draft {
            let is_allowed = found.next_tokens[moved].allows(*token);
            // After an end token nothing comes, and the parser may not have read it.
            if !is_allowed || self.end_tokens.contains(token) || work > AHEAD_WORK_MAX {
                break;
            }
            moved += 1;
            match self.accept(*token).and_then(|()| self.next_tokens()) {
                Ok(Next::Finished) | Err(_) => break,
                Ok(next) => found.next_tokens.push(next),
            }
            work += self.take_work();
        }
        if moved > 0 {
            self.take_work();
            (self.forced, self.last, self.runs, self.row) = (forced, last, runs, row);
            self.ended = false;
            self.has_looked_ahead = true;
            found.is_back = self.go_back(moved);
        }
        found
    }

    fn can_go_back(&self) -> bool {
        !self.ended && self.parser.parser.grammar().lexer_spec().can_rollback()
    }

    /// Goes back by this many tokens, unless an error or a panic has left the parser where no
    /// operation helps.
    fn go_back(&mut self, tokens: usize) -> bool {
        if matches!(self.failed, Some(GrammarError::Panicked)) {
            return false;
        }
        self.failed = None;
        let back = self.attempt(|parser| parser.rollback(tokens));
        // llguidance finds its last mask again by the number of its row. After a rollback, another
        // row has that number.
        self.parser.invalidate_bias_cache();
        back.is_ok()
    }

    /// Whether it has looked ahead since it was made.
    pub(super) fn has_looked_ahead(&self) -> bool {
        self.has_looked_ahead
    }

    /// Returns the work done since the last call, in units of about a microsecond. It is the same
    /// for the same tokens, whatever else the machine does.
    pub fn take_work(&mut self) -> u64 {
        let all = self.parser.parser_stats().clone();
        let taking_in = self.accepted.delta(&self.counted);
        let mask = all.delta(&self.accepted);
        (self.counted, self.accepted) = (all.clone(), all);
        self.row = mean_row(&taking_in).unwrap_or(self.row);
        // A mask may look at a thousand empty rows beside a full one.
        let row = mean_row(&mask).unwrap_or(0).max(self.row);
        work_of(&taking_in, self.row) + work_of(&mask, row)
    }

    /// Bytes of its lexer's states, by llguidance's own count.
    #[must_use]
    pub fn state_bytes(&self) -> usize {
        self.parser.parser.lexer_stats().num_bytes
    }

    /// Charges the bytes of its states to the budget.
    fn weigh(&mut self) -> Result<(), GrammarError> {
        let bytes = self.state_bytes();
        self.charge.set(bytes).map_err(|error| self.fail(error))
    }

    /// Runs an operation of the parser, which may panic. After a failure, no operation runs any
    /// more.
    fn attempt<T, E: fmt::Display>(
        &mut self,
        operation: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, GrammarError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut operation = Some(operation);
        let parser = &mut self.parser;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let operation = operation.take().expect("it is called once");
            operation(parser).map_err(|error| failed(&error.to_string()))
        }));
        done.unwrap_or_else(|_| Err(GrammarError::Panicked))
    }

    fn fail(&mut self, error: GrammarError) -> GrammarError {
        self.failed.get_or_insert(error).clone()
    }

    /// Whether the output may end here.
    #[must_use]
    pub fn is_complete(&mut self) -> bool {
        // A matcher that stopped because nothing more is allowed is complete too.
        self.ended
            || self.is_at_an_end()
            || self
                .attempt(|parser| Ok::<_, GrammarError>(parser.is_accepting()))
                .unwrap_or(false)
    }

    fn is_at_an_end(&self) -> bool {
        let stopped = self.parser.stop_reason();
        self.failed.is_none()
            && matches!(stopped, StopReason::NoExtension | StopReason::EndOfSentence)
    }

    fn only_ends(&self) -> Next {
        match &self.end_tokens[..] {
            [] => Next::Finished,
            ends => Next::Mask(Arc::new(TokenMask::of(ends, self.vocab_size))),
        }
    }
}

/// Mean number of items per row; `None` if there are no rows.
fn mean_row(counts: &ParserStats) -> Option<u64> {
    (counts.all_items as u64).checked_div(counts.rows as u64)
}

/// Cost of these counts, in units of about a microsecond: 14 units of the lexer's fuel, 20 items,
/// 50 nodes of the trie. Items of long rows cost more. Each is looked for in its row, and in an
/// ambiguous grammar it is found again for each way to it: 300 items of a row take as long as
/// 6,000 in short ones.
fn work_of(counts: &ParserStats, row: u64) -> u64 {
    let items = counts.all_items as u64;
    let in_long_rows = items.saturating_mul(row).saturating_mul(row) / 100_000;
    counts.lexer_cost / 14 + items / 20 + in_long_rows + counts.trie_nodes_walked as u64 / 50
}

fn failed(what: &str) -> GrammarError {
    GrammarError::Failed {
        what: first_lines(what),
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher")
            .field("stop_reason", &self.parser.stop_reason())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
