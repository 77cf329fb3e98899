//! Tokenizers with the rules of model families, against `tokenizers`, `transformers` and
//! `sentencepiece`.
//!
//! The vocabularies are small and made by `tests/data/tokenizers/generate.py`, with the tokens that
//! those libraries give for some fifty texts.

use std::path::Path;
use std::sync::LazyLock;

use motet::TokenId;
use motet::text::{ChatTemplate, Message, TextCodec, Tokenizer};
use motet_text::GgufVocabulary;
use serde_json::{Value, json};

use crate::vocabularies::Folder;

static EXPECTED: LazyLock<Value> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizers/expected.json");
    let bytes = std::fs::read(path).expect("it is part of the tests");
    serde_json::from_slice(&bytes).expect("the script writes JSON")
});

fn texts(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).expect("texts")
}

fn ids(value: &Value) -> Vec<Vec<TokenId>> {
    serde_json::from_value(value.clone()).expect("lists of ids")
}

/// Compares the tokens of all texts that `is_meant` selects.
fn check(
    name: &str,
    tokenizer: &Tokenizer,
    texts: &[String],
    expected: &[Vec<TokenId>],
    is_meant: impl Fn(&str) -> bool,
) {
    assert_eq!(texts.len(), expected.len());
    let mut wrong = Vec::new();
    for (text, expected) in texts
        .iter()
        .zip(expected)
        .filter(|(text, _)| is_meant(text))
    {
        let found = tokenizer.encode(text, false).expect("spelled");
        if found != *expected {
            let words = |ids: &[TokenId]| -> Vec<String> {
                let bytes = ids
                    .iter()
                    .map(|id| tokenizer.token_bytes(*id).expect("known"));
                bytes
                    .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
                    .collect()
            };
            wrong.push(format!(
                "{text:?}: {:?}, not {:?}",
                words(&found),
                words(expected)
            ));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

fn byte_level(pre: &str) -> GgufVocabulary {
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens: texts(&EXPECTED["byte_level"]["tokens"]),
        merges: texts(&EXPECTED["byte_level"]["merges"]),
        ..GgufVocabulary::default()
    }
}

const NFC: &str = "qwen2 after NFC";

#[test]
fn words_are_cut_as_each_family_does() {
    let all = EXPECTED["byte_level"]["ids"].as_object().expect("by name");
    assert_eq!(all.len(), 12);
    for (name, expected) in all.iter().filter(|(name, _)| *name != NFC) {
        let tokenizer = Tokenizer::from_gguf(&byte_level(name)).expect("a known name");
        check(
            name,
            &tokenizer,
            &texts(&EXPECTED["texts"]),
            &ids(expected),
            |_| true,
        );
    }
}

/// Qwen's tokenizer.json brings text into Unicode's normal form C; GGUF files cannot ask for
/// it, and nothing is normalised from them, as in llama.cpp.
#[test]
fn text_is_normalised_from_a_folder_and_not_from_gguf() {
    let expected = &EXPECTED["byte_level"];
    let vocabulary = byte_level("qwen2");
    let vocab: serde_json::Map<String, Value> = vocabulary
        .tokens
        .iter()
        .cloned()
        .zip((0..).map(|id: u32| json!(id)))
        .collect();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let file = json!({
        "version": "1.0",
        "normalizer": expected["nfc"],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": vocabulary.merges},
    });
    let folder = Folder::new("nfc", &[("tokenizer.json", file.to_string())]);
    let read = Tokenizer::from_folder(&folder.0).expect("whole");
    let normalised = ids(&expected["ids"][NFC]);
    check(NFC, &read, &texts(&EXPECTED["texts"]), &normalised, |_| {
        true
    });
    let built = Tokenizer::from_gguf(&vocabulary).expect("whole");
    let [composed, decomposed] = ["é", "e\u{301}"];
    let encode = |tokenizer: &Tokenizer, text| tokenizer.encode(text, false).expect("spelled");
    assert_eq!(encode(&read, composed), encode(&read, decomposed));
    assert_ne!(encode(&built, composed), encode(&built, decomposed));
    assert_eq!(encode(&read, composed), encode(&built, composed));
}

fn sentence_piece(name: &str) -> GgufVocabulary {
    let given = &EXPECTED[name];
    let scores: Vec<f32> = serde_json::from_value(given["scores"].clone()).expect("numbers");
    let token_types = serde_json::from_value(given["types"].clone()).expect("types");
    let tokens = texts(&given["tokens"]);
    let id = |text: &str| {
        tokens
            .iter()
            .position(|token| token == text)
            .map(|id| id as TokenId)
    };
    GgufVocabulary {
        model: "llama".into(),
        begin: id("<bos>"),
        end: id("<eos>"),
        end_of_turn: id("<end_of_turn>"),
        unknown: id("<unk>"),
        padding: id("<pad>"),
        add_begin: Some(true),
        add_space_prefix: given["add_space_prefix"].as_bool(),
        scores,
        token_types,
        tokens,
        ..GgufVocabulary::default()
    }
}

/// Whether a text spells a control token. `sentencepiece` reads these as text.
fn spells_control(text: &str) -> bool {
    text.contains("<bos>") || text.contains("<start_of_turn>")
}

#[test]
fn sentence_piece_gives_the_tokens_of_its_own_library() {
    for name in ["gemma", "llama"] {
        let tokenizer = Tokenizer::from_gguf(&sentence_piece(name)).expect("whole");
        let all = texts(&EXPECTED["piece_texts"]);
        let is_meant = |text: &str| !spells_control(text);
        check(
            name,
            &tokenizer,
            &all,
            &ids(&EXPECTED[name]["ids"]),
            is_meant,
        );
        // Behind a control token the prefix is added again, and stays.
        let comes_back =
            |text: &&String| !text.contains('▁') && (name == "gemma" || is_meant(text));
        for text in all.iter().filter(comes_back) {
            let tokens = tokenizer.encode(text, false).expect("spelled");
            assert_eq!(tokenizer.decode(&tokens).expect("known"), *text);
        }
    }
}

/// `transformers` differs from `sentencepiece` in two ways: control tokens that a text spells are
/// recognised, and a run of spaces that is longer than the longest token is cut elsewhere.
#[test]
fn sentence_piece_gives_the_tokens_of_transformers() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece("gemma")).expect("whole");
    let all = texts(&EXPECTED["piece_texts"]);
    let longest = " ".repeat(9);
    let is_meant = |text: &str| !text.contains(&longest);
    check(
        "gemma",
        &tokenizer,
        &all,
        &ids(&EXPECTED["gemma"]["transformers"]),
        is_meant,
    );
    assert_eq!(all.iter().filter(|text| spells_control(text)).count(), 1);
}

