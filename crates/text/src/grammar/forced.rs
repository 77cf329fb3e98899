//! Text that a grammar forces, and its tokens.
//!
//! A position is forced if exactly one byte may come next and the output may not end there. The
//! bytes are found by trying, as llguidance's `force_bytes` finds them, but only some at a time:
//! a grammar may force megabytes. The tokenizer spells them, after the token before them. Tokens
//! at the end that would be others with some text that may follow are left to the model, by the
//! rule of llguidance's `chop_tokens`.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::TokenParser;
use llguidance::derivre::NextByte;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie, TrieNode};

use motet_protocol::TokenId;

/// Tokenises a text as the model's tokenizer does; `None` if it cannot.
pub(super) type Encoder = Arc<dyn Fn(&str) -> Option<Vec<TokenId>> + Send + Sync>;

/// Most bytes that are looked for at once. The text after them is looked for when its tokens
/// have come.
const BYTES_MAX: usize = 96;
/// Most positions of these at which all bytes are tried. At others the lexer knows the byte.
const SEARCHES_MAX: usize = 4;
/// Tokens at the end of a run that may depend on the text after it.
const OPEN_TOKENS_MAX: usize = 4;
/// Begins the text before the one to tokenise, where a tokenizer adds a space at the beginning of
/// a text.
const ANCHOR: &str = "\n";
/// llguidance neither reads nor writes its cache of masks where the mask has a beginning.
const UNCACHED: &[u8] = &[0];

/// Returns the tokens that the grammar forces after a parser's position, where the output ends
/// with `last`. There may be more after them.
pub(super) fn tokens(
    parser: &mut TokenParser,
    encode: &Encoder,
    last: Option<TokenId>,
) -> Vec<TokenId> {
    let environment = parser.token_env.clone();
    let trie = environment.tok_trie();
    if parser.is_accepting() {
        return Vec::new();
    }
    let mut bytes = bytes(parser, trie);
    bytes.truncate(bytes_before_an_end(parser, trie, &bytes));
    bytes.truncate(match str::from_utf8(&bytes) {
        Ok(text) => text.len(),
        Err(error) => error.valid_up_to(),
    });
    let Ok(text) = str::from_utf8(&bytes) else {
        return Vec::new();
    };
    let before = last.map_or(&[][..], |token| trie.token(token));
    let mut tokens = spelled_after(trie, encode, last, before, text);
    if !tokens.is_empty() {
        chop(parser, trie, &bytes, &mut tokens);
    }
    tokens
}

/// Returns bytes that must come next, one after another.
fn bytes(parser: &mut TokenParser, trie: &TokTrie) -> Vec<u8> {
    search(parser, trie, |recognizer| {
        let mut found = Vec::new();
        let mut searches_left = SEARCHES_MAX;
        while found.len() < BYTES_MAX
            && let Some(byte) = only_byte(recognizer, &mut searches_left)
            && recognizer.try_push_byte(byte)
        {
            found.push(byte);
        }
        found
    })
}

/// Returns the only byte that may come next, if there is one.
fn only_byte(recognizer: &mut ParserRecognizer<'_>, searches_left: &mut usize) -> Option<u8> {
    let state = recognizer.lexer_state();
    let hint = recognizer.lexer_mut().next_byte(state);
    if let NextByte::ForcedByte(byte) = hint {
        return (byte != TokTrie::SPECIAL_TOKEN_MARKER).then_some(byte);
    }
    *searches_left = searches_left.checked_sub(1)?;
    let mut only = None;
    // Printable characters first: two of them are found soon.
    for byte in (b' '..=u8::MAX).chain(0..b' ') {
        if recognizer.try_push_byte(byte) {
            recognizer.pop_bytes(1);
            if only.replace(byte).is_some() {
                return None;
            }
        }
    }
    only.filter(|byte| *byte != TokTrie::SPECIAL_TOKEN_MARKER)
}

/// Returns how many of these bytes come before the first position at which the output may end.
/// A position that no tokens spell counts as one.
fn bytes_before_an_end(parser: &mut TokenParser, trie: &TokTrie, bytes: &[u8]) -> usize {
    let Some(end) = trie.eos_tokens().first() else {
        return 0;
    };
    let may_end = |parser: &mut TokenParser, at: usize| {
        let mut tokens = trie.greedy_tokenize(&bytes[..at]);
        if trie.decode_raw(&tokens) != bytes[..at] {
            return true;
        }
        tokens.push(*end);
        parser.validate_tokens_raw(&tokens).ok() == Some(tokens.len())
    };
    let first = (1..bytes.len()).find(|at| may_end(parser, *at));
    first.unwrap_or(bytes.len())
}

