//! Tokenizers small enough to write down, and texts for them.

use std::path::PathBuf;
use std::sync::LazyLock;

use motet::text::Tokenizer;
use motet_text::GgufVocabulary;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

pub(crate) const CHAT_ML: &str = "{{ bos_token }}{% for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

pub(crate) const SPECIAL: [&str; 3] = ["<s>", "<|im_start|>", "<|im_end|>"];

/// Words that are one token each, and so is every beginning of them: some tokens end inside a
/// character.
pub(crate) const WORDS: [&str; 7] = [" the", "hello", " world", "世界", "🦙", " \u{301}", "\n\n"];

/// A folder of its own under the system's, removed with this value.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str, files: &[(&str, String)]) -> Self {
        let path = std::env::temp_dir().join(format!("motet-text-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the system's folder can be written");
        for (name, text) in files {
            std::fs::write(path.join(name), text).expect("the folder can be written");
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A byte-level BPE vocabulary: special tokens, bytes, words.
pub(crate) fn byte_level() -> GgufVocabulary {
    let mut tokens: Vec<String> = SPECIAL.map(str::to_owned).to_vec();
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    tokens.extend(alphabet.iter().map(char::to_string));
    let mut merges = Vec::new();
    for word in WORDS {
        let mut left = String::new();
        for byte in word.bytes() {
            let right = spell(byte);
            if !left.is_empty() {
                merges.push(format!("{left} {right}"));
                tokens.push(format!("{left}{right}"));
            }
            left.push(right);
        }
    }
    tokens.push("<|tool|>".into());
    let mut token_types = vec![1; tokens.len()];
    token_types[..3].fill(3);
    *token_types.last_mut().expect("not empty") = 4;
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        merges,
        token_types,
        begin: Some(0),
        end: Some(2),
        chat_template: Some(CHAT_ML.into()),
        ..GgufVocabulary::default()
    }
}

/// The character that stands for a byte in GPT-2's alphabet, by its definition.
pub(crate) fn spell(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count();
    char::from_u32(0x100 + before as u32).expect("a letter of Latin Extended-A")
}

pub(crate) fn tokenizer() -> Tokenizer {
    static SHARED: LazyLock<Tokenizer> =
        LazyLock::new(|| Tokenizer::from_gguf(&byte_level()).expect("a whole vocabulary"));
    SHARED.clone()
}

/// The same vocabulary as `tokenizer.json`.
pub(crate) fn tokenizer_json() -> Value {
    let vocabulary = byte_level();
    let added = |id: usize, text: &str, special: bool| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": special})
    };
    let vocab: serde_json::Map<String, Value> = (vocabulary.tokens.iter().cloned())
        .zip((0..).map(|id: u32| json!(id)))
        .collect();
    let mut tokens: Vec<Value> = (0..3).map(|id| added(id, SPECIAL[id], id > 0)).collect();
    tokens.push(added(vocab.len() - 1, "<|tool|>", false));
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "added_tokens": tokens,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": vocabulary.merges}
    })
}

/// Text with parts that tear: long characters, marks, spaces at the front.
pub(crate) fn any_text() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        proptest::sample::select(WORDS.to_vec()).prop_map(str::to_owned),
        "[ -~]{0,5}",
        "[ \t\r\n]{1,3}",
        "[\u{300}-\u{36f}]{1,2}",
        "[一-龥]{1,3}",
        "[🌀-🙏]{1,2}",
        ".{0,3}",
    ];
    proptest::collection::vec(word, 0..8).prop_map(|words| words.concat())
}