#[test]
fn gemma_begins_with_one_begin_token_and_ends_with_both_end_tokens() {
    let vocabulary = sentence_piece("gemma");
    let begin = vocabulary.begin.expect("there is one");
    let ends = [vocabulary.end, vocabulary.end_of_turn].map(|id| id.expect("there is one"));
    let turn = "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}";
    let template = ChatTemplate::new(turn, [("bos_token", "<bos>")]).expect("it compiles");
    for add_begin in [Some(true), None] {
        let vocabulary = GgufVocabulary {
            add_begin,
            ..vocabulary.clone()
        };
        let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("whole");
        assert_eq!(tokenizer.end_tokens(), ends);
        let codec = TextCodec::new(tokenizer, Some(template.clone()));
        let plain = codec.encode_continuation("Hello").expect("spelled");
        let expected = [&[begin], &plain[..]].concat();
        for text in ["Hello", "<bos>Hello"] {
            assert_eq!(
                codec.encode_prompt(text).expect("spelled"),
                expected,
                "{text}"
            );
        }
        let chat = [Message::user("Hello")].into();
        let tokens = codec.encode_chat(&chat).expect("spelled");
        assert_eq!(tokens.iter().filter(|id| **id == begin).count(), 1);
        assert_eq!(tokens[0], begin);
    }
}