/// Returns the tokens of a text after another token. They are those of both texts together, if
/// these begin with that token.
fn spelled_after(
    trie: &TokTrie,
    encode: &Encoder,
    last: Option<TokenId>,
    before: &[u8],
    text: &str,
) -> Vec<TokenId> {
    let together = last.and_then(|last| {
        let both = format!("{}{text}", str::from_utf8(before).ok()?);
        let tokens = spelled(trie, encode, &both)?;
        let after = tokens.strip_prefix(&[last])?;
        Some(after.to_vec())
    });
    let alone = || spelled(trie, encode, text);
    together.or_else(alone).unwrap_or_default()
}

/// Returns tokens that spell exactly this text, as the tokenizer does; `None` where it spells
/// another.
fn spelled(trie: &TokTrie, encode: &Encoder, text: &str) -> Option<Vec<TokenId>> {
    let spells = |tokens: &[TokenId]| trie.decode_raw(tokens) == text.as_bytes();
    let exactly = encode(text).filter(|tokens| spells(tokens));
    exactly.or_else(|| {
        let anchored = encode(&format!("{ANCHOR}{text}"))?;
        let starts = 1..anchored.len();
        let start = starts.into_iter().find(|at| spells(&anchored[*at..]))?;
        Some(anchored[start..].to_vec())
    })
}

/// Removes the tokens at the end that may be others, since a longer token than theirs may follow
/// the tokens before.
fn chop(parser: &mut TokenParser, trie: &TokTrie, bytes: &[u8], tokens: &mut Vec<TokenId>) {
    let open = &tokens[tokens.len().saturating_sub(OPEN_TOKENS_MAX)..];
    let open_bytes: usize = open.iter().map(|token| trie.token_len(*token)).sum();
    let open_bytes = open_bytes.min(trie.max_token_len());
    let mut chopped = search(parser, trie, |recognizer| {
        if !bytes.iter().all(|byte| recognizer.try_push_byte(*byte)) {
            return bytes.len();
        }
        let mut lengths = (1..=open_bytes).rev();
        let is_open = |length: &usize| {
            let suffix = &bytes[bytes.len() - length..];
            let node = trie.child_at_bytes(trie.root(), suffix);
            node.is_some_and(|node| has_longer(trie, recognizer, node))
        };
        lengths.find(is_open).unwrap_or(0)
    });
    while chopped > 0
        && let Some(token) = tokens.pop()
    {
        chopped = chopped.saturating_sub(trie.token_len(token));
    }
}

/// Whether a token continues this node's text with bytes that may come next.
fn has_longer(trie: &TokTrie, recognizer: &mut ParserRecognizer<'_>, node: &TrieNode) -> bool {
    trie.node_children(node).any(|child| {
        if !recognizer.try_push_byte(child.byte()) {
            return false;
        }
        let is_token = child.token_id().is_some();
        let found = is_token || has_longer(trie, recognizer, child);
        recognizer.pop_bytes(1);
        found
    })
}

/// Runs a search with llguidance's recognizer at a parser's position. It runs in the place of
/// the computation of a mask, with the fuel of one.
fn search<T: Default + Send>(
    parser: &mut TokenParser,
    trie: &TokTrie,
    run: impl Fn(&mut ParserRecognizer<'_>) -> T + Send + Sync,
) -> T {
    let search = Search {
        trie,
        run,
        found: Mutex::default(),
    };
    parser.parser.compute_bias(&search, UNCACHED);
    let found = search.found.into_inner();
    found.unwrap_or_else(PoisonError::into_inner)
}

struct Search<'a, F, T> {
    trie: &'a TokTrie,
    run: F,
    found: Mutex<T>,
}

impl<F, T> BiasComputer for Search<'_, F, T>
where
    F: Fn(&mut ParserRecognizer<'_>) -> T + Send + Sync,
    T: Send,
{
    fn compute_bias(&self, recognizer: &mut ParserRecognizer<'_>, _start: &[u8]) -> SimpleVob {
        recognizer.trie_started("forced");
        let found = (self.run)(recognizer);
        recognizer.trie_finished();
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = found;
        self.trie.alloc_token_set()
    }

    fn trie(&self) -> &TokTrie {
        self.trie
    }
}
