//! Texts to tokens and back.

use motet::text::{TextError, Tokenizer};
use motet_text::{Detokenizer, GgufVocabulary, SpecialTokens};
use proptest::prelude::*;
use serde_json::json;

use crate::sentence_piece::sentence_piece;
use crate::vocabularies::{Folder, any_text, byte_level, spell, tokenizer, tokenizer_json};

proptest! {
    #[test]
    fn text_survives_its_tokens(text in any_text()) {
        let tokenizer = tokenizer();
        let tokens = tokenizer.encode(&text, false).expect("every byte has a token");
        prop_assert_eq!(tokenizer.decode(&tokens).expect("known tokens"), text);
    }

    #[test]
    fn pieces_joined_are_the_whole(
        tokens in proptest::collection::vec(0..tokenizer().vocab_size() as u32, 0..40)
    ) {
        let tokenizer = tokenizer();
        for special in [SpecialTokens::Keep, SpecialTokens::Skip] {
            let seen: Vec<u32> = (tokens.iter().copied())
                .filter(|id| special == SpecialTokens::Keep || !tokenizer.is_special(*id))
                .collect();
            let bytes = seen.iter().flat_map(|id| tokenizer.token_bytes(*id).expect("known"));
            let bytes: Vec<u8> = bytes.copied().collect();
            let mut detokenizer = Detokenizer::new(&tokenizer, special);
            let mut text = String::new();
            for token in &tokens {
                text.push_str(detokenizer.push(*token).expect("known"));
            }
            text.push_str(detokenizer.finish());
            prop_assert_eq!(&text, &String::from_utf8_lossy(&bytes));
            prop_assert_eq!(text, tokenizer.decode(&seen).expect("known"));
        }
    }
}

#[test]
fn decoding_matches_the_tokenizers_crate() {
    let reference = tokenizers::Tokenizer::from_bytes(tokenizer_json().to_string()).expect("valid");
    let tokenizer = tokenizer();
    let texts = [
        "hello the 世界 \u{301}🦙\n\n",
        "<s>hi<|tool|><|im_end|>",
        "世",
    ];
    for text in texts {
        let tokens = tokenizer
            .encode(text, false)
            .expect("every byte has a token");
        for end in 0..=tokens.len() {
            let expected = reference.decode(&tokens[..end], false).expect("known");
            assert_eq!(tokenizer.decode(&tokens[..end]).expect("known"), expected);
        }
    }
}

#[test]
fn special_tokens_are_recognised_and_never_doubled() {
    let check = |vocabulary: GgufVocabulary, text: &str, special: bool, expected: &[&str]| {
        let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("whole");
        let tokens = tokenizer
            .encode(text, special)
            .expect("every byte has a token");
        let id = |token: &&str| tokenizer.token_id(token).expect("in the vocabulary");
        assert_eq!(
            tokens,
            expected.iter().map(id).collect::<Vec<_>>(),
            "{text}"
        );
    };
    let both = || GgufVocabulary {
        add_begin: Some(true),
        add_end: Some(true),
        ..byte_level()
    };
    check(byte_level(), "hello", true, &["hello"]);
    check(both(), "hello", false, &["hello"]);
    check(both(), "hello", true, &["<s>", "hello", "<|im_end|>"]);
    check(both(), "<s>hello", true, &["<s>", "hello", "<|im_end|>"]);
    check(both(), "", true, &["<s>", "<|im_end|>"]);
    check(
        byte_level(),
        "a<|im_start|>b<|tool|>",
        false,
        &["a", "<|im_start|>", "b", "<|tool|>"],
    );
    let unmerged = |pre: &str| GgufVocabulary {
        pre: Some(pre.into()),
        merges: vec![],
        ..byte_level()
    };
    check(unmerged("llama-bpe"), "hello", true, &["<s>", "hello"]);
    check(unmerged("qwen2"), "hello", true, &["h", "e", "l", "l", "o"]);
    check(sentence_piece(), "ab", true, &["<s>", "▁ab"]);
    check(sentence_piece(), "a b", false, &["▁a", "▁b"]);
    check(sentence_piece(), "é", false, &["▁", "<0xC3>", "<0xA9>"]);

    let tokenizer = tokenizer();
    assert_eq!(
        (tokenizer.begin_token(), tokenizer.end_tokens()),
        (Some(0), &[2][..])
    );
    let special = (0..tokenizer.vocab_size() as u32).filter(|id| tokenizer.is_special(*id));
    assert_eq!(special.collect::<Vec<_>>(), [0, 1, 2]);
    assert!(!tokenizer.is_special(u32::MAX));
    assert!(format!("{tokenizer:?}").len() < 200);
}

