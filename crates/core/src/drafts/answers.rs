//! Drafts from finished answers of the same salt: agents repeat what other agents wrote.
//!
//! A salt's answers are a window over all that it was given, with an index of n-grams. They occupy
//! at most a share of all bytes, and the oldest go first. If the salts together have too many
//! bytes, the answers of the least recently used salt are dropped at once, which costs no work.

use std::fmt;

use motet_protocol::{Salt, TokenId};

use super::by_salt::BySalt;
use super::ngram_index::{NgramIndex, Text};
use super::{DraftSource, Drafter, Proposal};

/// Length of the indexed n-grams, and thus of the shortest match. Chances are learned by length of
/// match: short matches that predict little are drafted little.
const NGRAM_TOKENS: usize = 2;
/// Stands between two answers. It is no token of any vocabulary.
const SEPARATOR: TokenId = TokenId::MAX;
/// Maximum number of salts with answers. More would be few answers each.
const SALTS_MAX: usize = 1024;
/// One salt has this share of all bytes at most, so that a busy one leaves some to others.
const SALT_SHARE: usize = 4;
/// Bytes of a token in a full window: itself, its chain, and a head.
const TOKEN_BYTES: usize = 12;
/// Maximum number of tokens of an answer that are kept, its last ones, so that adding it is bounded
/// work.
const ANSWER_TOKENS_MAX: usize = 1 << 15;
/// The least window of a salt. Its bytes are [`SALT_SHARE`] times that at least.
const WINDOW_MIN: usize = 256;

/// Finished answers, by salt.
#[derive(Debug)]
pub struct Answers {
    salts: BySalt<SaltAnswers>,
    /// Bytes of all salts.
    bytes: usize,
    bytes_max: usize,
}

/// The finished answers of one salt.
#[derive(Clone)]
pub struct SaltAnswers {
    /// The latest tokens. The one of `position` is at `position % window`.
    tokens: Vec<TokenId>,
    index: NgramIndex,
    window: usize,
}

impl Answers {
    /// Answers that occupy at most `bytes_max` bytes, and none if these are too few for an answer.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            salts: BySalt::new(SALTS_MAX),
            bytes: 0,
            bytes_max,
        }
    }

    /// Adds a finished answer. It should be led by the last tokens of its prompt, so that its
    /// start can be found; [`SequenceDrafts::answer`](super::SequenceDrafts::answer) is that.
    /// Answers of private salts are ignored, since no other sequence has the salt.
    pub fn add(&mut self, salt: &Salt, tokens: &[TokenId]) {
        let share = self.bytes_max / SALT_SHARE / TOKEN_BYTES;
        let window = share.checked_ilog2().map_or(0, |bits| 1 << bits);
        if window < WINDOW_MIN || salt.is_private() || tokens.is_empty() {
            return;
        }
        let answers = self.salts.get_or_insert(salt, || SaltAnswers::new(window));
        answers.add(tokens);
        self.bytes = self.salts.values().map(SaltAnswers::bytes).sum();
        while self.bytes > self.bytes_max {
            let dropped = self.salts.remove_least_recently_used();
            self.bytes -= dropped.map_or(0, |dropped| dropped.bytes());
        }
    }

    /// The answers of a salt, which is used thereby.
    pub fn of(&mut self, salt: &Salt) -> Option<&mut SaltAnswers> {
        self.salts.get(salt)
    }

    /// Drops the answers of a salt.
    pub fn clear(&mut self, salt: &Salt) {
        let dropped = self.salts.remove(salt);
        self.bytes -= dropped.map_or(0, |dropped| dropped.bytes());
    }

    /// Drops all answers.
    pub fn clear_all(&mut self) {
        *self = Self::new(self.bytes_max);
    }

    /// Bytes that the answers and their indexes occupy.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Panics unless the bytes are counted and bounded.
    pub fn check_integrity(&self) {
        let bytes: usize = self.salts.values().map(SaltAnswers::bytes).sum();
        assert_eq!(self.bytes, bytes, "the bytes are those of all salts");
        assert!(bytes <= self.bytes_max, "the bytes are bounded");
        for answers in self.salts.values() {
            let begin = answers.index.end() - answers.tokens.len();
            assert!(
                answers.tokens.len() <= answers.window,
                "the window is bounded"
            );
            assert!(
                answers.bytes() <= self.bytes_max / SALT_SHARE,
                "a salt has its share"
            );
            assert!(answers.token(begin).is_some() && answers.token(answers.index.end()).is_none());
        }
    }
}

