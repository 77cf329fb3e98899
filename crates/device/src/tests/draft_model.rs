//! A draft model on the oracle, as good as the model, or another one.

use motet_protocol::{DraftForget, DraftOrder, DraftReply, ModelError, Salt, SequenceId};

use super::*;
use crate::{DraftModel, ModelDrafter, draft_or_drop};

const TOKENS_MAX: usize = 4_096;

fn drafter(config: &OracleConfig, tokens_max: usize) -> ModelDrafter<Oracle> {
    let oracle = Oracle::new(config.clone()).expect("a valid configuration");
    ModelDrafter::new(oracle, &config.spec(), tokens_max).expect("the same vocabulary")
}

fn full() -> OracleConfig {
    OracleConfig::with_layers(&[LayerKind::Full, LayerKind::Full])
}

fn order(sequence: u64, text: &[TokenId], draft_tokens: usize) -> DraftOrder {
    let (prompt, output) = text.split_at(2);
    DraftOrder {
        sequence: SequenceId(sequence),
        salt: Salt::default(),
        prompt: prompt.into(),
        output: output.to_vec(),
        sampling: TokenSampling {
            sampling: Sampling::GREEDY,
            position: text.len() as u64,
        },
        read_tokens_max: usize::MAX,
        draft_tokens,
    }
}

/// The model's own next tokens.
fn next(config: &OracleConfig, text: &[TokenId], tokens: usize) -> Vec<TokenId> {
    config.reference_tokens(text, tokens, Sampling::GREEDY)
}

fn one(drafter: &mut ModelDrafter<Oracle>, order: DraftOrder) -> DraftReply {
    let mut replies = drafter.draft(&[order]).expect("the device works");
    assert_eq!(replies.len(), 1);
    replies.remove(0)
}

fn evaluated(config: &OracleConfig) -> u64 {
    config.counters.now().tokens_evaluated
}

#[test]
fn model_drafts_what_it_would_write_itself() {
    let config = full();
    let mut drafter = drafter(&config, TOKENS_MAX);
    let mut text = vec![3, 1, 4];
    for draft_tokens in [5, 1, 8] {
        let reply = one(&mut drafter, order(1, &text, draft_tokens));
        assert_eq!(reply.tokens, next(&config, &text, draft_tokens));
        assert_eq!(reply.read_tokens, text.len());
        text.extend(&reply.tokens);
        text.push(9);
    }
}

#[test]
fn text_that_went_on_otherwise_is_shortened() {
    let config = full();
    let mut drafter = drafter(&config, TOKENS_MAX);
    let mut text = vec![3; 40];
    one(&mut drafter, order(1, &text, 8));
    let before = evaluated(&config);
    text.extend([7, 9]);
    let reply = one(&mut drafter, order(1, &text, 4));
    assert_eq!(reply.tokens, next(&config, &text, 4));
    assert_eq!(
        evaluated(&config) - before,
        2 + 3,
        "two are read, and three drafted ones"
    );
}

#[test]
fn sequences_are_drafted_beside_each_other() {
    let config = full();
    let mut drafter = drafter(&config, TOKENS_MAX);
    let texts = [vec![1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]];
    for tokens in [[3, 1, 2], [0, 4, 4]] {
        let orders = (1..).zip(&texts).zip(tokens);
        let orders = orders.map(|((number, text), tokens)| order(number, text, tokens));
        let orders: Vec<DraftOrder> = orders.collect();
        let replies = drafter.draft(&orders).expect("the device works");
        for ((reply, text), tokens) in replies.iter().zip(&texts).zip(tokens) {
            assert_eq!(reply.tokens, next(&config, text, tokens));
        }
    }
    assert_eq!(drafter.held().0, texts.len());
}

#[test]
fn long_text_is_read_in_parts() {
    let config = full();
    let mut drafter = drafter(&config, TOKENS_MAX);
    let text: Vec<TokenId> = (0..100).collect();
    for (read_tokens, tokens) in [(40, 0), (80, 0), (100, 2)] {
        let order = DraftOrder {
            read_tokens_max: 40,
            ..order(1, &text, 2)
        };
        let reply = one(&mut drafter, order);
        assert_eq!(
            (reply.read_tokens, reply.tokens.len()),
            (read_tokens, tokens)
        );
    }
}

