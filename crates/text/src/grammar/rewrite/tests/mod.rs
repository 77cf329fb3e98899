//! The texts that compiled schemas accept, by examples and at random.

mod costly;
mod examples;
mod generated;
mod random;

use std::sync::{Arc, LazyLock};

use serde_json::Value;

use crate::grammar::{
    Grammar, GrammarError, GrammarSource, GrammarVocabulary, MaskPool, Matcher, Next,
};
use motet_protocol::TokenId;
pub(in crate::grammar) use random::Random;

const END: TokenId = 0;
/// White space in a row after which an output is taken to have no end. One more than a grammar allows.
const SPACES_MAX: usize = 21;

/// The end, and all bytes.
fn vocabulary() -> GrammarVocabulary {
    static SHARED: LazyLock<GrammarVocabulary> = LazyLock::new(|| {
        let bytes = (0..=255u8).map(|byte| vec![byte]);
        let tokens = [b"<end>".to_vec()].into_iter().chain(bytes);
        GrammarVocabulary::from_bytes(tokens.collect(), &[END]).expect("a vocabulary")
    });
    SHARED.clone()
}

fn compile(schema: &Value) -> Result<Grammar, GrammarError> {
    static POOL: LazyLock<Arc<MaskPool>> = LazyLock::new(|| MaskPool::start(1).expect("a thread"));
    let source = GrammarSource::JsonSchema(schema.to_string());
    Grammar::compile(&source, &vocabulary(), &POOL)
}

fn byte(byte: u8) -> TokenId {
    TokenId::from(byte) + 1
}

/// Whether the grammar accepts this text.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher();
    text.bytes().all(|letter| {
        let next = matcher.next_tokens();
        let token = byte(letter);
        allowed(&next.expect("goes on")).contains(&token) && matcher.accept(token).is_ok()
    }) && matcher.is_complete()
}

fn allowed(next: &Next) -> Vec<TokenId> {
    let mask = next.mask();
    mask.map_or_else(Vec::new, |mask| mask.tokens().collect())
}

/// An output of random tokens among those that are allowed; `None` if it is too long.
fn output(grammar: &Grammar, random: &mut Random, bytes_max: usize) -> Option<String> {
    let mut matcher = grammar.matcher();
    let mut text = Vec::new();
    let mut spaces = 0;
    while text.len() < bytes_max {
        let token = chosen(&mut matcher, random);
        if token == END {
            return Some(String::from_utf8(text).expect("grammars allow UTF-8 only"));
        }
        let letter = (token - 1) as u8;
        spaces = if letter.is_ascii_whitespace() {
            spaces + 1
        } else {
            0
        };
        let shown = String::from_utf8_lossy(&text);
        assert!(spaces < SPACES_MAX, "{shown} goes on with white space");
        matcher.accept(token).expect("it is allowed");
        text.push(letter);
    }
    None
}

/// Prefers whatever ends something, and avoids white space: most outputs would be too long.
fn chosen(matcher: &mut Matcher, random: &mut Random) -> TokenId {
    let next = allowed(&matcher.next_tokens().expect("goes on"));
    let is_space = |token: &TokenId| *token != END && (*token as u8 - 1).is_ascii_whitespace();
    let ends = |token: &TokenId| *token == END || b"\"}]".contains(&((*token - 1) as u8));
    let plain: Vec<TokenId> = next
        .iter()
        .copied()
        .filter(|token| !is_space(token))
        .collect();
    let ending: Vec<TokenId> = next.iter().copied().filter(ends).collect();
    let from = match random.below(12) {
        0 => &next,
        1..4 => &plain,
        _ => &ending,
    };
    let from = [from, &plain, &next]
        .into_iter()
        .find(|tokens| !tokens.is_empty());
    let from = from.expect("some token is allowed");
    from[random.below(from.len())]
}
