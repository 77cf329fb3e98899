//! The table of docs/models.md.

use std::path::Path;

use crate::fixture::Fixture;
use crate::folder::open_family;
use crate::gguf::{GgufFixture, write_gguf};
use crate::harness::one_at_a_time;
use crate::logits::{differences, equal_greedy_tokens, fixtures};
use crate::scratch::Scratch;
use crate::ways::generates_the_same_in_every_way;

/// Two columns: the largest difference ÷ the fixture's noise with kernels, and with MLX's
/// operations. The engine's outputs are compared, too.
fn columns(path: &Path, fixture: &Fixture, expected: &[Vec<f32>]) -> String {
    let found = differences(path, fixture, expected);
    let [kernels, composed] = [true, false].map(|kernels| {
        let these = found.iter().filter(|one| one.kernels == kernels);
        let largest = these.map(|one| f64::from(one.largest));
        let largest = largest.max_by(f64::total_cmp).expect("there are two cuts");
        let multiple = largest / fixture.noise();
        assert!(multiple <= 10.0, "{}: {multiple}", fixture.family);
        multiple
    });
    generates_the_same_in_every_way(path);
    format!("{kernels:.1} | {composed:.1}")
}

fn row(fixture: &Fixture) -> String {
    let folder = open_family(&fixture.family);
    let folder = columns(folder.path(), fixture, &fixture.logits());
    let gguf = GgufFixture::of(&fixture.family).map(|gguf| {
        let place = Scratch::new();
        let file = write_gguf(&fixture.family, &gguf, &place);
        columns(&file, fixture, &gguf.logits(fixture))
    });
    format!(
        "| `{}` | {:.0e} | {folder} | {} | {} of {} |",
        fixture.family,
        fixture.noise(),
        gguf.as_deref().unwrap_or("– | –"),
        equal_greedy_tokens(fixture),
        fixture.greedy.len(),
    )
}

#[test]
#[ignore = "`cargo xtask parity` writes its table into docs/models.md"]
fn table() {
    let _serial = one_at_a_time();
    // libtest's words are on the line before.
    println!(
        "\n| fixture | noise | folder, kernels | composed | GGUF, kernels | composed | greedy tokens |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for fixture in fixtures() {
        println!("{}", row(&fixture));
    }
}
