//! Chats of several turns, as a server sees them: their prompts, and what of these was cached.
//!
//! The texts are numbers made from a seed, so that two models get the same prompts. The answers
//! are the model's own.

use std::error::Error;
use std::time::Duration;

use motet::{Engine, Request, TokenId, TokenStream};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Tokens before a user's message, and the last of a message.
const USER: [TokenId; 3] = [1, 2, 3];
const END: TokenId = 4;
/// Tokens that ask for an answer. The last one is not in the history of a template that spells
/// answers in another way.
const ASSISTANT: [TokenId; 4] = [1, 5, 3, 6];
/// Texts use the tokens from here on.
const FIRST_WORD: u64 = 16;
/// How often a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Chats that take turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chats {
    pub(crate) chats: u64,
    pub(crate) turns: u64,
    /// Tokens of a user's message, on average.
    pub(crate) user_tokens: usize,
    /// Tokens of an answer, on average.
    pub(crate) answer_tokens: usize,
    /// Tokens of a system prompt.
    pub(crate) system_tokens: usize,
    /// Whether all chats have the same system prompt.
    pub(crate) shares_system: bool,
    /// Whether the template spells an answer in another way in the history: without the first
    /// half, in which the model thinks.
    pub(crate) respells: bool,
}

/// The counts of chats that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    /// Cached bytes when all chats have ended.
    pub(crate) cached_bytes: usize,
    pub(crate) steps: u64,
}

/// A chat's tokens so far.
struct Chat {
    number: u64,
    history: Vec<TokenId>,
}

impl Outcome {
    /// The share of prompt tokens that were cached.
    pub(crate) fn reuse(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

impl Chats {
    /// The kinds of chats to measure, with their names.
    pub(crate) fn kinds(chats: u64, turns: u64) -> [(&'static str, Self); 4] {
        let own = Self {
            chats,
            turns,
            user_tokens: 60,
            answer_tokens: 140,
            system_tokens: 100,
            shares_system: false,
            respells: false,
        };
        let shared = Self {
            system_tokens: 400,
            shares_system: true,
            ..own
        };
        let respelled = Self {
            respells: true,
            ..shared
        };
        let short = Self {
            user_tokens: 20,
            answer_tokens: 50,
            ..shared
        };
        [
            ("own system prompts", own),
            ("a shared system prompt", shared),
            ("answers spelled otherwise in the history", respelled),
            ("short turns", short),
        ]
    }

    /// Holds all chats on this engine, which serves nothing else.
    pub(crate) async fn hold(&self, engine: &Engine) -> Result<Outcome> {
        let vocab_size = engine.model().vocab_size as u64;
        let mut outcome = Outcome::default();
        let mut chats: Vec<Chat> = (0..self.chats)
            .map(|number| Chat {
                number,
                history: self.system_prompt(number, vocab_size),
            })
            .collect();
        for turn in 0..self.turns {
            let mut streams: Vec<(TokenStream, usize)> = Vec::new();
            for chat in &mut chats {
                let request = self.request(chat, turn, vocab_size);
                streams.push((engine.submit(request).await?, chat.history.len()));
            }
            for (chat, (stream, turn_end)) in chats.iter_mut().zip(streams) {
                let output = stream.collect().await?;
                outcome.prompt_tokens += output.finish.usage.prompt_tokens;
                outcome.cached_tokens += output.finish.usage.cached_tokens;
                self.note_answer(chat, turn_end, &output.tokens);
            }
            // A user reads before answering.
            while engine.stats().cache.reserved_bytes > 0 {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        let stats = engine.stats();
        outcome.cached_bytes = stats.cache.sealed_bytes;
        outcome.steps = stats.steps;
        Ok(outcome)
    }

    fn system_prompt(&self, chat: u64, vocab_size: u64) -> Vec<TokenId> {
        let of = if self.shares_system { 0 } else { 1 + chat };
        words(of << 32, self.system_tokens, vocab_size)
    }

    /// The request of a chat's next turn, whose message joins the history.
    fn request(&self, chat: &mut Chat, turn: u64, vocab_size: u64) -> Request {
        let seed = (chat.number << 32) + (turn << 8) + 1;
        chat.history.extend(USER);
        let tokens = about(self.user_tokens, seed);
        chat.history.extend(words(seed, tokens, vocab_size));
        chat.history.push(END);
        let prompt = [&chat.history[..], &ASSISTANT].concat();
        Request::tokens(prompt)
            .turn_end(chat.history.len())
            .output_tokens_max(about(self.answer_tokens, seed + 1))
            .ignore_end_tokens()
    }

    /// Adds an answer to the history, as the template spells it.
    fn note_answer(&self, chat: &mut Chat, turn_end: usize, answer: &[TokenId]) {
        chat.history.truncate(turn_end);
        if self.respells {
            chat.history.extend(&ASSISTANT[..ASSISTANT.len() - 1]);
            chat.history.extend(&answer[answer.len() / 2..]);
        } else {
            chat.history.extend(ASSISTANT);
            chat.history.extend(answer);
        }
        chat.history.push(END);
    }
}

/// A number between half of `tokens` and one and a half times as many.
fn about(tokens: usize, seed: u64) -> usize {
    (tokens / 2 + (mix(seed) % (tokens as u64 + 1)) as usize).max(1)
}

fn words(seed: u64, tokens: usize, vocab_size: u64) -> Vec<TokenId> {
    let word =
        |at: u64| FIRST_WORD + mix(seed.wrapping_mul(0x2545_f491) ^ at) % (vocab_size - FIRST_WORD);
    (0..tokens as u64).map(|at| word(at) as TokenId).collect()
}

/// The mixing function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