impl SaltAnswers {
    fn new(window: usize) -> Self {
        Self {
            tokens: Vec::new(),
            index: NgramIndex::new(NGRAM_TOKENS, 0, window),
            window,
        }
    }

    fn add(&mut self, tokens: &[TokenId]) {
        // Beside the separator, a window has place for one token less.
        let kept = ANSWER_TOKENS_MAX.min(self.window - 1);
        let tokens = &tokens[tokens.len().saturating_sub(kept)..];
        if self.index.end() + tokens.len() + 1 > u32::MAX as usize {
            *self = Self::new(self.window);
        }
        self.push(SEPARATOR, &[]);
        for (at, token) in tokens.iter().enumerate() {
            self.push(*token, &tokens[at.saturating_sub(NGRAM_TOKENS)..at]);
        }
    }

    fn push(&mut self, token: TokenId, before: &[TokenId]) {
        let position = self.index.end();
        self.index.insert(before);
        if self.tokens.len() < self.window {
            self.tokens.push(token);
        } else {
            self.tokens[position & (self.window - 1)] = token;
        }
    }

    fn bytes(&self) -> usize {
        self.index.bytes() + self.tokens.capacity() * size_of::<TokenId>()
    }
}

impl Text for SaltAnswers {
    fn token(&self, position: usize) -> Option<TokenId> {
        let end = self.index.end();
        let is_known = (end - self.tokens.len()..end).contains(&position);
        is_known.then(|| self.tokens[position & (self.window - 1)])
    }
}

impl Drafter for SaltAnswers {
    fn propose(&mut self, recent: &[TokenId], proposal: &mut Proposal) {
        proposal.tokens.clear();
        let Some(found) = self.index.longest(self, recent) else {
            return;
        };
        let rest = (found.position..self.index.end()).map_while(|at| self.token(at));
        let answer = rest.take_while(|token| *token != SEPARATOR);
        proposal.set(DraftSource::Answers, found.tokens, answer);
    }
}

