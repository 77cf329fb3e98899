//! The hostile corpus: whatever a grammar is, it is refused by a bound or compiled, and
//! its masks take no more work than their fuel. Without the bounds some of these take hours.

#[path = "hostile/grammars.rs"]
mod hostile;
#[path = "hostile/vocabulary.rs"]
mod vocabulary;

use std::collections::BTreeMap;

use motet::grammar::{
    Grammar, GrammarError, GrammarLimits, GrammarSource, GrammarVocabulary, MaskPool, Next,
};

/// Work that accepting a token and computing a mask may take, in the matcher's units: all of its fuel, and all of the
/// trie a few times over.
const MASK_WORK_MAX: u64 = 60_000;
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
fn each_hostile_grammar_is_answered_within_bounds() {
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
                // It may end by a bound on the way.
                follow(hostile.name, &grammar).ok();
            }
            Err(GrammarError::TooDear { bound, .. }) => {
                assert!(bound.found > bound.limit, "{}: {bound}", hostile.name);
                bounds.insert(hostile.name, bound.bound);
            }
            Err(GrammarError::Compile { .. } | GrammarError::TooLarge { .. }) => {}
            Err(error) => panic!("{}: {error}", hostile.name),
        }
    }
    // Those that take seconds to hours, or hundreds of megabytes, without the judgement.
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
    assert_eq!(vocabulary.state_bytes(), 0, "what is gone takes nothing");
}

/// Follows it for a while, taking any token that is allowed.
fn follow(name: &str, grammar: &Grammar) -> Result<(), GrammarError> {
    let mut matcher = grammar.matcher();
    let mut choice: u64 = 7;
    for _ in 0..60 {
        let next = matcher.next_tokens();
        let work = matcher.take_work();
        assert!(work <= MASK_WORK_MAX, "{name}: a mask took {work}");
        assert!(matcher.state_bytes() <= STATE_BYTES_MAX, "{name}");
        let Next::Mask(mask) = next? else {
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

#[test]
fn states_that_take_too_much_end_their_output_with_both_numbers() {
    // Less than an engine accepts, so that little work passes it.
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
    assert_eq!(vocabulary.state_bytes(), 0, "what has ended takes nothing");
}
