//! The hostile corpus: every grammar is rejected by a bound or compiled, and its masks take no
//! more work than their fuel. Without the bounds some of these take hours. Further tests run a
//! grammar with costly masks in an engine: only its own sequence waits for them.
#![cfg(motet_injected)]

mod common;
#[path = "hostile/grammars/mod.rs"]
mod hostile;
#[path = "hostile/vocabulary.rs"]
mod vocabulary;

use std::collections::BTreeMap;

use common::{bytes, small, until};
use motet::failpoint::Failpoints;
use motet::grammar::{GrammarError, GrammarLimits, GrammarSource};
use motet::model::oracle::{Oracle, OracleConfig};
use motet::monitor::{EngineEvent, Events};
use motet::request::{FinishReason, Priority};
use motet::{Engine, Request, SequenceId, Shutdown, TokenId, TokenStream};
use motet_text::grammar::{Grammar, GrammarVocabulary, MaskPool};

/// Work that accepting a token and computing a mask may take, in the matcher's units: all of its fuel, all of the trie
/// a few times over, and as many items as there may be in the longest rows.
const MASK_WORK_MAX: u64 = 560_000;
/// Bytes that the states of one output may take.
const STATE_BYTES_MAX: usize = 32 << 20;

fn source(kind: &str, text: &str) -> GrammarSource {
    match kind {
        "json_schema" => GrammarSource::JsonSchema(text.into()),
        "regex" => GrammarSource::Regex(text.into()),
        "lark" => GrammarSource::Lark(text.into()),
        kind => panic!("{kind} is no kind"),
    }
}

#[test]
fn each_hostile_grammar_stays_within_bounds() {
    let vocabulary =
        GrammarVocabulary::from_bytes(vocabulary::tokens(), &[0]).expect("a vocabulary");
    let pool = MaskPool::start(1).expect("a thread");
    let mut bounds: BTreeMap<&str, &str> = BTreeMap::new();
    let corpus = hostile::grammars();
    assert!(corpus.len() >= 40);
    for hostile in &corpus {
        let compiled = Grammar::compile(&source(hostile.kind, &hostile.source), &vocabulary, &pool);
        match compiled {
            Ok(grammar) => {
                // A bound may end it on the way.
                follow(hostile.name, &grammar).ok();
            }
            Err(GrammarError::TooExpensive { bound, .. }) => {
                assert!(bound.found > bound.limit, "{}: {bound}", hostile.name);
                bounds.insert(hostile.name, bound.bound);
            }
            Err(GrammarError::Compile { .. } | GrammarError::TooLarge { .. }) => {}
            Err(error) => panic!("{}: {error}", hostile.name),
        }
    }
    // Without the cost check, these take seconds to hours, or hundreds of megabytes.
    for (name, bound) in [
        ("pattern_keys_1365", "grammar.patterns_max"),
        ("pattern_keys_400", "grammar.patterns_max"),
        ("guidance_at_the_top", "grammar.options_allowed"),
        ("guidance_deep_inside", "grammar.options_allowed"),
        ("guidance_in_a_definition", "grammar.options_allowed"),
        ("ref_fan_out_properties", "grammar.expansion_max"),
        ("min_properties_pairs", "grammar.expansion_max"),
        ("one_of_in_all_of", "grammar.expansion_max"),
        ("one_of_beside_anything", "grammar.expansion_max"),
        ("one_of_by_pattern_key", "grammar.expansion_max"),
        ("pattern_key_copied", "grammar.expansion_max"),
        ("multiple_of_prime", "grammar.multiple_of_max"),
        ("multiple_of_common", "grammar.multiple_of_max"),
        ("properties_of_thousands", "grammar.members_max"),
        ("required_of_thousands", "grammar.members_max"),
        ("patterns_intersected", "grammar.intersected_patterns_max"),
        ("lark_intersections", "grammar.intersected_patterns_max"),
        ("lark_schema_inside", "grammar.options_allowed"),
        ("lark_options", "grammar.options_allowed"),
    ] {
        assert_eq!(bounds.get(name), Some(&bound), "{name}");
    }
    assert_eq!(
        vocabulary.state_bytes(),
        0,
        "a dropped grammar takes nothing"
    );
}

