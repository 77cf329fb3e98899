//! Splits text into words before byte-level BPE merges within them.
//!
//! GGUF names the method in `tokenizer.ggml.pre`. The names are those of llama.cpp's
//! `llama-vocab.cpp`, the patterns those of the models' own `tokenizer.json`. A name is listed
//! here only if its pattern is known exactly: a wrong one would silently change the tokens.

use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

/// One method of splitting.
#[derive(Debug, PartialEq)]
pub(super) struct PreTokenizer {
    /// Its names in GGUF.
    names: &'static [&'static str],
    /// Applied one after the other; both the matches and the text between them are words.
    patterns: &'static [&'static str],
    /// Whether a word that is a token stays whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// Whether the begin token is added if the file does not say.
    pub(super) add_begin: bool,
}

const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const KNOWN: &[PreTokenizer] = &[
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: &[r"\p{N}", GPT_2],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "granite-docling",
        ],
        patterns: &[GPT_2],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        patterns: &[LLAMA_3],
        ignore_merges: true,
        add_begin: true,
    },
    PreTokenizer {
        names: &["glm4"],
        patterns: &[LLAMA_3],
        ignore_merges: true,
        add_begin: false,
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        patterns: &[LLAMA_3],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "kormo",
        ],
        patterns: &[QWEN_2],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &["qwen35"],
        patterns: &[QWEN_3_5],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &["tekken"],
        patterns: &[TEKKEN],
        ignore_merges: true,
        add_begin: true,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2"],
        patterns: &[GPT_4O],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_begin: false,
    },
    PreTokenizer {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_begin: false,
    },
];

impl PreTokenizer {
    /// The method of that name.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        KNOWN.iter().find(|known| known.names.contains(&name))
    }

    /// All names, for messages.
    pub(super) fn names() -> String {
        let names: Vec<&str> = KNOWN
            .iter()
            .flat_map(|known| known.names)
            .copied()
            .collect();
        names.join(", ")
    }

    /// The splits, then bytes spelled in GPT-2's alphabet.
    pub(super) fn build(&self) -> Sequence {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for pattern in self.patterns {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            steps.push(split.expect("every pattern above compiles").into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Sequence::new(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType};
    use tokenizers::{PreTokenizedString, PreTokenizer as _};

    fn check(name: &str, text: &str, words: &[&str]) {
        let cut = PreTokenizer::named(name).expect("known").build();
        let mut text = PreTokenizedString::from(text);
        cut.pre_tokenize(&mut text).expect("any text can be cut");
        let found = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let found: Vec<&str> = found.iter().map(|(word, _, _)| *word).collect();
        assert_eq!(found, words, "{name}");
    }

    #[test]
    fn texts_are_split_as_their_models_do() {
        let text = "It's  R2D2, 2024!\n\n ok";
        check(
            "gpt-2",
            text,
            &[
                "It", "'s", "Ġ", "ĠR", "2", "D", "2", ",", "Ġ2024", "!", "ĊĊ", "Ġok",
            ],
        );
        check("smollm", "a 12\nb", &["a", "Ġ", "1", "2", "Ċ", "b"]);
        check(
            "llama-bpe",
            "IT'S 12345!\n ok",
            &["IT", "'S", "Ġ", "123", "45", "!Ċ", "Ġok"],
        );
        check(
            "qwen2",
            "IT'S 12\n\n ok",
            &["IT", "'S", "Ġ", "1", "2", "ĊĊ", "Ġok"],
        );
        check("default", "a, 1234", &["a", ",", "Ġ", "123", "4"]);
        check("tekken", "aBc 1/", &["a", "Bc", "Ġ", "1", "/"]);
        check("gpt-4o", "We'Ll 1234", &["We'Ll", "Ġ", "123", "4"]);
    }

    #[test]
    fn every_pattern_compiles_and_names_are_unique() {
        let mut names: Vec<&str> = KNOWN
            .iter()
            .flat_map(|known| known.names)
            .copied()
            .collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for known in KNOWN {
            known.build();
        }
        assert_eq!(PreTokenizer::named("gemma4"), None);
    }
}
