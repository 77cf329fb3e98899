//! Drafts in every family: what a step verified in vain leaves no trace, in keys and values, in
//! windows and in the state of every kind of recurrent layer.

use std::path::Path;

use motet::TokenId;
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, LayerKind, Model};
use motet_model::conformance;

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