/// Follows the grammar for a while, taking any token that is allowed.
fn follow(name: &str, grammar: &Grammar) -> Result<(), GrammarError> {
    let mut matcher = grammar.matcher();
    let mut choice: u64 = 7;
    for _ in 0..60 {
        let next = matcher.next_tokens();
        let work = matcher.take_work();
        assert!(work <= MASK_WORK_MAX, "{name}: a mask took {work}");
        assert!(matcher.state_bytes() <= STATE_BYTES_MAX, "{name}");
        let next = next?;
        let Some(mask) = next.mask() else {
            return Ok(());
        };
        choice = choice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let nth = (choice >> 33) as usize % mask.count();
        let token = mask.tokens().nth(nth).expect("there are as many");
        matcher.accept(token)?;
    }
    Ok(())
}

/// The time of such a mask grows with the third power of the output. If the counted work grew
/// with the output only, others would wait for masks that take up to a tenth of a second.
#[test]
fn work_of_an_ambiguous_grammar_grows_like_its_time() {
    let vocabulary =
        GrammarVocabulary::from_bytes(vocabulary::tokens(), &[0]).expect("a vocabulary");
    let pool = MaskPool::start(1).expect("a thread");
    let corpus = hostile::grammars();
    let hostile = corpus
        .iter()
        .find(|hostile| hostile.name == "lark_ambiguous_triples");
    let hostile = hostile.expect("it is one of them");
    let grammar = Grammar::compile(&source(hostile.kind, &hostile.source), &vocabulary, &pool);
    let mut matcher = grammar.expect("it is small").matcher();
    let spelled = |token: &Vec<u8>| token == b"abc";
    let token = vocabulary::tokens().iter().position(spelled);
    let token = token.expect("a word of three letters") as TokenId;
    let mut work = Vec::new();
    for _ in 0..40 {
        matcher.next_tokens().expect("it goes on");
        work.push(matcher.take_work());
        matcher.accept(token).expect("letters");
    }
    // Linear growth would give twice as much, and a thousand at the end.
    assert!(work[39] > 5 * work[19], "{work:?}");
    assert!(work[39] > 10_000, "{work:?}");
}

#[test]
fn oversized_states_end_their_output_with_both_numbers() {
    // Less than an engine accepts, so that little work exceeds it.
    let bytes_max = 1 << 16;
    let vocabulary =
        GrammarVocabulary::from_bytes(vocabulary::tokens(), &[0]).expect("a vocabulary");
    let vocabulary = vocabulary.with_limits(GrammarLimits {
        sequence_bytes_max: bytes_max,
        ..GrammarLimits::default()
    });
    let pool = MaskPool::start(1).expect("a thread");
    let mut ended = 0;
    for hostile in hostile::grammars() {
        let compiled = Grammar::compile(&source(hostile.kind, &hostile.source), &vocabulary, &pool);
        let error = match compiled {
            Ok(grammar) => follow(hostile.name, &grammar).err(),
            Err(error) => Some(error),
        };
        match error {
            Some(GrammarError::Memory { limit, found, .. }) => {
                assert!(limit == bytes_max && found > limit, "{}", hostile.name);
                ended += 1;
            }
            Some(GrammarError::Failed { what }) if what.contains("too many states") => ended += 1,
            _ => {}
        }
    }
    assert!(ended > 0, "some have more states than that");
    assert_eq!(vocabulary.state_bytes(), 0, "an ended output takes nothing");
}

/// Tokens that a caller may leave unread before its sequence pauses.
const UNREAD_TOKENS_MAX: usize = 64;
/// Tokens of the costly output. Its sequence is slow after the eighth.
const DEAR_TOKENS: usize = 60;

/// Each of its masks takes some thousand units of work. It is slow after the eighth mask, and
/// stays slow for 200 tokens.
fn costly_request() -> Request {
    let grammar = GrammarSource::Regex("[a-z]?".repeat(300));
    let request = Request::tokens([1, 2, 3, 4]).output_tokens_max(DEAR_TOKENS);
    request.grammar(grammar)
}

/// A grammar as people write them. The output pauses once because it is not read.
fn ordinary_request() -> Request {
    let grammar = GrammarSource::Regex("[a-z]+( [a-z]+)*".into());
    let request = Request::tokens([5, 6, 7, 8]).output_tokens_max(2 * UNREAD_TOKENS_MAX - 4);
    request.grammar(grammar)
}

/// An engine on the oracle, whose tokens are the bytes.
async fn engine(sequences_max: usize, failpoints: &Failpoints) -> Engine {
    let oracle = OracleConfig {
        vocab_size: 257,
        end_tokens: vec![256],
        end_one_in: 0,
        ..OracleConfig::default()
    };
    let mut config = small();
    config.scheduler.sequences_max = sequences_max;
    config.scheduler.unread_tokens_max = UNREAD_TOKENS_MAX;
    config.recovery.rebuilds_max = 1000;
    Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("valid")))
        .text(bytes())
        .config(config)
        .failpoints(failpoints.clone())
        .start()
        .await
        .expect("the engine starts")
}