#[test]
fn special_tokens_of_phi_3_take_the_spaces_behind_them() {
    let of = |architecture: &str| {
        let vocabulary = GgufVocabulary {
            architecture: Some(architecture.into()),
            ..sentence_piece()
        };
        Tokenizer::from_gguf(&vocabulary).expect("whole")
    };
    let tokens =
        |tokenizer: &Tokenizer, text| tokenizer.encode(text, true).expect("bytes fall back");
    let (phi, llama) = (of("phi3"), of("llama"));
    let without = tokens(&llama, "a</s>b");
    assert_eq!(tokens(&phi, "a</s>\n b"), without);
    assert_ne!(tokens(&llama, "a</s>\n b"), without);
    let kept = "a<s>\n b";
    assert_eq!(tokens(&phi, kept), tokens(&llama, kept));
}

#[test]
fn sentence_piece_gives_back_its_leading_space() {
    let tokenizer = Tokenizer::from_gguf(&sentence_piece()).expect("whole");
    let text = |mut detokenizer: Detokenizer, tokens: &[u32]| {
        let pieces = tokens
            .iter()
            .map(|id| detokenizer.push(*id).expect("known").to_owned());
        pieces.collect::<Vec<_>>()
    };
    let tokens = tokenizer.encode("a é", true).expect("bytes fall back");
    let new = Detokenizer::new(&tokenizer, SpecialTokens::Skip);
    assert_eq!(text(new, &tokens), ["", "a", " ", "", "é"]);
    let continuing = Detokenizer::continuing(&tokenizer, SpecialTokens::Skip);
    assert_eq!(text(continuing, &tokens[1..]), [" a", " ", "", "é"]);
    assert_eq!(tokenizer.decode(&tokens).expect("known"), "<s> a é");
}

#[test]
fn unknown_token_is_rejected_without_side_effects() {
    let tokenizer = tokenizer();
    let size = tokenizer.vocab_size();
    let mut detokenizer = Detokenizer::new(&tokenizer, SpecialTokens::Keep);
    let world = tokenizer
        .encode("世", false)
        .expect("every byte has a token");
    let torn = tokenizer
        .token_id(&spell(0xe4).to_string())
        .expect("a byte");
    assert_eq!(detokenizer.push(torn).expect("known"), "");
    for token in [size as u32, u32::MAX] {
        let error = detokenizer.push(token).expect_err("not in the vocabulary");
        assert!(matches!(error, TextError::UnknownToken { vocab_size, .. } if vocab_size == size));
    }
    assert_eq!(detokenizer.push(world[0]).expect("known"), "\u{fffd}世");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn token_bytes_are_bounded_by_the_vocabulary() {
    let longest = " world".len().max("<|im_start|>".len());
    assert_eq!(tokenizer().token_bytes_max(), longest);
    let sentence_piece = Tokenizer::from_gguf(&sentence_piece()).expect("whole");
    assert_eq!(sentence_piece.token_bytes_max(), "<0x00>".len());
    let mut json = tokenizer_json();
    json["normalizer"] = json!({"type": "NFC"});
    let folder = Folder::new("shortens", &[("tokenizer.json", json.to_string())]);
    let shortens = Tokenizer::from_folder(&folder.0).expect("whole");
    assert_eq!(shortens.token_bytes_max(), 4 * longest);
}

proptest! {
    #[test]
    fn token_count_is_at_least_the_byte_bound(text in any_text(), times in 1..40_usize) {
        for tokenizer in [tokenizer(), Tokenizer::from_gguf(&sentence_piece()).expect("whole")] {
            let text = text.repeat(times);
            let tokens = tokenizer.encode(&text, false).expect("spelled");
            prop_assert!(text.len() <= tokens.len() * tokenizer.token_bytes_max());
        }
    }
}
