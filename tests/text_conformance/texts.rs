//! Stop strings and torn characters.

use motet_text::{StopStrings, Utf8Stream};

use crate::cases::Fact;
use crate::check::Check;
use crate::decode::cached_after;
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "text.truncate_stop",
        own_cases: 4,
        beside: &[],
        shapes: &[(&["pieces", "stop"], truncates)],
    },
    Known {
        suite: "text.stop_and_logprobs",
        own_cases: 4,
        beside: &[],
        shapes: &[(&["pieces", "stop"], truncates)],
    },
    Known {
        suite: "text.incomplete_unicode",
        own_cases: 7,
        beside: &[],
        shapes: &[(&["bytes_hex"], is_torn)],
    },
    Known {
        suite: "text.flush_valid_utf8_prefix",
        own_cases: 2,
        beside: &[],
        shapes: &[(&["steps"], flushes)],
    },
    Known {
        suite: "text.stop_rules_code",
        own_cases: 3,
        beside: &[],
        shapes: &[
            (&["text", "stops", "expect"], which_stop_wins),
            (&["text", "stops", "expect_hold"], holds_back),
            (
                &["cached", "pieces_before", "pieces_after", "truncated"],
                keeps_what_was_computed,
            ),
        ],
    },
];

/// The text before the stop string, in its original pieces; each piece that is left keeps its log
/// probability.
fn truncates(check: &mut Check, fact: &Fact<'_>) {
    let pieces = fact.get("pieces").texts();
    let mut matcher = stops(&[fact.get("stop").text()]).matcher();
    let mut left: usize = pieces
        .iter()
        .map(|piece| matcher.push(piece).text.len())
        .sum();
    if matcher.stopped_by().is_none() {
        left += matcher.held().len();
    }
    let (mut retained, mut truncated) = (Vec::new(), false);
    for piece in pieces {
        if left == 0 {
            break;
        }
        let length = left.min(piece.len());
        truncated = length < piece.len();
        retained.push(&piece[..length]);
        left -= length;
    }
    let expect = fact.get("expect");
    if let Some(logprobs) = expect.maybe("logprobs_left") {
        check.same(
            "pieces with log probabilities",
            retained.len(),
            logprobs.number(),
        );
    } else {
        check.same("truncated", truncated, expect.get("truncated").flag());
    }
    check.same("pieces", retained, expect.get("pieces").texts());
}

fn is_torn(check: &mut Check, fact: &Fact<'_>) {
    let mut stream = Utf8Stream::new();
    stream.push(&bytes(&fact.get("bytes_hex")));
    let torn = !stream.torn().is_empty();
    check.same("ends inside a character", torn, fact.get("expect").flag());
}

fn flushes(check: &mut Check, fact: &Fact<'_>) {
    let mut stream = Utf8Stream::new();
    for step in fact.get("steps").items() {
        let text = stream.push(&bytes(&step.get("append_hex"))).to_owned();
        check.same("text", text.as_str(), step.get("expect_flush").text());
        let left: String = stream
            .torn()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        check.same("left", left.as_str(), step.get("expect_left_hex").text());
    }
}

fn which_stop_wins(check: &mut Check, fact: &Fact<'_>) {
    let (text, list) = (fact.get("text").text(), fact.get("stops").texts());
    let mut matcher = stops(&list).matcher();
    let found = matcher.push(text).stopped_by.expect("one is there");
    let by_list = list.iter().find(|stop| text.contains(**stop));
    let complete = |stop: &&&str| text.find(**stop).map_or(usize::MAX, |at| at + stop.len());
    let first = list.iter().min_by_key(complete);
    let expected = fact.get("expect").text();
    check.theirs("what stops", by_list.copied(), Some(expected));
    check.same_or_instead(
        "what stops",
        Some(list[found]),
        first.copied(),
        Some(expected),
    );
}

fn holds_back(check: &mut Check, fact: &Fact<'_>) {
    let mut matcher = stops(&fact.get("stops").texts()).matcher();
    matcher.push(fact.get("text").text());
    let holds = !matcher.held().is_empty();
    check.same("holds back", holds, fact.get("expect_hold").flag());
}

/// The cache is independent of the text. A sequence that ends leaves every token that was
/// evaluated, wherever its text was cut: all but the last sampled one.
fn keeps_what_was_computed(check: &mut Check, fact: &Fact<'_>) {
    let cached = fact.get("cached").number();
    let before = fact.get("pieces_before").within(1..=cached);
    let after = fact.get("pieces_after").within(0..=before);
    let truncated = fact.get("truncated").flag();
    let prompt = cached + 1 - before;
    let motet = cached_after(prompt, before);
    let expected = fact.get("expect_cached").number();
    // ollama's leaves only the tokens that were shown.
    let hidden = before - after + usize::from(truncated || before == after);
    check.theirs("cached tokens", cached + 1 - hidden, expected);
    check.same_or_instead("cached tokens", motet, cached, expected);
}

fn stops(list: &[&str]) -> StopStrings {
    StopStrings::new(list).expect("stop strings")
}

fn bytes(fact: &Fact<'_>) -> Vec<u8> {
    let digits = fact.text().as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("digits");
        u8::from_str_radix(pair, 16).expect("hexadecimal digits")
    };
    digits.map(byte).collect()
}
