//! Tests of looking ahead along drafts.

use super::*;

/// A thought without a mark in it, the mark, and the answer that the rest of the grammar is about.
const REASONED: &str =
    "start: thought \"</s>\" answer\nthought: /[a-z ]*/\nanswer: /[0-9]+/ \"x\" /[0-9]+/";

fn lark(text: &str) -> GrammarSource {
    GrammarSource::Lark(text.into())
}

/// The tokens that may come after an output, and along a draft, each accepted by a matcher that
/// never goes back.
fn expected(grammar: &Grammar, output: &[TokenId], draft: &[TokenId]) -> Vec<Next> {
    let mut matcher = grammar.matcher();
    for token in output {
        matcher.accept(*token).expect("allowed");
    }
    let mut along = vec![matcher.next_tokens().expect("goes on")];
    for token in draft {
        let is_allowed = along.last().is_some_and(|next| next.allows(*token));
        if !is_allowed || *token == END || matcher.accept(*token).is_err() {
            break;
        }
        match matcher.next_tokens() {
            Ok(Next::Finished) | Err(_) => break,
            Ok(next) => along.push(next),
        }
    }
    along
}

/// Tokens that the grammar allows one after another, as these numbers choose.
fn any_continuation(grammar: &Grammar, output: &[TokenId], choices: &[u64]) -> Vec<TokenId> {
    let mut matcher = grammar.matcher();
    for token in output {
        matcher.accept(*token).expect("allowed");
    }
    let mut tokens = Vec::new();
    for choice in choices {
        let next = matcher.next_tokens().expect("goes on");
        let mut next = allowed(&next);
        next.retain(|token| *token != END);
        if next.is_empty() {
            break;
        }
        let token = next[*choice as usize % next.len()];
        matcher.accept(token).expect("allowed");
        tokens.push(token);
    }
    tokens
}

/// Follows an output, and looks ahead along another draft before each of its steps. The steps have
/// one token or two, as those of accepted drafts.
fn check_along(grammar: &Grammar, choices: &[u64]) -> usize {
    let output = any_continuation(grammar, &[], choices);
    let walking = Walking::new(grammar, &[]);
    let (mut at, mut looked) = (0, 0);
    loop {
        let choice = choices[at % choices.len()];
        let mut draft = any_continuation(grammar, &output[..at], &choices[at % choices.len()..]);
        draft.truncate(choice as usize % 9);
        match (choice / 9 % 4, draft.len()) {
            (0 | 1, _) | (_, 0) => {}
            (2, length) => draft[choice as usize / 36 % length] = (choice % 267) as TokenId,
            (_, _) => draft.fill((choice % 267) as TokenId),
        }
        let along = walking
            .0
            .next_tokens_along(walking.1, &draft)
            .expect("goes on");
        assert_eq!(along, expected(grammar, &output[..at], &draft), "{draft:?}");
        looked += along.len() - 1;
        let end = output.len().min(at + 1 + choice as usize / 5 % 2);
        if at == end {
            break;
        }
        walking.0.accept(walking.1, &output[at..end]);
        let next = walking.next_tokens().expect("goes on");
        assert_eq!(
            next,
            expected(grammar, &output[..end], &[])[0],
            "after {draft:?}"
        );
        at = end;
    }
    looked
}

