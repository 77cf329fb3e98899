//! Drafts in every family: what a step verified in vain leaves no trace, in keys and values, in
//! windows and in the state of every kind of recurrent layer.

use std::path::Path;

use motet::TokenId;
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, LayerKind, Model};
use motet_device::{DraftModel, ModelDrafter};
use motet_model::{Span, SpanOutput, TokenSource, conformance};
use motet_protocol::{DraftOrder, OutputKind, Salt, Sampling, SequenceId, TokenSampling};

use crate::fixture::Fixture;
use crate::folder::open_family;
use crate::harness::one_at_a_time;
use crate::logits::fixtures;

fn load(path: &Path, options: MlxOptions) -> MlxModel {
    let files = ModelFiles::open(path).expect("the family opens");
    let device = Some(MlxDevice::Cpu);
    MlxModel::load(&files, MlxOptions { device, ..options }).expect("a model")
}

/// Two prompts that differ early on, the first longer than most windows of fixtures.
fn prompts(fixture: &Fixture) -> [Vec<TokenId>; 2] {
    let (first, second) = fixture.tokens.split_at(23);
    [first.to_vec(), second[..8].to_vec()]
}

/// Motet's kernels, in the deterministic mode: to the last bit.
#[test]
fn every_family_goes_back_to_the_bit() {
    let _serial = one_at_a_time();
    let mut has_recurrent = false;
    for fixture in fixtures() {
        let folder = open_family(&fixture.family);
        for cache_dtype in [CacheKind::F32, CacheKind::Int8] {
            println!("{}, {cache_dtype}", fixture.family);
            let options = MlxOptions {
                deterministic: true,
                cache_dtype: Some(cache_dtype),
                ..MlxOptions::default()
            };
            let mut model = load(folder.path(), options);
            let mut groups = model.spec().layer_groups.iter();
            has_recurrent |= groups.any(|group| group.kind == LayerKind::Recurrent);
            conformance::check_drafts(&mut model, &prompts(&fixture), |a, b| a == b);
        }
    }
    assert!(has_recurrent, "recurrent layers verify drafts too");
}

/// MLX's operations.
#[test]
fn every_family_goes_back_without_kernels() {
    let _serial = one_at_a_time();
    for fixture in fixtures() {
        println!("{}", fixture.family);
        let folder = open_family(&fixture.family);
        let options = MlxOptions {
            kernels: false,
            ..MlxOptions::default()
        };
        let mut model = load(folder.path(), options);
        let near = |found: &[f32], expected: &[f32]| {
            let mut pairs = found.iter().zip(expected);
            pairs.all(|(found, expected)| (found - expected).abs() <= fixture.tolerance)
        };
        conformance::check_drafts(&mut model, &prompts(&fixture), near);
    }
}

/// A draft model of the same weights writes what the model writes: read in parts, after its draft was
/// right, and after it was not.
#[test]
fn draft_model_of_the_same_weights_is_right() {
    let _serial = one_at_a_time();
    for fixture in fixtures() {
        let folder = open_family(&fixture.family);
        let options = MlxOptions {
            deterministic: true,
            ..MlxOptions::default()
        };
        let mut model = load(folder.path(), options.clone());
        let mut groups = model.spec().layer_groups.iter();
        if !groups.all(|group| group.kind == LayerKind::Full) {
            continue;
        }
        println!("{}", fixture.family);
        let mut drafter = ModelDrafter::new(load(folder.path(), options), model.spec(), 4_096);
        let drafter = drafter.as_mut().expect("it is the same model");
        let mut text = fixture.tokens.clone();
        for (round, appended) in [None, Some(5), Some(9), None].into_iter().enumerate() {
            text.extend(appended);
            let sampling = Sampling {
                temperature: if round % 2 == 0 { 0.0 } else { 0.9 },
                ..Sampling::GREEDY
            };
            let sampling = TokenSampling {
                sampling,
                position: text.len() as u64,
            };
            let (prompt, output) = text.split_at(3);
            let order = DraftOrder {
                sequence: SequenceId(1),
                salt: Salt::default(),
                prompt: prompt.into(),
                output: output.to_vec(),
                sampling,
                read_tokens_max: 11,
                draft_tokens: 6,
            };
            let reply = loop {
                let replies = drafter.draft(std::slice::from_ref(&order));
                let reply = replies.expect("the device works").remove(0);
                if reply.read_tokens == text.len() {
                    break reply;
                }
            };
            let mut expected = Vec::new();
            let mut tail = model.tail(&[], 0).expect("memory");
            let mut unread = text.clone();
            for token in 0..6 {
                let mut spans = [Span {
                    tokens: TokenSource::Known(&unread),
                    path: &[],
                    tail: &mut tail,
                    output_kind: OutputKind::Token(sampling.later(token)),
                }];
                let outputs = model.step(&mut spans).expect("the device works");
                let [SpanOutput::Token(token)] = outputs[..] else {
                    panic!("{outputs:?}")
                };
                expected.push(token);
                unread = vec![token];
            }
            assert_eq!(reply.tokens, expected, "round {round}");
            text.extend(&expected[..3 + round]);
        }
    }
}
