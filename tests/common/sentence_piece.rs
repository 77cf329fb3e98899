//! A vocabulary as GGUF files hold it.

use motet_text::GgufVocabulary;

/// Pieces of a SentencePiece vocabulary with byte fallback.
pub(crate) fn sentence_piece() -> GgufVocabulary {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    let mut token_types = vec![2, 3, 3];
    token_types.resize(tokens.len(), 6);
    let mut scores = vec![0.0; tokens.len()];
    for (rank, text) in ["▁a", "▁b", "ab", "▁ab", "▁", "a", "b"].iter().enumerate() {
        tokens.push((*text).into());
        token_types.push(1);
        scores.push(-(rank as f32));
    }
    GgufVocabulary {
        model: "llama".into(),
        tokens,
        scores,
        token_types,
        begin: Some(1),
        end: Some(2),
        unknown: Some(0),
        ..GgufVocabulary::default()
    }
}
