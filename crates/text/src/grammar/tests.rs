mod along;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::task::{Wake, Waker};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use motet_protocol::TokenId;
use motet_protocol::{ConstraintWalk, TokenConstraint};

const END: TokenId = 0;

/// Single bytes and some longer tokens, after an end token.
fn tokens() -> Vec<Vec<u8>> {
    let mut tokens = vec![b"<end>".to_vec()];
    tokens.extend((0..=255u8).map(|byte| vec![byte]));
    let longer = ["{\"", "\":", "true", "12", "  ", "ab", "},", "é", "</s>"];
    tokens.extend(longer.map(|text| text.as_bytes().to_vec()));
    tokens.push(Vec::new());
    tokens
}

/// The vocabulary of [`tokens`], in which the first token ends outputs.
fn vocabulary() -> GrammarVocabulary {
    static SHARED: LazyLock<GrammarVocabulary> =
        LazyLock::new(|| GrammarVocabulary::from_bytes(tokens(), &[END]).expect("a vocabulary"));
    SHARED.clone()
}

fn pool() -> Arc<MaskPool> {
    MaskPool::start(1).expect("a thread")
}

fn regex(text: &str) -> GrammarSource {
    GrammarSource::Regex(text.into())
}

fn schema(text: &str) -> GrammarSource {
    GrammarSource::JsonSchema(text.into())
}

/// Allows options, so that outputs need not be full of spaces.
fn compiled(source: &GrammarSource) -> Grammar {
    let vocabulary = vocabulary().with_limits(GrammarLimits {
        options_allowed: true,
        ..GrammarLimits::default()
    });
    Grammar::compile(source, &vocabulary, &pool()).expect("compiles")
}

/// A walk, and the attachment that may use it.
struct Walking(GrammarWalk, Attached);

impl Walking {
    fn new(grammar: &Grammar, output: &[TokenId]) -> Self {
        let walk = GrammarWalk::new(grammar, output);
        let attached = walk.attach(output);
        Self(walk, attached)
    }

    fn accept(&self, token: TokenId) {
        self.0.accept(self.1, &[token]);
    }

    fn next_tokens(&self) -> Result<Next, GrammarError> {
        self.0.next_tokens(self.1)
    }
}

fn allowed(next: &Next) -> Vec<TokenId> {
    let mask = next.mask();
    mask.map_or_else(Vec::new, |mask| mask.tokens().collect())
}

/// The token that spells one byte.
fn byte(byte: u8) -> TokenId {
    TokenId::from(byte) + 1
}

#[test]
fn the_end_is_allowed_where_the_grammar_is_complete() {
    let mut matcher = compiled(&regex("ab?")).matcher();
    let check = |matcher: &mut Matcher, complete, tokens: &[TokenId]| {
        assert_eq!(matcher.is_complete(), complete);
        let mut found = allowed(&matcher.next_tokens().expect("goes on"));
        found.retain(|token| *token < 257);
        assert_eq!(found, tokens);
    };
    check(&mut matcher, false, &[byte(b'a')]);
    matcher.accept(byte(b'a')).expect("allowed");
    check(&mut matcher, true, &[END, byte(b'b')]);
    matcher.accept(byte(b'b')).expect("allowed");
    check(&mut matcher, true, &[END]);
    matcher.accept(END).expect("allowed");
    assert_eq!(matcher.next_tokens(), Ok(Next::Finished));
}

#[test]
fn complete_grammar_without_an_end_token_is_finished() {
    let vocabulary = GrammarVocabulary::from_bytes(tokens(), &[]).expect("a vocabulary");
    for (source, output) in [("ab?", "ab"), ("(ab?)?", "ab"), ("", "")] {
        let grammar = Grammar::compile(&regex(source), &vocabulary, &pool()).expect("compiles");
        let mut matcher = grammar.matcher();
        for letter in output.bytes() {
            assert!(matches!(matcher.next_tokens(), Ok(Next::Mask(_))));
            matcher.accept(byte(letter)).expect("allowed");
        }
        assert_eq!(matcher.next_tokens(), Ok(Next::Finished), "{source}");
        assert!(matcher.is_complete());
    }
}

