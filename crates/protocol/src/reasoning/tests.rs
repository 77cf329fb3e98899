use super::*;
use crate::random_cases::check_cases;

const OPEN: TokenId = 90;

fn tracker(close: &[TokenId], is_open: bool, tokens_max: usize) -> ReasoningTracker {
    ReasoningTracker::new(Arc::new(ReasoningBudget {
        open: vec![OPEN],
        close: close.to_vec(),
        is_open,
        opens_once: false,
        tokens_max,
    }))
}

/// Pushes an output, and returns the tokens that are due after it and those counted.
fn after(mut tracker: ReasoningTracker, output: &[TokenId]) -> (Vec<TokenId>, usize) {
    for token in output {
        tracker.push(*token);
    }
    (tracker.due().to_vec(), tracker.tokens())
}

#[test]
fn tokens_between_the_marks_are_counted() {
    let check = |output: &[TokenId], tokens| {
        let counted = after(tracker(&[91], false, usize::MAX), output);
        assert_eq!(counted, (Vec::new(), tokens), "{output:?}");
    };
    check(&[1, 2, 3], 0);
    check(&[OPEN], 0);
    check(&[1, OPEN, 2, 3], 2);
    check(&[OPEN, 2, 3, 91], 2);
    check(&[OPEN, 2, 3, 91, 4, 91, 5], 2);
    check(&[OPEN, 2, 91, 4, OPEN, 5, OPEN, 91, 7], 3);
    check(&[91, OPEN, 91], 0);
}

#[test]
fn closing_mark_is_due_when_the_budget_is_used_up() {
    let check = |is_open, tokens_max, output: &[TokenId], due: &[TokenId]| {
        let found = after(tracker(&[91, 92], is_open, tokens_max), output);
        assert_eq!(found.0, due, "{output:?}");
    };
    check(true, 0, &[], &[91, 92]);
    check(true, 2, &[1], &[]);
    check(true, 2, &[1, 2], &[91, 92]);
    check(true, 2, &[1, 2, 91, 92], &[]);
    check(false, 0, &[1, 2], &[]);
    check(false, 0, &[1, OPEN], &[91, 92]);
    // The part of the mark that was written is not repeated.
    check(true, 2, &[1, 91], &[92]);
    check(true, 2, &[1, 91, 92], &[]);
    // The budget is that of the whole output.
    check(false, 2, &[OPEN, 1, 91, 92, 5, OPEN], &[]);
    check(false, 2, &[OPEN, 1, 91, 92, 5, OPEN, 2], &[91, 92]);
    check(false, 1, &[OPEN, 1, 91, 92, 5, OPEN], &[91, 92]);
}

#[test]
fn nothing_is_due_within_a_budget_or_after_the_only_reasoning() {
    let check = |opens_once, output: &[TokenId], within: usize, expected: bool| {
        let mut tracker = tracker(&[91], true, 4);
        let budget = ReasoningBudget {
            opens_once,
            ..ReasoningBudget::clone(&tracker.budget)
        };
        tracker.budget = Arc::new(budget);
        output.iter().for_each(|token| tracker.push(*token));
        assert_eq!(tracker.may_be_due_within(within), expected, "{output:?}");
    };
    check(false, &[1, 2], 1, false);
    check(false, &[1, 2], 2, true);
    check(false, &[1, 2, 91], 2, true);
    check(true, &[1, 2, 91], 99, false);
}

/// Tokens below 256 are single bytes.
#[derive(Debug)]
struct Bytes([u8; 256]);

impl TokenSpelling for Bytes {
    fn spelling(&self, token: TokenId) -> &[u8] {
        let byte = token as usize;
        self.0.get(byte..byte + 1).unwrap_or_default()
    }
}

fn bytes() -> Arc<dyn TokenSpelling> {
    Arc::new(Bytes(std::array::from_fn(|byte| byte as u8)))
}

/// The number of tokens of the output after which its end is due, the tokens that are due then,
/// and those counted.
fn end(tracker: ReasoningTracker, output: &[TokenId]) -> Option<(usize, Vec<TokenId>, usize)> {
    let mut tracker = tracker.with_spelling(bytes());
    for at in 0..=output.len() {
        if !tracker.due().is_empty() {
            return Some((at, tracker.due().to_vec(), tracker.tokens()));
        }
        output
            .get(at)
            .iter()
            .for_each(|token| tracker.push(**token));
    }
    None
}

