//! Tokenizers, chat templates, and text that goes through them.

use std::hint::black_box;
use std::sync::LazyLock;

use motet::text::{Chat, ChatTemplate, Message, Tokenizer};
use motet_text::{Detokenizer, SpecialTokens, StopStrings};

use super::input::FuzzInput;
use super::scratch::Scratch;
use super::sentence_piece::sentence_piece;

/// A `tokenizer.json`.
pub fn tokenizer(input: &[u8]) {
    let folder = Scratch::new();
    folder.write("tokenizer.json", input);
    if let Ok(tokenizer) = Tokenizer::from_folder(folder.path()) {
        let tokens = tokenizer.encode("A few words, and <s>.", true);
        let text = tokens.map(|tokens| tokenizer.decode(&tokens).is_ok());
        black_box(text.is_ok());
    }
}

/// A chat template, a zero, and a message.
pub fn template(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (source, user_text) = text.split_once('\0').unwrap_or((&text, "Hello."));
    let special = [("bos_token", "<s>"), ("eos_token", "</s>")];
    let Ok(template) = ChatTemplate::new(source, special) else {
        return;
    };
    let chat = Chat::from([Message::system("Be brief."), Message::user(user_text)]);
    for prompts in [true, false] {
        black_box(template.render(&chat, prompts).is_ok());
    }
}

/// The first bytes set the pieces in which a stop string is looked for; the rest is text.
pub fn text(input: &[u8]) {
    static TOKENIZER: LazyLock<Tokenizer> =
        LazyLock::new(|| Tokenizer::from_gguf(&sentence_piece()).expect("a whole vocabulary"));
    let mut pieces = FuzzInput(input);
    let stop_bytes = 1 + pieces.below(4);
    let text = String::from_utf8_lossy(pieces.0);
    let tokens = TOKENIZER.encode(&text, false).expect("any text has tokens");
    assert!(
        tokens
            .iter()
            .all(|token| (*token as usize) < TOKENIZER.vocab_size())
    );
    black_box(TOKENIZER.decode(&tokens).is_ok());
    let mut detokenizer = Detokenizer::new(&TOKENIZER, SpecialTokens::Skip);
    let mut spelled = String::new();
    for token in tokens {
        spelled.push_str(detokenizer.push(token).expect("its own token"));
    }
    spelled.push_str(detokenizer.finish());
    // Any bytes are valid tokens.
    let mut detokenizer = Detokenizer::new(&TOKENIZER, SpecialTokens::Keep);
    for byte in pieces.0 {
        let token = u32::from(*byte) * 2;
        black_box(detokenizer.push(token).is_ok());
    }
    black_box(detokenizer.finish());
    stops(&spelled, stop_bytes, pieces);
}

/// The output of a matcher, with its input in any pieces, is the text before the stop string.
fn stops(text: &str, stop_chars: usize, mut pieces: FuzzInput<'_>) {
    let middle = text.chars().skip(text.chars().count() / 2);
    let stop: String = middle.take(stop_chars).collect();
    let Ok(stops) = StopStrings::new([stop.as_str()]) else {
        assert!(stop.is_empty(), "{stop:?} is a stop string");
        return;
    };
    let mut matcher = stops.matcher();
    let mut released = String::new();
    let mut stopped = false;
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    while at < chars.len() && !stopped {
        let next = chars.len().min(at + 1 + pieces.below(7));
        let piece: String = chars[at..next].iter().collect();
        let out = matcher.push(&piece);
        released.push_str(out.text);
        stopped = out.stopped_by.is_some();
        at = next;
    }
    let before = text.find(&stop).map_or(text, |at| &text[..at]);
    assert!(stopped, "{stop:?} is part of {text:?}");
    assert_eq!(released, before, "before {stop:?}");
}