fn sources() -> Vec<GrammarSource> {
    vec![
        schema(SCHEMA),
        regex(DATE),
        regex("(ab|a(b|c)d)*x"),
        lark(REASONED),
        GrammarSource::Json,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn tokens_along_a_draft_are_those_of_accepting_it(
        choices in prop::collection::vec(any::<u64>(), 24),
    ) {
        static GRAMMARS: LazyLock<Vec<Grammar>> = LazyLock::new(|| {
            let spelling = spelling_vocabulary();
            let spelled = sources().into_iter().map(|source| {
                Grammar::compile(&source, &spelling, &pool()).expect("compiles")
            });
            sources().iter().map(compiled).chain(spelled).collect()
        });
        for grammar in GRAMMARS.iter() {
            check_along(grammar, &choices);
        }
    }
}

#[test]
fn look_aheads_along_allowed_drafts_go_far() {
    let choices: Vec<u64> = (0..30u64).map(|at| at * 9 * 36 + 8).collect();
    for source in sources() {
        let looked = check_along(&compiled(&source), &choices);
        assert!(looked > 6, "{source:?}: {looked}");
    }
}

/// The constraint of the answer begins inside the draft, with the mark that ends the reasoning.
#[test]
fn end_of_reasoning_inside_a_draft_begins_the_constraint() {
    let grammar = compiled(&lark(REASONED));
    let walking = Walking::new(&grammar, &[byte(b'a')]);
    let mark = tokens()
        .iter()
        .position(|token| token == b"</s>")
        .expect("a token") as TokenId;
    let along = |draft: &[TokenId]| {
        walking
            .0
            .next_tokens_along(walking.1, draft)
            .expect("goes on")
    };
    let (a, one, x) = (byte(b'a'), byte(b'1'), byte(b'x'));
    let found = along(&[a, mark, one, x, one, a]);
    assert_eq!(
        found.len(),
        6,
        "the last token is forbidden, those before it are not"
    );
    let allows = |token| {
        found
            .iter()
            .map(|next| next.allows(token))
            .collect::<Vec<_>>()
    };
    assert_eq!(allows(a), [true, true, false, false, false, false]);
    assert_eq!(allows(one), [false, false, true, true, true, true]);
    // The answer forbids this token, which the reasoning would allow.
    assert_eq!(along(&[a, mark, a, a]).len(), 3);
    assert_eq!(along(&[a, one]).len(), 2);
}

/// llguidance finds its last mask again by the number of its row and the state of its lexer, which
/// are the same after both beginnings.
#[test]
fn mask_of_a_look_ahead_is_not_that_of_another_beginning() {
    let source = lark("start: \"p\" \"x\" \"a\" \"b\" | \"q\" \"x\" \"a\" \"c\"");
    let grammar = compiled(&source);
    let walking = Walking::new(&grammar, &[]);
    let ab = tokens()
        .iter()
        .position(|token| token == b"ab")
        .expect("a token") as TokenId;
    let draft = [byte(b'p'), byte(b'x')];
    let along = walking
        .0
        .next_tokens_along(walking.1, &draft)
        .expect("goes on");
    assert!(along[2].allows(ab));
    walking.0.accept(walking.1, &[byte(b'q'), byte(b'x')]);
    assert_eq!(
        allowed(&walking.next_tokens().expect("goes on")),
        [byte(b'a')]
    );
}

#[test]
fn grammar_that_cannot_go_back_does_not_look_ahead() {
    let source = lark("start: name \"x\"\nname[max_tokens=3]: /[a-z]+/");
    let grammar = compiled(&source);
    let walking = Walking::new(&grammar, &[]);
    let first = walking.next_tokens().expect("goes on");
    let draft = [byte(b'a'); 2];
    let along = walking.0.next_tokens_along(walking.1, &draft);
    assert_eq!(along, Ok(vec![first]));
    walking.accept(byte(b'b'));
    assert!(walking.next_tokens().is_ok());
}

#[test]
fn work_of_a_look_ahead_is_bounded_and_not_counted() {
    let grammar = compiled(&regex(&"[a-z]?".repeat(300)));
    let walking = Walking::new(&grammar, &[byte(b'a')]);
    let draft = [byte(b'b'); 200];
    assert!(walking.next_tokens().is_ok());
    let work = walking.0.work();
    for _ in 0..50 {
        let along = walking
            .0
            .next_tokens_along(walking.1, &draft)
            .expect("goes on");
        assert!((2..200).contains(&along.len()), "{}", along.len());
    }
    assert_eq!(walking.0.work(), work);
    assert!(!walking.0.state().is_slow);
}

#[test]
fn slow_walk_does_not_look_ahead() {
    let grammar = compiled(&regex(&"[a-z]?".repeat(300)));
    let walking = Walking::new(&grammar, &[]);
    for letter in (b'a'..=b'z').cycle().take(60) {
        assert!(walking.next_tokens().is_ok());
        let along = |is_slow| {
            let along = walking.0.next_tokens_along(walking.1, &[byte(b'a')]);
            assert_eq!(along.expect("goes on").len(), if is_slow { 1 } else { 2 });
        };
        if walking.0.state().is_slow {
            return along(true);
        }
        if walking.0.state().tokens == 0 {
            along(false);
        }
        walking.accept(byte(letter));
    }
    panic!("its masks are costly");
}

/// The states that look-aheads leave behind take memory. An output whose own states fit goes on.
#[test]
fn look_ahead_ends_no_output_for_its_memory() {
    let mut without = 0;
    for kilobytes in (16..160).step_by(8) {
        let vocabulary = vocabulary().with_limits(GrammarLimits {
            sequence_bytes_max: kilobytes << 10,
            ..GrammarLimits::default()
        });
        let source = regex(&format!("a*(b|({})c)", "[x-z]?".repeat(60)));
        let Ok(grammar) = Grammar::compile(&source, &vocabulary, &pool()) else {
            continue;
        };
        let looking = Walking::new(&grammar, &[]);
        let plain = Walking::new(&grammar, &[]);
        let draft: Vec<TokenId> = b"xyzzyxyzxyzzyx"
            .iter()
            .map(|letter| byte(*letter))
            .collect();
        for _ in 0..12 {
            let expected = plain.next_tokens();
            if expected.is_ok() {
                let along = looking.0.next_tokens_along(looking.1, &draft);
                without += usize::from(along.expect("goes on").len() == 1);
            }
            assert_eq!(looking.next_tokens(), expected);
            plain.accept(byte(b'a'));
            looking.accept(byte(b'a'));
        }
    }
    assert!(without > 0, "some have given up looking ahead");
}

/// A vocabulary of 50,000 words of letters, half of them after a space, and of single bytes.
fn large_vocabulary() -> GrammarVocabulary {
    let mut tokens = tokens();
    let mut number = 1u64;
    while tokens.len() < 50_000 {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let letters = (number >> 33) % 7 + 1;
        let letter = |at| b"etaoinshrdlucmfw"[(number >> (20 + 4 * at)) as usize % 16];
        let word: Vec<u8> = (0..letters).map(letter).collect();
        let space: &[u8] = if number >> 62 & 1 == 0 { b" " } else { b"" };
        tokens.push([space, &word].concat());
    }
    GrammarVocabulary::from_bytes(tokens, &[END]).expect("a vocabulary")
}

#[test]
#[ignore = "prints times"]
fn times_of_look_aheads() {
    let source = schema(
        r#"{"type": "object", "properties": {
            "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string"}},
            "address": {"type": "object", "properties": {"street": {"type": "string"},
                "city": {"type": "string"}}, "required": ["street", "city"]},
            "kind": {"enum": ["person", "company"]}}, "required": ["name", "age", "tags", "kind"]}"#,
    );
    let grammar = Grammar::compile(&source, &large_vocabulary(), &pool()).expect("compiles");
    let mut times: Vec<(f64, f64, usize)> = Vec::new();
    for seed in 0..40u64 {
        let choices: Vec<u64> = (0..48).map(|at| (seed + 1) * 977 * (at * at + 7)).collect();
        let output = any_continuation(&grammar, &[], &choices);
        let walking = Walking::new(&grammar, &[]);
        for at in 0..output.len().saturating_sub(8) {
            let start = std::time::Instant::now();
            walking.next_tokens().expect("goes on");
            let mask = start.elapsed().as_secs_f64() * 1e6;
            let start = std::time::Instant::now();
            let along = walking.0.next_tokens_along(walking.1, &output[at..at + 8]);
            let ahead = start.elapsed().as_secs_f64() * 1e6;
            times.push((ahead, mask, along.expect("goes on").len()));
            walking.accept(output[at]);
        }
    }
    let mean = |of: &dyn Fn(&(f64, f64, usize)) -> f64| {
        times.iter().map(of).sum::<f64>() / times.len() as f64
    };
    let rows = mean(&|(_, _, rows)| *rows as f64);
    let (ahead, mask) = (mean(&|(ahead, ..)| *ahead), mean(&|(_, mask, _)| *mask));
    let mut sorted: Vec<f64> = times.iter().map(|(ahead, ..)| *ahead).collect();
    sorted.sort_by(f64::total_cmp);
    let (median, most) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    println!(
        "{} look-aheads of 8 tokens: {rows:.1} rows; mean {ahead:.0}, median {median:.0}, most \
         {most:.0} microseconds; a mask alone {mask:.0}",
        times.len()
    );
}
