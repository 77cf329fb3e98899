//! Every family on a GPU beside the CPU. Where MLX has no GPU, the CPU stands in for it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet_testkit::logits::{argmax, difference_of_rows};

use crate::fixture::Fixture;
use crate::folder::open_family;
use crate::gpu::gpu_options;
use crate::harness::one_at_a_time;
use crate::logits::{CUTS, fixtures, logits};

/// Largest [`share`] of a right model. Numbers of a GPU are rounded to bf16, 1 in 256, in each
/// operation. A mistake gives about 1.
const SHARE_MAX: f64 = 0.1;

/// The mean difference of logits ÷ their mean distance from the mean of their row: 0 for equal
/// logits, and about 1 for a row that says nothing about the other.
fn share(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let flat = expected.iter().map(|row| {
        let mean = row.iter().sum::<f32>() / row.len() as f32;
        vec![mean; row.len()]
    });
    let flat: Vec<Vec<f32>> = flat.collect();
    difference_of_rows(found, expected).mean() / difference_of_rows(&flat, expected).mean()
}

/// A row of the table, and the largest share.
fn row(fixture: &Fixture) -> (String, f64) {
    let folder = open_family(&fixture.family);
    let files = ModelFiles::open(folder.path()).expect("the family opens");
    let on_cpu = MlxOptions {
        device: Some(MlxDevice::Cpu),
        arithmetic: Some(Arithmetic::Exact),
        ..MlxOptions::default()
    };
    let load = |options| MlxModel::load(&files, options).expect("a model");
    let (mut cpu, mut gpu) = (load(on_cpu), load(gpu_options(&files)));
    let expected = logits(&mut cpu, fixture, CUTS[0]);
    let (mut largest, mut share_max, mut same_best) = (0.0_f32, 0.0_f64, 0);
    for chunks in CUTS {
        let found = logits(&mut gpu, fixture, chunks);
        largest = largest.max(difference_of_rows(&found, &expected).largest);
        share_max = share_max.max(share(&found, &expected));
        let pairs = found.iter().zip(&expected);
        same_best += pairs
            .filter(|(found, expected)| argmax(found) == argmax(expected))
            .count();
    }
    // The measure itself: logits of other positions are no model's.
    let mut others = expected.clone();
    others.rotate_left(1);
    let of_others = share(&others, &expected);
    assert!(of_others > 2.0 * SHARE_MAX, "others: {of_others}");
    let rows = CUTS.len() * expected.len();
    let text = format!(
        "| `{}` | {largest:.4} | {share_max:.4} | {of_others:.2} | {same_best} of {rows} |",
        fixture.family
    );
    (text, share_max)
}

#[test]
fn families_on_a_gpu_have_the_logits_of_the_cpu() {
    let _serial = one_at_a_time();
    println!(
        "\n| fixture | largest difference | share | share of other positions | same best token |"
    );
    println!("|---|--:|--:|--:|--:|");
    let mut wrong = Vec::new();
    for fixture in fixtures() {
        // One family that fails hides no other.
        match catch_unwind(AssertUnwindSafe(|| row(&fixture))) {
            Ok((row, share)) => {
                println!("{row}");
                if share.is_nan() || share > SHARE_MAX {
                    wrong.push(fixture.family);
                }
            }
            Err(_) => {
                println!("| `{}` | failed | | | |", fixture.family);
                wrong.push(fixture.family);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
