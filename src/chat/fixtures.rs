//! Values that several tests use.

use motet_text::{GgufVocabulary, Tokenizer, Tool};
use serde_json::Value;

/// A tokenizer with one token.
pub(super) fn tokenizer() -> Tokenizer {
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens: vec!["a".into()],
        token_types: vec![1],
        ..GgufVocabulary::default()
    };
    Tokenizer::from_gguf(&vocabulary).expect("a tokenizer")
}

/// A tool without parameters.
pub(super) fn clock() -> Tool {
    Tool {
        name: "clock".into(),
        description: Some("Tells the time.".into()),
        parameters: Value::Null,
        is_strict: false,
    }
}
