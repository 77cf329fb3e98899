//! Tests of the drafts of one sequence.

mod timings;

use std::sync::Arc;

use motet_protocol::{Salt, TokenId};

use super::SequenceDrafts;
use crate::drafts::{Answers, DraftSource, PROPOSAL_TOKENS_MAX, SaltAnswers, SaltChances};
use crate::random_cases::check_cases;

fn drafts(prompt: &[TokenId], prediction: &[TokenId], path: &[TokenId]) -> SequenceDrafts {
    let mut drafts = SequenceDrafts::new(prompt.into(), prediction.into(), path.into());
    while drafts.index_prompt(16) > 0 {}
    drafts
}

/// The tokens that may come next, with the survival of each.
fn ahead(
    drafts: &mut SequenceDrafts,
    answers: Option<&mut SaltAnswers>,
    chances: &SaltChances,
    tokens_max: usize,
) -> (Vec<TokenId>, Vec<f32>) {
    let (mut tokens, mut survival) = (vec![99; 3], Vec::new());
    drafts.ahead(answers, chances, tokens_max, &mut tokens, &mut survival);
    (tokens, survival)
}

/// Generates `output` with steps of at most `draft_tokens` drafts. Returns the number of steps.
fn steps(drafts: &mut SequenceDrafts, output: &[TokenId], draft_tokens: usize) -> usize {
    let mut chances = SaltChances::new();
    let (mut steps, mut at) = (0, 0);
    while at < output.len() {
        let (tokens, _) = ahead(drafts, None, &chances, draft_tokens);
        let pairs = tokens.iter().zip(&output[at..]);
        let accepted = pairs.take_while(|(draft, token)| draft == token).count();
        let end = output.len().min(at + accepted + 1);
        let step = &output[at..end];
        step.iter()
            .for_each(|token| drafts.push(*token, &mut chances));
        (steps, at) = (steps + 1, end);
    }
    steps
}

#[test]
fn proposals_exist_and_each_is_scored_once() {
    check_cases(1_000, 4_096, |random| {
        let kinds = random.int_in_range(1..=12)?;
        let mut text = |tokens_max: usize| {
            let tokens = random.int_in_range(0..=tokens_max)?;
            let token = |_| random.int_in_range(0..=kinds);
            (0..tokens).map(token).collect::<Result<Vec<TokenId>, _>>()
        };
        let (prompt, prediction, path) = (text(60)?, text(30)?, text(8)?);
        let (answer, output) = (text(40)?, text(50)?);
        let mut all = Answers::new(1 << 20);
        all.add(&Salt::default(), &answer);
        let mut answers = all.of(&Salt::default());

        let mut drafts = SequenceDrafts::new(prompt.into(), prediction.into(), path.into());
        let indexed = random.int_in_range(0..=60)?;
        drafts.index_prompt(indexed);
        let mut chances = SaltChances::new();
        let (mut scored, mut hits, mut prediction_hits) = (0, 0, 0);
        let mut so_far = drafts.answer().to_vec();
        for token in output {
            let tokens_max = random.int_in_range(0..=80)?;
            let known = answers.as_deref_mut();
            let (tokens, survival) = ahead(&mut drafts, known, &chances, tokens_max);
            assert_eq!(tokens.len(), survival.len());
            assert!(tokens.len() <= tokens_max.min(PROPOSAL_TOKENS_MAX));
            assert!(survival.is_sorted_by(|one, next| one > next && *next > 0.0));
            assert!(survival.first().is_none_or(|first| *first < 1.0));
            // The same proposal stands until it is scored.
            let known = answers.as_deref_mut();
            let (proposed, _) = ahead(&mut drafts, known, &chances, tokens_max.max(1));
            assert!(proposed.starts_with(&tokens));
            assert_eq!(proposed.is_empty(), drafts.source().is_none());
            assert!(
                proposed.iter().all(|token| *token <= kinds),
                "it is of a text"
            );

            if let Some(first) = proposed.first() {
                let is_hit = usize::from(*first == token);
                (scored, hits) = (scored + 1, hits + is_hit);
                if drafts.source() == Some(DraftSource::Prediction) {
                    prediction_hits += is_hit;
                }
            }
            drafts.push(token, &mut chances);
            so_far.push(token);
            assert_eq!(drafts.answer(), so_far);
            assert_eq!(chances.counts(), (hits, scored - hits));
            // A token may come as predicted where another source proposed it, or none did.
            assert!((prediction_hits..=so_far.len()).contains(&drafts.prediction_hits()));
        }
        Ok(())
    });
}