#[test]
fn an_empty_expression_allows_the_end_only() {
    let mut matcher = compiled(&regex("")).matcher();
    assert_eq!(allowed(&matcher.next_tokens().expect("a mask")), [END]);
}

#[test]
fn invalid_grammars_are_rejected() {
    let check = |source: GrammarSource, words: &[&str]| {
        let error = Grammar::compile(&source, &vocabulary(), &pool());
        let error = error.expect_err("rejected").to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!error.contains('\n') || error.len() < 400, "{error}");
    };
    check(regex("a("), &["regular expression does not compile"]);
    check(regex("(?=a)"), &["regular expression does not compile"]);
    check(
        schema("{"),
        &["JSON schema does not compile", "expected JSON"],
    );
    check(schema("{\"type\": 7}"), &["JSON schema does not compile"]);
    check(schema("false"), &["JSON schema does not compile"]);
    check(
        schema("{\"$ref\": \"https://example.org/\"}"),
        &["JSON schema does not compile"],
    );
    check(
        GrammarSource::Lark("start: other".into()),
        &["Lark grammar does not compile"],
    );
    let long = GrammarSource::Regex("a".repeat(GrammarSource::EXPRESSION_BYTES_MAX + 1));
    check(
        long,
        &["regular expression is too costly", "bytes", "4097", "4096"],
    );
    let pattern = "a".repeat(GrammarSource::EXPRESSION_BYTES_MAX);
    for schema_text in [
        format!(r#"{{"type": "string", "pattern": "{pattern}b"}}"#),
        format!(r#"{{"items": [{{"patternProperties": {{"{pattern}b": true}}}}]}}"#),
    ] {
        check(
            schema(&schema_text),
            &["JSON schema is too costly", "of patterns"],
        );
    }
    let lark = format!("start: \"{}\"", "a".repeat(GrammarSource::LARK_BYTES_MAX));
    check(GrammarSource::Lark(lark), &["Lark grammar is too costly"]);
    let guidance = r#"{"items": {"x-guidance": {"lenient": true}}}"#;
    check(
        schema(guidance),
        &["JSON schema is too costly", "grammar.options_allowed"],
    );
}

#[test]
fn vocabularies_are_checked() {
    let rejected = |tokens: Vec<Vec<u8>>, ends: &[TokenId]| {
        let error = GrammarVocabulary::from_bytes(tokens, ends).expect_err("rejected");
        error.to_string()
    };
    assert!(rejected(Vec::new(), &[]).contains("0 tokens"));
    assert!(rejected(vec![b"a".to_vec()], &[1]).contains("end token 1"));
}

/// A vocabulary that cannot spell what must come next fails its sequence only.
#[test]
fn output_that_cannot_continue_is_an_error() {
    let tokens = vec![Vec::new(), b"a".to_vec(), b"b".to_vec()];
    let vocabulary = GrammarVocabulary::from_bytes(tokens, &[END]).expect("a vocabulary");
    let grammar = Grammar::compile(&regex("a(b|cd)"), &vocabulary, &pool()).expect("compiles");
    let walk = Walking::new(&grammar, &[]);
    walk.accept(1);
    assert_eq!(allowed(&walk.next_tokens().expect("b")), [2]);
    let dead_end = Grammar::compile(&regex("ac"), &vocabulary, &pool()).expect("compiles");
    let walk = Walking::new(&dead_end, &[]);
    walk.accept(1);
    let error = walk
        .next_tokens()
        .expect_err("no token spells c")
        .to_string();
    assert!(error.contains("no token of the vocabulary"), "{error}");
    // A token that the grammar does not allow is an error too, now and later.
    let walk = Walking::new(&grammar, &[2]);
    assert!(matches!(
        walk.next_tokens(),
        Err(GrammarError::Failed { .. })
    ));
    walk.accept(1);
    assert!(matches!(
        walk.next_tokens(),
        Err(GrammarError::Failed { .. })
    ));
}

#[test]
fn walks_of_one_grammar_are_independent() {
    let grammar = compiled(&regex("(ab)*"));
    let walks: Vec<Walking> = (0..20).map(|_| Walking::new(&grammar, &[])).collect();
    for letter in [b'a', b'b', b'a'] {
        walks.iter().for_each(|walk| walk.accept(byte(letter)));
        for walk in &walks {
            let next = allowed(&walk.next_tokens().expect("goes on"));
            assert!(next.contains(&byte(if letter == b'a' { b'b' } else { b'a' })));
        }
    }
}

#[test]
fn attached_walk_resumes_where_it_is() {
    let grammar = compiled(&regex("a*b"));
    let walk = GrammarWalk::new(&grammar, &[]);
    let first = walk.attach(&[]);
    for _ in 0..40 {
        walk.accept(first, &[byte(b'a')]);
    }
    assert!(walk.next_tokens(first).is_ok());
    let work = walk.work();
    // Another sampler has the same output: nothing is read again, and calls of the first are
    // ignored.
    let output = vec![byte(b'a'); 40];
    let second = walk.attach(&output);
    assert!(walk.next_tokens(second).is_ok());
    assert_eq!(walk.work(), work);
    walk.accept(first, &[byte(b'b')]);
    assert_eq!(walk.next_tokens(first), Err(GrammarError::Unwanted));
    let next = allowed(&walk.next_tokens(second).expect("goes on"));
    assert!(
        next.contains(&byte(b'a')),
        "the first sampler's b was ignored"
    );
    // A sampler that lacks the last tokens starts the walk again, and ends where its output does.
    let third = walk.attach(&output[..3]);
    assert_eq!(
        walk.next_tokens(third),
        Walking::new(&grammar, &output[..3]).next_tokens()
    );
}

/// Each mask has fuel of its own, and an output that is read again has no masks. The fuel of all
/// masks together must suffice for it.
#[test]
fn replayed_costly_output_continues() {
    let grammar = compiled(&regex(&"[a-z]?".repeat(300)));
    let walk = Walking::new(&grammar, &[]);
    let mut output = Vec::new();
    for letter in (b'a'..=b'z').cycle().take(60) {
        assert!(walk.next_tokens().is_ok());
        output.push(byte(letter));
        walk.accept(byte(letter));
    }
    let next = walk.next_tokens();
    assert!(allowed(next.as_ref().expect("goes on")).contains(&byte(b'a')));
    assert_eq!(Walking::new(&grammar, &output).next_tokens(), next);
}

/// The first sampler's mask is not needed any more, and no job wakes the sampler.
#[test]
fn blocked_sampler_is_woken_when_another_attaches() {
    let (pool, _jobs) = MaskPool::without_threads();
    let grammar = Grammar::compile(&regex("a*b"), &vocabulary(), &pool).expect("compiles");
    let walk = GrammarWalk::new(&grammar, &[]);
    let first = walk.attach(&[byte(b'a')]);
    let (sender, receiver) = mpsc::channel();
    let sampler = walk.clone();
    std::thread::spawn(move || sender.send(sampler.next_tokens(first)));
    while walk.blocked_samplers() == 0 {
        std::thread::yield_now();
    }
    walk.attach(&[]);
    // It takes this long only if the sampler sleeps for ever.
    let received = receiver.recv_timeout(Duration::from_secs(60));
    assert_eq!(received, Ok(Err(GrammarError::Unwanted)));
}

#[test]
fn grammars_equal_their_clones_only() {
    let grammar = compiled(&regex("a"));
    assert_eq!(grammar, grammar.clone());
    assert_ne!(grammar, compiled(&regex("a")));
}

/// Chooses among the allowed tokens, until the end is chosen.
fn output(grammar: &Grammar, choices: &[u64]) -> Option<Vec<TokenId>> {
    let walk = Walking::new(grammar, &[]);
    let mut tokens = Vec::new();
    for choice in choices {
        let next = allowed(&walk.next_tokens().expect("goes on"));
        // A third of the choices take the end token where it is allowed; otherwise most outputs are
        // endless.
        let token = if next.contains(&END) && choice % 3 == 0 {
            END
        } else {
            next[*choice as usize % next.len()]
        };
        if token == END {
            return Some(tokens);
        }
        tokens.push(token);
        walk.accept(token);
        if choice % 7 == 0 {
            let rebuilt = Walking::new(grammar, &tokens);
            assert_eq!(rebuilt.next_tokens(), walk.next_tokens(), "{tokens:?}");
        }
    }
    None
}

fn text(tokens: &[TokenId]) -> String {
    let spelled = self::tokens();
    let bytes = tokens
        .iter()
        .flat_map(|token| spelled[*token as usize].clone());
    String::from_utf8(bytes.collect()).expect("grammars allow UTF-8 only")
}

fn is_of_the_schema(text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<serde_json::Value>(text) else {
        return false;
    };
    let members: Vec<&String> = value.as_object().expect("an object").keys().collect();
    members == ["n", "ok"] && value["ok"].is_boolean() && {
        let n = value["n"].as_array().expect("a list");
        n.len() <= 3
            && n.iter()
                .all(|n| n.as_i64().is_some_and(|n| (0..=120).contains(&n)))
    }
}

const SCHEMA: &str = r##"{"type": "object", "additionalProperties": false,
    "properties": {"n": {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/n"}},
                   "ok": {"type": "boolean"}}, "required": ["n", "ok"],
    "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 120}},
    "x-guidance": {"whitespace_flexible": false}}"##;

const DATE: &str = r"(19|20)[0-9]{2}-[01][0-9](-[0-3][0-9])?|é+/never";

/// Records that it was woken.
#[derive(Default)]
struct WakeFlag(AtomicBool);

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The waker is called for masks that no step waits for, and for no others.
#[test]
fn awaited_mask_wakes_its_waiter() {
    let grammar = compiled(&regex("a*b")).for_one_sequence();
    let walk = grammar.sequence_walk().expect("it is for one");
    let wake_flag = Arc::new(WakeFlag::default());
    walk.wake(Waker::from(Arc::clone(&wake_flag)));
    let was_woken = || wake_flag.0.swap(false, Ordering::Relaxed);
    let attached = walk.attach(&[]);
    walk.accept(attached, &[byte(b'a')]);
    assert!(walk.next_tokens(attached).is_ok());
    assert!(!was_woken(), "a step waits for it");
    for output in [
        vec![byte(b'a'); 2],
        vec![byte(b'a'); 50],
        vec![byte(b'a'); 3],
    ] {
        walk.await_mask(&output);
        while !walk.state().is_ready {
            std::thread::yield_now();
        }
        assert!(was_woken(), "only the waker reports it");
        assert_eq!(walk.state().tokens, output.len());
        walk.await_mask(&output);
        assert!(
            walk.state().is_ready && !was_woken(),
            "it was there already"
        );
    }
}

/// A vocabulary whose tokenizer takes the longest token each time.
fn spelling_vocabulary() -> GrammarVocabulary {
    let encode = |text: &str| {
        let spelled = tokens();
        let mut rest = text.as_bytes();
        let mut encoded = Vec::new();
        while !rest.is_empty() {
            let begins =
                |token: &usize| !spelled[*token].is_empty() && rest.starts_with(&spelled[*token]);
            let longest = (1..spelled.len())
                .filter(begins)
                .max_by_key(|token| spelled[*token].len());
            let longest = longest?;
            encoded.push(longest as TokenId);
            rest = &rest[spelled[longest].len()..];
        }
        Some(encoded)
    };
    vocabulary()
        .with_encoder(encode)
        .with_limits(GrammarLimits {
            options_allowed: true,
            ..GrammarLimits::default()
        })
}

/// The text that is forced after an output of single bytes; empty if none is.
fn forced_text(expression: &str, output: &str) -> String {
    let grammar = Grammar::compile(&regex(expression), &spelling_vocabulary(), &pool());
    let mut matcher = grammar.expect("compiles").matcher();
    for letter in output.bytes() {
        matcher.accept(byte(letter)).expect("allowed");
    }
    match matcher.next_tokens().expect("goes on") {
        Next::Forced(forced) => text(&forced.tokens),
        Next::Mask(_) | Next::Finished => String::new(),
    }
}

#[test]
fn text_with_one_continuation_is_forced() {
    let check = |expression, output, expected: &str| {
        assert_eq!(forced_text(expression, output), expected, "{expression}");
    };
    check("(p|q)ababc", "p", "ababc");
    check("(p|q)ababc", "", "");
    check("ababc", "", "ababc");
    // The output may end before.
    check("(p|q)ab(ab)?", "p", "ab");
    check("(p|q)ab(ab)?", "pab", "");
    check("p(ab)?", "p", "");
    // Where another token may spell the end of the text with what follows, that is left.
    check("(p|q)x\"(:|,)", "p", "x");
    check("(p|q)x\"(;|,)", "p", "x\"");
    check("(p|q)tru[ei]", "p", "");
    check("(p|q)xé(a|b)", "p", "xé");
    check(
        &format!("(p|q){}(a|b)", "x".repeat(500)),
        "p",
        &"x".repeat(32),
    );
}

#[test]
fn forced_tokens_are_switched_off_by_the_limits() {
    let vocabulary = spelling_vocabulary().with_limits(GrammarLimits {
        forced_tokens: false,
        ..GrammarLimits::default()
    });
    let grammar = Grammar::compile(&regex("ababc"), &vocabulary, &pool()).expect("compiles");
    let mut matcher = grammar.matcher();
    for expected in ["ab", "ab", "c"] {
        let Ok(Next::Forced(forced)) = matcher.next_tokens() else {
            panic!("one token at a time");
        };
        assert_eq!(text(&forced.tokens), expected);
        matcher.accept(forced.tokens[0]).expect("allowed");
    }
    let plain = spelling_vocabulary().without_forced_tokens();
    let grammar = Grammar::compile(&regex("ababc"), &plain, &pool()).expect("compiles");
    assert_eq!(
        allowed(&grammar.matcher().next_tokens().expect("goes on")).len(),
        2
    );
}

/// Follows a grammar with forced tokens beside one that leaves them to the model.
fn check_forced(source: &GrammarSource, choices: &[u64]) -> usize {
    let spelling = Grammar::compile(source, &spelling_vocabulary(), &pool()).expect("compiles");
    let mut forcing = spelling.matcher();
    let mut free = compiled(source).matcher();
    let mut runs = 0;
    for choice in choices {
        let next = forcing.next_tokens().expect("goes on");
        let expected = allowed(&free.next_tokens().expect("goes on"));
        let Next::Forced(forced) = next else {
            assert_eq!(
                allowed(&next),
                expected,
                "the mask is the same where none is forced"
            );
            let token = expected[*choice as usize % expected.len()];
            if token == END {
                break;
            }
            forcing.accept(token).expect("allowed");
            free.accept(token).expect("allowed");
            continue;
        };
        runs += 1;
        let mut rest = &forced.tokens[..];
        while let Some(token) = rest.first() {
            assert!(!rest.is_empty() && forced_first(&mut forcing) == *token);
            // Whatever the model could sample instead spells the same text.
            let spelled = text(rest);
            for other in allowed(&free.next_tokens().expect("goes on")) {
                assert_ne!(other, END, "{spelled}");
                let bytes = &tokens()[other as usize];
                let length = bytes.len().min(spelled.len());
                assert_eq!(bytes[..length], spelled.as_bytes()[..length]);
            }
            forcing.accept(*token).expect("forced");
            free.accept(*token).expect("forced");
            rest = &rest[1..];
        }
    }
    runs
}

fn forced_first(matcher: &mut Matcher) -> TokenId {
    match matcher.next_tokens() {
        Ok(Next::Forced(forced)) => forced.tokens[0],
        other => panic!("the rest of a run is forced: {other:?}"),
    }
}

#[test]
fn runs_of_schemas_are_forced() {
    let source = schema(SCHEMA);
    let runs: usize = (0..20u64)
        .map(|seed| {
            let choices: Vec<u64> = (0..60)
                .map(|at| seed * 977 + at * 31 * (seed + 1))
                .collect();
            check_forced(&source, &choices)
        })
        .sum();
    assert!(runs > 20, "{runs}");
}

/// Writes a digit wherever the grammar allows one, up to `most`.
fn digits_until(grammar: &Grammar, digit: u8, most: usize) -> (String, bool) {
    let mut matcher = grammar.matcher();
    let mut tokens = Vec::new();
    for _ in 0..most {
        let next = allowed(&matcher.next_tokens().expect("goes on"));
        let preferred = [byte(digit), byte(b'.')];
        let mut preferred = preferred.into_iter().filter(|token| next.contains(token));
        let other = || next.iter().copied().find(|token| *token != byte(b'-'));
        let token = preferred.next().or_else(other).expect("a token");
        if token == END {
            return (text(&tokens), true);
        }
        matcher.accept(token).expect("allowed");
        tokens.push(token);
    }
    (text(&tokens), false)
}

#[test]
fn digits_of_numbers_end() {
    let ends = |source: GrammarSource| digits_until(&compiled(&source), b'1', 200);
    for number in [
        r#"{"type": "number", "minimum": 0, "maximum": 100}"#,
        r#"{"type": "number"}"#,
        r#"{"type": "integer"}"#,
        r#"{"type": "integer", "minimum": 5}"#,
    ] {
        let (text, has_ended) = ends(schema(number));
        assert!(has_ended && text.len() <= 100, "{number}: {text}");
        serde_json::from_str::<f64>(&text).expect("a number");
    }
    // Strings, and numbers that must have so many digits, are left alone.
    let long = "1".repeat(60);
    let (text, _) = ends(schema(&format!(r#"{{"const": "{long}"}}"#)));
    assert_eq!(text, format!("\"{long}\""));
    let (text, has_ended) = ends(schema(r#"{"type": "string", "pattern": "^[0-9]*$"}"#));
    assert!(!has_ended, "{text}");
    let (text, has_ended) = ends(regex("[0-9]+"));
    assert!(!has_ended, "{text}");
}

#[test]
fn numbers_follow_their_schema_as_floats() {
    let check = |keywords: &str, is_valid: &dyn Fn(f64) -> bool| {
        let text = format!(r#"{{"type": "number", {keywords}}}"#);
        let grammar = compiled(&schema(&text));
        for digit in b'0'..=b'9' {
            let (text, has_ended) = digits_until(&grammar, digit, 200);
            let number: f64 = text.parse().expect("a number");
            assert!(has_ended && is_valid(number), "{keywords}: {text}");
        }
    };
    check(r#""minimum": 0, "exclusiveMaximum": 100"#, &|n| n < 100.0);
    check(r#""exclusiveMinimum": 0.7, "maximum": 9"#, &|n| n > 0.7);
    check(r#""multipleOf": 0.25"#, &|n| (n / 0.25).fract() == 0.0);
    check(r#""multipleOf": 0.75"#, &|n| (n / 0.75).fract() == 0.0);
    check(r#""multipleOf": 3"#, &|n| n % 3.0 == 0.0);
    check(r#""multipleOf": 2.5, "minimum": 1e6"#, &|n| {
        n >= 1e6 && (n / 2.5).fract() == 0.0
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn forced_tokens_are_the_only_continuation(choices in prop::collection::vec(any::<u64>(), 40)) {
        for source in [schema(SCHEMA), regex(DATE), regex("(ab|a(b|c)d)*x"), GrammarSource::Json] {
            check_forced(&source, &choices);
        }
    }

    #[test]
    fn any_allowed_choice_follows_the_grammar(choices in prop::collection::vec(any::<u64>(), 80)) {
        static JSON: LazyLock<Grammar> = LazyLock::new(|| compiled(&schema(SCHEMA)));
        static ANY: LazyLock<Grammar> = LazyLock::new(|| compiled(&GrammarSource::Json));
        static DATES: LazyLock<Grammar> = LazyLock::new(|| compiled(&regex(DATE)));
        let output_of = |grammar: &Grammar| output(grammar, &choices).map(|tokens| text(&tokens));
        if let Some(text) = output_of(&JSON) {
            prop_assert!(is_of_the_schema(&text), "{}", text);
        }
        if let Some(text) = output_of(&ANY) {
            // A number may be too large for any type, and still be JSON.
            let value = serde_json::from_str::<serde::de::IgnoredAny>(&text);
            prop_assert!(value.is_ok() && text.trim_start().starts_with('{'), "{}", text);
        }
        if let Some(text) = output_of(&DATES) {
            let digits = text.bytes().filter(|byte| byte.is_ascii_digit()).count();
            let is_date = (text.starts_with("19") || text.starts_with("20")) && digits >= 6;
            prop_assert!(is_date || text.ends_with("/never"), "{}", text);
        }
    }
}
