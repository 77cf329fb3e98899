//! Logits of the MLX backend against the fixtures, for every family that loads.

use std::path::Path;

use motet::model::mlx::profile::record;
use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet_model::OutputKind;
use motet_testkit::logits::{argmax, difference_of_rows};

use crate::fixture::{Fixture, families};
use crate::folder::{Numbers, family_stored_in, open_family};
use crate::gguf::{GgufFixture, write_gguf};
use crate::harness::{Slot, assert_close, one_at_a_time};
use crate::scratch::Scratch;

/// The sequence in one step, and cut as `generate.py` cuts it.
pub(crate) const CUTS: [&[usize]; 2] = [&[80], &[1, 2, 13, 16, 1, 47]];

fn load(path: &Path, kernels: bool) -> MlxModel {
    let files = ModelFiles::open(path).expect("the family opens");
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels,
        arithmetic: Some(Arithmetic::Exact),
        ..MlxOptions::default()
    };
    MlxModel::load(&files, options).expect("a model")
}

/// Logits at the fixture's rows, with the sequence in chunks of these sizes.
pub(crate) fn logits(model: &mut MlxModel, fixture: &Fixture, chunks: &[usize]) -> Vec<Vec<f32>> {
    let mut slot = Slot::new(model, &[]);
    let mut rest = fixture.tokens.as_slice();
    let mut rows = Vec::new();
    for size in chunks {
        let (chunk, more) = rest.split_at(*size);
        rows.append(&mut slot.logits(model, chunk));
        rest = more;
    }
    assert!(rest.is_empty(), "the chunks hold the sequence");
    fixture.rows.iter().map(|row| rows[*row].clone()).collect()
}

/// How far a model's logits are from the reference's.
pub(crate) struct Difference {
    /// Whether Motet's kernels computed them, or MLX's operations.
    pub(crate) kernels: bool,
    pub(crate) chunks: &'static [usize],
    pub(crate) largest: f32,
}

/// The differences of the model in these files, for each way of computing.
pub(crate) fn differences(
    path: &Path,
    fixture: &Fixture,
    expected: &[Vec<f32>],
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for kernels in [true, false] {
        let mut model = load(path, kernels);
        for chunks in CUTS {
            let found = logits(&mut model, fixture, chunks);
            differences.push(Difference {
                kernels,
                chunks,
                largest: difference_of_rows(&found, expected).largest,
            });
        }
    }
    differences
}

/// The differences beyond the fixture's tolerance, in words.
fn intolerable(differences: Vec<Difference>, fixture: &Fixture) -> Vec<String> {
    let Fixture {
        family, tolerance, ..
    } = fixture;
    let differences = differences.into_iter();
    let intolerable = differences.filter(|one| one.largest.is_nan() || one.largest > *tolerance);
    let words = intolerable.map(|one| {
        let Difference {
            kernels,
            chunks,
            largest,
        } = one;
        format!("{family}: kernels {kernels}, {chunks:?}: {largest} > {tolerance}")
    });
    words.collect()
}

pub(crate) fn fixtures() -> Vec<Fixture> {
    let names = families().into_iter();
    names.map(|family| Fixture::of(&family)).collect()
}

#[test]
fn folders_give_the_logits_of_the_reference() {
    let _serial = one_at_a_time();
    let mut all = Vec::new();
    for fixture in fixtures() {
        let folder = open_family(&fixture.family);
        let found = differences(folder.path(), &fixture, &fixture.logits());
        all.append(&mut intolerable(found, &fixture));
    }
    assert!(all.is_empty(), "{all:#?}");
}

/// The end of a layer is one operation where a step has few rows. Each of its parts is an operation
/// while a step is recorded.
#[test]
fn operations_of_several_parts_change_no_bit() {
    let _serial = one_at_a_time();
    for fixture in fixtures() {
        let folder = open_family(&fixture.family);
        let mut model = load(folder.path(), true);
        let together = logits(&mut model, &fixture, CUTS[1]);
        let (apart, recorded) = record(|| logits(&mut model, &fixture, CUTS[1]));
        assert!(!recorded.is_empty(), "{}", fixture.family);
        assert_eq!(together, apart, "{}", fixture.family);
    }
}

/// The weights are the same numbers in every type, so the logits are too.
#[test]
fn folders_in_other_types_give_the_same_logits() {
    let _serial = one_at_a_time();
    for fixture in fixtures() {
        let in_f32 = open_family(&fixture.family);
        let expected = logits(&mut load(in_f32.path(), true), &fixture, CUTS[0]);
        for numbers in [Numbers::F16, Numbers::Bf16] {
            let folder = family_stored_in(&fixture.family, numbers);
            let found = logits(&mut load(folder.path(), true), &fixture, CUTS[0]);
            let what = format!("{}: {numbers:?}", fixture.family);
            assert_close(&found, &expected, fixture.tolerance, &what);
        }
    }
}

#[test]
fn gguf_files_give_the_logits_of_the_reference() {
    let _serial = one_at_a_time();
    let mut all = Vec::new();
    for fixture in fixtures() {
        let Some(gguf) = GgufFixture::of(&fixture.family) else {
            continue;
        };
        let folder = Scratch::new();
        let file = write_gguf(&fixture.family, &gguf, &folder);
        let found = differences(&file, &fixture, &gguf.logits(&fixture));
        all.append(&mut intolerable(found, &fixture));
    }
    assert!(all.is_empty(), "{all:#?}");
}

/// Counts the greedy tokens that equal the reference's, up to the first that differs. It may differ
/// only where the reference's own choice was close.
pub(crate) fn equal_greedy_tokens(fixture: &Fixture) -> usize {
    let folder = open_family(&fixture.family);
    let mut model = load(folder.path(), true);
    let mut slot = Slot::new(&mut model, &[]);
    let (last, before) = fixture.tokens.split_last().expect("a sequence");
    slot.step(&mut model, before, OutputKind::Nothing);
    let mut token = *last;
    let mut equal = 0;
    for (expected, margin) in fixture.greedy.iter().zip(&fixture.margins) {
        let row = slot.logits(&mut model, &[token]);
        token = argmax(&row[0]);
        if token != *expected {
            let family = &fixture.family;
            let is_close = *margin <= 2.0 * fixture.tolerance;
            assert!(is_close, "{family}: {token} for {expected}");
            break;
        }
        equal += 1;
    }
    equal
}

#[test]
fn greedy_tokens_are_those_of_the_reference() {
    let _serial = one_at_a_time();
    for fixture in fixtures() {
        let equal = equal_greedy_tokens(&fixture);
        assert!(equal > 0, "{}", fixture.family);
    }
}