/// Shows how many tokens there are, not which.
impl fmt::Debug for SaltAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SaltAnswers({} tokens)", self.tokens.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random_cases::check_cases;

    fn proposed(answers: &mut Answers, salt: &Salt, recent: &[TokenId]) -> Proposal {
        let mut proposal = Proposal::new();
        if let Some(answers) = answers.of(salt) {
            answers.propose(recent, &mut proposal);
        }
        proposal
    }

    /// A naive model: all answers that were added, and the salts in the order of their use.
    #[derive(Default)]
    struct Naive {
        answers: BTreeMap<usize, Vec<Vec<TokenId>>>,
        used: Vec<usize>,
    }

    impl Naive {
        fn use_salt(&mut self, salt: usize) {
            self.used.retain(|used| *used != salt);
            self.used.push(salt);
        }

        /// Whether one answer of the salt has these tokens in a row.
        fn has(&self, salt: usize, tokens: &[TokenId]) -> bool {
            let answers = self.answers.get(&salt).into_iter().flatten();
            let mut windows = answers.flat_map(|answer| answer.windows(tokens.len()));
            windows.any(|window| window == tokens)
        }
    }

    #[test]
    fn answers_are_those_of_a_naive_list() {
        let names: Vec<Salt> = (0..6).map(|salt| Salt::new(format!("{salt}"))).collect();
        let (dropped, hits) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
        check_cases(400, 40_000, |random| {
            let bytes_max = SALT_SHARE * WINDOW_MIN * TOKEN_BYTES * random.int_in_range(1..=3)?;
            let mut answers = Answers::new(bytes_max);
            let mut naive = Naive::default();
            for _ in 0..40 {
                let salt = random.int_in_range(0..=5)?;
                let mut token = || random.int_in_range(0..=8);
                let recent: Vec<TokenId> = (0..4).map(|_| token()).collect::<Result<_, _>>()?;
                if token()? < 4 {
                    let found = proposed(&mut answers, &names[salt], &recent);
                    if !found.tokens.is_empty() {
                        hits.set(hits.get() + 1);
                        naive.use_salt(salt);
                        let begin = recent.len() - found.match_tokens;
                        let row = [&recent[begin..], &found.tokens].concat();
                        assert!(naive.has(salt, &row), "an answer of the salt goes on so");
                        assert!(found.match_tokens >= NGRAM_TOKENS);
                    } else if answers.salts.peek(&names[salt]).is_some() {
                        naive.use_salt(salt);
                    }
                    continue;
                }
                let length = random.int_in_range(1..=150)?;
                let token = |_| random.int_in_range(0..=8);
                let answer: Vec<TokenId> = (0..length).map(token).collect::<Result<_, _>>()?;
                let bytes_of = |answers: &Answers, salt: usize| {
                    answers.salts.peek(&names[salt]).map(SaltAnswers::bytes)
                };
                let before: Vec<_> = (0..6).map(|salt| bytes_of(&answers, salt)).collect();
                answers.add(&names[salt], &answer);
                answers.check_integrity();
                naive.answers.entry(salt).or_default().push(answer);
                naive.use_salt(salt);
                // The least recently used ones are gone, and no more than needed.
                let is_here = |salt: &usize| bytes_of(&answers, *salt).is_some();
                let gone = naive.used.iter().take_while(|salt| !is_here(salt)).count();
                assert!(
                    naive.used[gone..].iter().all(is_here),
                    "the last used ones stay"
                );
                if let Some(last) = gone.checked_sub(1).map(|last| naive.used[last]) {
                    let bytes = before[last].expect("the salt was dropped now");
                    assert!(answers.bytes() + bytes > bytes_max, "it had to be dropped");
                    dropped.set(dropped.get() + gone);
                }
                for salt in naive.used.drain(..gone) {
                    naive.answers.remove(&salt);
                }
            }
            Ok(())
        });
        assert!(dropped.get() > 10, "the bound was reached");
        assert!(hits.get() > 10, "answers were found");
    }

    #[test]
    fn salts_never_see_each_others_answers() {
        let mut answers = Answers::new(1 << 20);
        let (one, other) = (Salt::new("one"), Salt::new("other"));
        answers.add(&one, &[1, 2, 3, 4, 5]);
        answers.add(&other, &[1, 2, 3, 9]);
        answers.add(&Salt::private(motet_protocol::SequenceId(1)), &[1, 2, 3, 7]);
        assert_eq!(proposed(&mut answers, &one, &[1, 2, 3]).tokens, [4, 5]);
        assert_eq!(proposed(&mut answers, &other, &[1, 2, 3]).tokens, [9]);
        assert!(
            proposed(&mut answers, &Salt::default(), &[1, 2, 3])
                .tokens
                .is_empty()
        );
        answers.clear(&one);
        answers.check_integrity();
        assert!(proposed(&mut answers, &one, &[1, 2, 3]).tokens.is_empty());
        assert_eq!(proposed(&mut answers, &other, &[1, 2, 3]).tokens, [9]);
    }

    #[test]
    fn the_latest_answer_wins_and_the_oldest_goes() {
        let mut answers = Answers::new(SALT_SHARE * WINDOW_MIN * TOKEN_BYTES);
        let salt = Salt::default();
        answers.add(&salt, &[1, 2, 3, 4]);
        answers.add(&salt, &[1, 2, 3, 5]);
        assert_eq!(proposed(&mut answers, &salt, &[1, 2, 3]).tokens, [5]);
        let long: Vec<TokenId> = (100..100 + WINDOW_MIN as TokenId).collect();
        answers.add(&salt, &long);
        answers.check_integrity();
        assert!(proposed(&mut answers, &salt, &[1, 2, 3]).tokens.is_empty());
        assert_eq!(proposed(&mut answers, &salt, &[354]).tokens.len(), 0);
        assert_eq!(proposed(&mut answers, &salt, &[353, 354]).tokens, [355]);
    }
}