#[test]
fn closing_mark_waits_for_the_end_of_a_character() {
    let check = |tokens_max, output: &[TokenId], at: Option<usize>| {
        let tracker = tracker(&[91, 92], true, tokens_max);
        let expected = at.map(|at| (at, vec![91, 92], at));
        assert_eq!(end(tracker, output), expected, "{tokens_max}: {output:x?}");
    };
    // 😀 and 😀, then a letter.
    let output = [0xF0, 0x9F, 0x98, 0x80, 0xF0, 0x9F, 0x98, 0x80, 97];
    let ends = [0, 4, 4, 4, 4, 8, 8, 8, 8, 9];
    for (tokens_max, at) in ends.into_iter().enumerate() {
        check(tokens_max, &output, Some(at));
    }
    check(1, &output[..3], None);
    // A character that is never completed keeps nothing waiting.
    check(1, &[0xF0, 97, 98], Some(2));
    check(1, &[0xF0, 0xF0, 0xF0, 0xF0, 0xF0], Some(4));
    check(2, &[97, 0xE3, 0xE3, 0xE3, 0xE3, 0xE3], Some(5));
    // Tokens without bytes count as well.
    check(1, &[0xE3, 300, 300, 300, 300], Some(4));
    check(usize::MAX, &[0xE3], None);
}

#[test]
fn closing_mark_does_not_wait_without_spelling() {
    let found = after(tracker(&[91, 92], true, 1), &[0xF0]);
    assert_eq!(found, (vec![91, 92], 1));
}

#[test]
fn closing_mark_that_has_begun_is_completed() {
    // The mark's first character is ▪ in three tokens, and the model has written one of them.
    let close = [0xE2, 0x96, 0xAA, 92];
    let found = end(tracker(&close, true, 2), &[97, 0xE2, 0x96]);
    assert_eq!(found, Some((2, vec![0x96, 0xAA, 92], 2)));
    // A model that ends its reasoning inside a character has ended it.
    let found = end(tracker(&[91], true, 1), &[0xE2, 91, 97, 97, 97, 97]);
    assert_eq!(found, None);
}

#[test]
fn overlapping_beginnings_of_a_mark_are_found() {
    let closes = |close: &[TokenId], output: &[TokenId]| {
        let mut tracker = tracker(close, true, usize::MAX);
        output.iter().for_each(|token| tracker.push(*token));
        (!tracker.is_inside).then_some(tracker.tokens())
    };
    assert_eq!(closes(&[1, 1, 2], &[1, 1, 1, 2]), Some(1));
    assert_eq!(closes(&[1, 2, 1, 3], &[1, 2, 1, 2, 1, 3]), Some(2));
    assert_eq!(closes(&[1, 2], &[1, 3, 2]), None);
}

#[test]
fn reasoning_without_an_opening_mark_does_not_begin_again() {
    let budget = ReasoningBudget {
        open: Vec::new(),
        close: vec![91],
        is_open: true,
        opens_once: false,
        tokens_max: 1,
    };
    let counted = after(ReasoningTracker::new(Arc::new(budget)), &[1, 91, 2, 3]);
    assert_eq!(counted, (Vec::new(), 1));
}

/// Tokens as a vocabulary merges them.
const WORDS: [&str; 12] = [
    "<think>",
    "</",
    "think",
    ">",
    "><",
    ">\n",
    "ok",
    ".</",
    "</think><response>",
    " ",
    "<",
    "/think",
];

#[derive(Debug)]
struct Words;

impl TokenSpelling for Words {
    fn spelling(&self, token: TokenId) -> &[u8] {
        WORDS
            .get(token as usize)
            .map_or(b"", |word| word.as_bytes())
    }
}

fn words(text: &[&str]) -> Vec<TokenId> {
    let token = |word: &&str| WORDS.iter().position(|known| known == word);
    let tokens = text
        .iter()
        .map(|word| token(word).expect("a word") as TokenId);
    tokens.collect()
}

/// A tracker of marks that are spelled `<think>` and `</`, `think`, `>`.
fn merged(is_open: bool, opens_once: bool, tokens_max: usize) -> ReasoningTracker {
    let budget = ReasoningBudget {
        open: words(&["<think>"]),
        close: words(&["</", "think", ">"]),
        is_open,
        opens_once,
        tokens_max,
    };
    ReasoningTracker::new(Arc::new(budget)).with_spelling(Arc::new(Words))
}