#[test]
fn own_text_is_found_across_the_end_of_the_prompt() {
    let chances = SaltChances::new();
    let mut repeats = drafts(&[1, 2, 3, 4, 5, 1, 2], &[], &[]);
    let (tokens, _) = ahead(&mut repeats, None, &chances, 3);
    assert_eq!(tokens, [3, 4, 5]);
    assert_eq!(repeats.source(), Some(DraftSource::OwnText));
    let mut new = drafts(&[1, 2, 3, 4, 5, 6, 7], &[], &[]);
    assert_eq!(ahead(&mut new, None, &chances, 3).0, []);
    let mut empty = drafts(&[], &[], &[]);
    assert_eq!(ahead(&mut empty, None, &chances, 3).0, []);
}

#[test]
fn a_period_is_continued() {
    let mut period = drafts(&[8, 1, 2, 1, 2, 1, 2], &[], &[]);
    let (tokens, _) = ahead(&mut period, None, &SaltChances::new(), usize::MAX);
    assert_eq!(tokens, [1, 2].repeat(PROPOSAL_TOKENS_MAX / 2));
}

#[test]
fn a_prompt_is_indexed_in_parts() {
    let prompt: Vec<TokenId> = (0..1_000).chain([500]).collect();
    let mut parts = SequenceDrafts::new(prompt.into(), Arc::from([7; 30]), Arc::from([]));
    let mut calls = 0;
    while parts.index_prompt(100) > 0 {
        calls += 1;
    }
    assert_eq!(calls, 11);
    assert_eq!(parts.index_prompt(1), 0, "all of it is indexed");
    let mut chances = SaltChances::new();
    parts.push(501, &mut chances);
    assert_eq!(ahead(&mut parts, None, &chances, 2).0, [502, 503]);
}

#[test]
fn an_unindexed_prompt_is_indexed_during_the_output() {
    let prompt: Vec<TokenId> = (0..100).collect();
    let mut late = SequenceDrafts::new(prompt.into(), Arc::from([]), Arc::from([]));
    let mut chances = SaltChances::new();
    (200..240)
        .chain(50..52)
        .for_each(|token| late.push(token, &mut chances));

    assert_eq!(ahead(&mut late, None, &chances, 2).0, [52, 53]);
}

#[test]
fn a_path_is_proposed_until_a_token_differs() {
    let mut chances = SaltChances::new();
    let mut path = drafts(&[1, 2], &[], &[3, 4, 5, 6]);
    assert_eq!(ahead(&mut path, None, &chances, 8).0, [3, 4, 5, 6]);
    path.push(3, &mut chances);
    assert_eq!(ahead(&mut path, None, &chances, 8).0, [4, 5, 6]);
    path.push(9, &mut chances);
    assert_eq!(ahead(&mut path, None, &chances, 8).0, []);
}

#[test]
fn predicted_tokens_count_whichever_source_proposes_them() {
    let mut chances = SaltChances::new();
    let mut both = drafts(&[1, 2], &[3, 4, 5], &[3, 4, 5]);
    for (token, expected) in [(3, 1), (4, 2), (9, 2)] {
        ahead(&mut both, None, &chances, 8);
        both.push(token, &mut chances);
        assert_eq!(both.prediction_hits(), expected);
    }
}

#[test]
fn a_prediction_is_found_again_after_an_edit() {
    let file: Vec<TokenId> = (0..400)
        .map(|token| {
            if token % 3 == 0 {
                7
            } else {
                1_000 + token * token % 997
            }
        })
        .collect();
    let whole = steps(&mut drafts(&[900], &file, &[]), &file, 8);
    assert_eq!(whole, file.len().div_ceil(9));
    let edit = |skipped: std::ops::Range<usize>, inserted: &[TokenId]| {
        let output = [&file[..skipped.start], inserted, &file[skipped.end..]].concat();
        let mut drafts = drafts(&[900], &file, &[]);
        let steps = steps(&mut drafts, &output, 8);
        let lost = output.len() - inserted.len() - drafts.prediction_hits();
        (steps, lost)
    };
    let few = |(steps, lost): (usize, usize), more: usize| {
        assert!(
            steps <= whole + more && lost <= 4,
            "{steps} steps, {lost} lost"
        );
    };
    few(edit(100..100, &[]), 0);
    few(edit(100..100, &[901, 902, 903, 904, 905]), 9);
    few(edit(100..120, &[]), 4);
    few(edit(100..103, &[901, 902]), 6);
    // Farther than the places near the edit.
    few(edit(100..300, &[]), 5);
}