async fn submitted(engine: &Engine, request: Request) -> TokenStream {
    engine.submit(request).await.expect("it is accepted")
}

async fn tokens_of(stream: TokenStream) -> Vec<TokenId> {
    let completion = stream.collect().await.expect("an output");
    assert_eq!(completion.finish.reason, FinishReason::Length);
    completion.tokens
}

/// The output of a request in an engine of its own.
async fn expected_tokens(request: Request) -> Vec<TokenId> {
    let engine = engine(1, &Failpoints::default()).await;
    let tokens = tokens_of(submitted(&engine, request).await).await;
    engine.shutdown(Shutdown::Abort).await;
    tokens
}

/// Steps of `one` without `other`, between the first and the last step of `other`.
fn count_steps_without(events: &mut Events, one: SequenceId, other: SequenceId) -> usize {
    let (mut has_started, mut steps_without, mut since) = (false, 0, 0);
    while let Some(event) = events.try_next() {
        let EngineEvent::Step(step) = event else {
            continue;
        };
        let has = |sequence| step.spans.iter().any(|span| span.sequence == sequence);
        if has(other) {
            steps_without += std::mem::take(&mut since);
            has_started = true;
        } else if has_started && has(one) {
            since += 1;
        }
    }
    assert_eq!(events.missed(), 0);
    steps_without
}

/// Costly masks cost only their own sequence its spans in steps.
///
/// When the ordinary sequence goes on, the costly one has just started, and both have 60 tokens
/// to go. At most ten steps include both before the costly one is slow. From then on, each step
/// that includes it is followed by one without it: at least 25 of 50 steps. All this runs on one
/// thread, so that neither goes on while a test starts another.
#[tokio::test]
async fn sequence_with_costly_masks_is_left_out_of_steps() {
    let engine = engine(2, &Failpoints::default()).await;
    let mut events = engine.events();
    let ordinary_stream = submitted(&engine, ordinary_request()).await;
    until("its unread output is full", || {
        engine.stats().output_tokens >= UNREAD_TOKENS_MAX as u64
    })
    .await;
    let costly_stream = submitted(&engine, costly_request()).await;
    let (one, other) = (ordinary_stream.sequence(), costly_stream.sequence());
    let (ordinary_tokens, costly_tokens) =
        tokio::join!(tokens_of(ordinary_stream), tokens_of(costly_stream));
    assert_eq!(engine.stats().preempted, 0);
    engine.shutdown(Shutdown::Abort).await;
    let steps_without = count_steps_without(&mut events, one, other);
    assert!(steps_without >= 20, "{steps_without} steps went without it");
    assert_eq!(ordinary_tokens, expected_tokens(ordinary_request()).await);
    assert_eq!(costly_tokens, expected_tokens(costly_request()).await);
}

/// The sequence loses its slot, and then more than once the tokens that were sampled and not
/// sent. Its grammar therefore reads the output again, on the threads for masks, and no step
/// includes the sequence before that.
#[tokio::test]
async fn preempted_costly_sequence_resumes_with_the_same_tokens() {
    let failpoints = Failpoints::default();
    let engine = engine(1, &failpoints).await;
    let mut stream = submitted(&engine, costly_request().priority(Priority::Background)).await;
    let mut tokens = Vec::new();
    let mut read = async |tokens: &mut Vec<TokenId>, count| {
        while tokens.len() < count {
            let piece = stream.next().await.expect("it goes on").expect("well");
            tokens.extend(piece.token);
        }
    };
    read(&mut tokens, 12).await;
    let urgent = Request::tokens([9, 9]).output_tokens_max(3);
    tokens_of(submitted(&engine, urgent.priority(Priority::Urgent)).await).await;
    assert!(engine.stats().preempted >= 1, "it had the only slot");
    for rebuilds in 1..=6 {
        read(&mut tokens, 14 + 6 * rebuilds).await;
        match rebuilds {
            6 => failpoints.device.arm(1),
            _ => failpoints.scheduler.arm(1 + rebuilds as u64 % 2),
        }
        until("it was rebuilt", || {
            engine.stats().rebuilds >= rebuilds as u64
        })
        .await;
    }
    read(&mut tokens, DEAR_TOKENS).await;
    assert_eq!(tokens, expected_tokens(costly_request()).await);
    engine.shutdown(Shutdown::Abort).await;
}
