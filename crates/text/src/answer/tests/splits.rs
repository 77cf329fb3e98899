//! Answers cut anywhere, and answers that are damaged.

use proptest::prelude::*;
use proptest::sample::Index;

use super::formats::CALLS;
use super::models::{FAMILIES, family};
use super::{parts, shown, tools};

/// Pieces of answers, from which others are put together.
const PIECES: [&str; 34] = [
    "Text. ",
    "\n",
    " ",
    "{",
    "}",
    "[",
    "]",
    "\"name\": \"now\"",
    ", ",
    "\"arguments\": {}",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=now>",
    "</function>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "now(",
    "<|channel|>",
    "<|message|>",
    "é",
    "```json\n",
    "```",
    "'name': 'now'",
    "'arguments': {'a': None,}",
    "\"arguments\": \"{\\\"a\\\": 1}\"",
    "{\"function\": ",
    "<function=weather>",
    "<parameter=city>",
    "<parameter=days>\n1",
    "\n</parameter>\n",
];

fn answers() -> impl Strategy<Value = (usize, String)> {
    let pieces = prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..12);
    let pieces = pieces.prop_map(|pieces| pieces.concat());
    let calls = prop::sample::select(CALLS.map(|(_, text)| text).to_vec());
    // An answer with a character that is missing, and text around it.
    let damaged = (pieces.clone(), calls, any::<Index>(), any::<bool>(), pieces);
    let damaged = damaged.prop_map(|(before, call, at, is_damaged, after)| {
        let mut call: Vec<char> = call.chars().collect();
        if is_damaged {
            call.remove(at.index(call.len()));
        }
        before + &call.into_iter().collect::<String>() + &after
    });
    (0..FAMILIES.len(), damaged)
}

/// The text in pieces that end at these places.
fn cut<'a>(text: &'a str, places: &[Index]) -> Vec<&'a str> {
    let mut ends: Vec<usize> = places
        .iter()
        .map(|place| text.floor_char_boundary(place.index(text.len() + 1)))
        .chain([text.len()])
        .collect();
    ends.sort_unstable();
    let mut start = 0;
    let piece = |end| {
        let piece = &text[start..end];
        start = end;
        piece
    };
    ends.into_iter().map(piece).collect()
}

fn without_spaces(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_split_gives_the_same_parts(
        (family, text) in answers(),
        places in prop::collection::vec(any::<Index>(), 0..20),
        is_open in any::<bool>(),
    ) {
        let format = FAMILIES[family].format();
        let prompt_end = if is_open { "<think>\n" } else { "" };
        let tools = tools();
        let whole = shown(&parts(&format, prompt_end, Some(&tools), [&*text]));
        let pieces = shown(&parts(&format, prompt_end, Some(&tools), cut(&text, &places)));
        prop_assert_eq!(whole, pieces, "{}: {}", FAMILIES[family].name, text);
    }

    /// An answer without a call, of a model that does not reason, is its text.
    #[test]
    fn no_text_is_lost((number, text) in answers()) {
        let format = FAMILIES[number].format();
        let all = parts(&format, "", Some(&tools()), [&*text]);
        let whole = shown(&all);
        if format.reasoning_marks().is_none() && !whole.contains("0 now(") && !whole.contains("0 weather(") {
            let read = whole.strip_prefix("text: ").unwrap_or(&whole);
            prop_assert_eq!(without_spaces(read), without_spaces(&text));
        }
        // Without tools, every character stays as it is.
        let free = shown(&parts(&family("plain"), "", None, [&*text]));
        prop_assert_eq!(free.strip_prefix("text: ").unwrap_or(""), &text);
    }

    /// The arguments of a complete call are one JSON object.
    #[test]
    fn complete_arguments_are_json((number, text) in answers()) {
        let all = parts(&FAMILIES[number].format(), "", Some(&tools()), [&*text]);
        let mut json = String::new();
        for part in all {
            match part {
                crate::AnswerPart::CallStart { .. } => json.clear(),
                crate::AnswerPart::CallArguments { json: more, .. } => json.push_str(&more),
                crate::AnswerPart::CallEnd { is_complete: true, .. } => {
                    let value = serde_json::from_str::<serde_json::Value>(&json);
                    prop_assert!(value.is_ok_and(|value| value.is_object()), "{}", json);
                }
                _ => {}
            }
        }
    }
}