#[test]
fn marks_are_found_in_the_text_of_other_tokens() {
    let check = |output: &[&str], tokens, is_inside| {
        let mut tracker = merged(true, false, usize::MAX);
        words(output).iter().for_each(|token| tracker.push(*token));
        assert_eq!(
            (tracker.tokens(), tracker.is_inside),
            (tokens, is_inside),
            "{output:?}"
        );
    };
    check(&["ok", "</", "think", ">", "ok"], 1, false);
    check(&["ok", "</", "think", "><", "ok"], 1, false);
    check(&["ok", "</", "think", ">\n", "ok"], 1, false);
    check(&["ok", "</think><response>", "ok"], 1, false);
    // A token with text before the mark is a part of the reasoning.
    check(&["ok", ".</", "think", ">", "ok"], 2, false);
    check(&["ok", "<", "/think", ">", "ok"], 1, false);
    check(&["<", "<", "/think", ">", "ok"], 1, false);
    check(&["ok", "</", "think", "ok", ">"], 5, true);
    check(&["ok", "</", "</", "think"], 4, true);
    // It opens again in the token that closes it.
    check(&["ok", "</", "think", "><", "think", ">", "ok"], 2, true);
}

#[test]
fn closing_mark_is_due_only_where_the_text_has_none() {
    let check = |output: &[&str], tokens_max, due: &[&str]| {
        let mut tracker = merged(true, false, tokens_max);
        words(output).iter().for_each(|token| tracker.push(*token));
        assert_eq!(tracker.due(), words(due), "{output:?}");
    };
    check(&["ok", "</think><response>", "ok"], 1, &[]);
    check(&["ok", "</", "think", "><", "ok"], 2, &[]);
    check(&["ok", "ok"], 2, &["</", "think", ">"]);
    check(&["ok", ".</"], 2, &["think", ">"]);
    check(&["ok", "<", "/think"], 3, &[">"]);
    // No token continues the bracket alone.
    check(&["ok", "<"], 2, &["</", "think", ">"]);
    check(&["</", "<"], 2, &["</", "think", ">"]);
}

#[test]
fn reasoning_may_open_at_the_beginning_only() {
    let check = |output: &[&str], [once, again]: [usize; 2]| {
        for (opens_once, tokens) in [(true, once), (false, again)] {
            let mut tracker = merged(false, opens_once, usize::MAX);
            words(output).iter().for_each(|token| tracker.push(*token));
            assert_eq!(tracker.tokens(), tokens, "{output:?}, {opens_once}");
        }
    };
    check(&["<think>", "ok"], [1, 1]);
    check(&[" ", "<think>", "ok"], [1, 1]);
    check(&[" ", "<", "think", ">", "ok"], [1, 1]);
    check(&["ok", "<think>", "ok"], [0, 1]);
    check(&["<", "<think>", "ok"], [0, 1]);
    check(
        &["<think>", "ok", "</think><response>", "<think>", "ok"],
        [1, 2],
    );
}

/// The tokens counted, and whether the output ends inside: looked for in the whole text.
fn counted(output: &[TokenId], opens_once: bool) -> (usize, bool) {
    let mut text = Vec::new();
    let mut begins = Vec::new();
    for token in output {
        begins.push(text.len());
        text.extend_from_slice(Words.spelling(*token));
    }
    let find = |mark: &str, from: usize| {
        let mut places = from..=text.len().saturating_sub(mark.len());
        places.find(|at| text[*at..].starts_with(mark.as_bytes()))
    };
    let (mut from, mut counted) = (0, 0);
    loop {
        let opened = find("<think>", from);
        let Some(open) = opened.filter(|at| {
            !opens_once || from == 0 && text[..*at].iter().all(u8::is_ascii_whitespace)
        }) else {
            return (counted, false);
        };
        let begin = open + "<think>".len();
        let close = find("</think>", begin);
        let inside = begin..close.unwrap_or(text.len());
        counted += begins.iter().filter(|at| inside.contains(at)).count();
        match close {
            Some(close) => from = close + "</think>".len(),
            None => return (counted, true),
        }
    }
}

#[test]
fn any_output_is_counted_as_its_text_shows() {
    check_cases(20_000, 200, |case| {
        let length = case.int_in_range(0..=24)?;
        let output = (0..length).map(|_| case.int_in_range(0..=WORDS.len() as u32 - 1));
        let output: Vec<TokenId> = output.collect::<Result<_, _>>()?;
        for opens_once in [false, true] {
            let mut tracker = merged(false, opens_once, usize::MAX);
            output.iter().for_each(|token| tracker.push(*token));
            let found = (tracker.tokens(), tracker.is_inside);
            assert_eq!(
                found,
                counted(&output, opens_once),
                "{output:?}, {opens_once}"
            );
        }
        Ok(())
    });
}