#[test]
fn text_of_an_ended_sequence_is_read_on_by_another_of_its_salt() {
    let config = full();
    let mut drafter = drafter(&config, TOKENS_MAX);
    let mut text: Vec<TokenId> = (0..50).collect();
    one(&mut drafter, order(1, &text, 1));
    text.push(3);
    let before = evaluated(&config);
    let stranger = DraftOrder {
        salt: Salt::new("other"),
        ..order(2, &text, 1)
    };
    one(&mut drafter, stranger);
    assert_eq!(evaluated(&config) - before, 51, "salts share nothing");
    let before = evaluated(&config);
    one(&mut drafter, order(3, &text, 1));
    assert_eq!(evaluated(&config) - before, 51, "the first one goes on");
    drafter.forget(&DraftForget::Sequence(SequenceId(1)));
    let before = evaluated(&config);
    one(&mut drafter, order(4, &text, 1));
    assert_eq!(evaluated(&config) - before, 1);
    // Only a few tokens are the same: the text is kept for others.
    drafter.forget(&DraftForget::Sequence(SequenceId(4)));
    text.truncate(10);
    let before = evaluated(&config);
    one(&mut drafter, order(5, &text, 1));
    assert_eq!(evaluated(&config) - before, 10);
    assert_eq!(drafter.held().0, 4);
    drafter.forget(&DraftForget::Salt(Salt::new("other")));
    assert_eq!(drafter.held().0, 3);
    drafter.forget(&DraftForget::All);
    assert_eq!(drafter.held(), (0, 0));
}

#[test]
fn text_of_a_private_salt_ends_with_its_sequence() {
    let mut drafter = drafter(&full(), TOKENS_MAX);
    let order = DraftOrder {
        salt: Salt::private(SequenceId(1)),
        ..order(1, &[1, 2, 3], 1)
    };
    one(&mut drafter, order);
    drafter.forget(&DraftForget::Sequence(SequenceId(2)));
    assert_eq!(drafter.held().0, 1);
    drafter.forget(&DraftForget::Sequence(SequenceId(1)));
    assert_eq!(drafter.held().0, 0);
}

#[test]
fn texts_are_bounded() {
    let config = full();
    let mut drafter = drafter(&config, TOKENS_MAX);
    for sequence in 0..200 {
        let text: Vec<TokenId> = (0..500)
            .map(|token| token + sequence as TokenId % 7)
            .collect();
        let reply = one(&mut drafter, order(sequence, &text, 2));
        assert_eq!(reply.tokens.len(), 2);
        assert!(drafter.held().1 <= TOKENS_MAX, "{drafter:?}");
    }
    let long = vec![1; TOKENS_MAX / 2 + 1];
    assert_eq!(one(&mut drafter, order(1, &long, 2)), DraftReply::default());
    let orders = (0..9).map(|sequence| order(sequence, &[5; 500], 1));
    let orders: Vec<DraftOrder> = orders.collect();
    let replies = drafter.draft(&orders).expect("the device works");
    let fitting = replies.iter().filter(|reply| !reply.tokens.is_empty());
    assert!(
        (1..9).contains(&fitting.count()),
        "some have no room beside the others"
    );
}

#[test]
fn tokens_that_one_model_lacks_are_not_drafted() {
    let config = full();
    let padded = OracleConfig {
        vocab_size: config.vocab_size + 100,
        ..config.clone()
    };
    let oracle = Oracle::new(padded).expect("a valid configuration");
    let mut drafter = ModelDrafter::new(oracle, &config.spec(), TOKENS_MAX).expect("padding");
    for first in 0..200 {
        let tokens = one(&mut drafter, order(1, &[first, 2], 8)).tokens;
        assert!(
            tokens
                .iter()
                .all(|token| (*token as usize) < config.vocab_size)
        );
    }
    let unknown = config.vocab_size as TokenId;
    let reply = one(&mut drafter, order(1, &[1, unknown], 8));
    assert_eq!(reply, DraftReply::default());
}

#[test]
fn draft_model_with_other_tokens_is_rejected() {
    let rejected = |draft: OracleConfig| {
        let oracle = Oracle::new(draft).expect("a valid configuration");
        ModelDrafter::new(oracle, &full().spec(), TOKENS_MAX).expect_err("it cannot draft")
    };
    let other = rejected(OracleConfig {
        vocab_size: 50,
        ..full()
    });
    let ModelError::DraftModel { draft, target, why } = other else {
        panic!("{other}")
    };
    assert!(
        !draft.is_empty() && !target.is_empty() && why.contains("50"),
        "{why}"
    );
    let windowed = rejected(OracleConfig::with_layers(&[LayerKind::Window {
        tokens: 4,
    }]));
    assert!(matches!(windowed, ModelError::DraftModel { .. }));
}

#[test]
fn draft_model_that_fails_is_dropped() {
    let config = full();
    let mut draft_model: Option<Box<dyn DraftModel>> = Some(Box::new(drafter(&config, TOKENS_MAX)));
    assert_eq!(
        draft_or_drop(&mut draft_model, &[], &[]).expect("no orders"),
        []
    );
    let orders = [order(1, &[3, 1], 2)];
    assert!(draft_or_drop(&mut draft_model, &[], &orders).is_ok());
    for fault in [StepFault::Fail, StepFault::Panic] {
        let mut draft_model: Option<Box<dyn DraftModel>> =
            Some(Box::new(drafter(&config, TOKENS_MAX)));
        config.faults.next_steps(1, fault);
        assert!(draft_or_drop(&mut draft_model, &[], &orders).is_err());
        assert!(draft_model.is_none());
        assert!(
            draft_or_drop(&mut draft_model, &[], &orders).is_err(),
            "there is none any more"
        );
    }
}
