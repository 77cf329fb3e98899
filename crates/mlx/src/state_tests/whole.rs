//! Mixed groups give the same results in every way to compute them.

use super::network::{self, Means, Sums, model, model_with};
use super::{Slot, assert_close, mixes, one_at_a_time, packed, tokens};
use motet_model::{CacheKind, Model, Span, conformance};
use motet_protocol::{LayerKind, OutputKind};
use motet_weights::Mixer;

fn near(tolerance: f32) -> impl Fn(&[f32], &[f32]) -> bool {
    move |found, expected| {
        let mut pairs = found.iter().zip(expected);
        pairs.all(|(found, expected)| (found - expected).abs() <= tolerance)
    }
}

#[test]
fn mixed_groups_conform() {
    let _serial = one_at_a_time();
    for (what, mixers) in mixes() {
        let (prompts, all_means) = if what == "all kinds" {
            (
                vec![tokens(1, 7), tokens(2, 6), tokens(3, 22)],
                &Means::ALL[..],
            )
        } else {
            (vec![tokens(1, 13), tokens(2, 6)], &Means::ALL[..2])
        };
        for means in all_means.iter().copied() {
            eprintln!("{what}, {means:?}");
            let mut model = model(&mixers, means, CacheKind::F32);
            conformance::check(&mut model, &prompts, near(2e-5));
        }
    }
}

#[test]
fn all_means_compute_the_same() {
    let _serial = one_at_a_time();
    let prompt = tokens(19, 40);
    for (what, mixers) in mixes() {
        let logits = Means::ALL.map(|means| {
            let mut model = model(&mixers, means, CacheKind::F32);
            let mut slot = Slot::new(&mut model, &[]);
            let mut logits = slot.step(&mut model, &prompt[..25]);
            slot.seal(&mut model, 25);
            logits.append(&mut slot.step(&mut model, &prompt[25..]));
            logits
        });
        for (means, found) in Means::ALL.into_iter().zip(&logits).skip(1) {
            assert_close(found, &logits[0], 2e-5, &format!("{what}, {means:?}"));
        }
    }
}

#[test]
fn keys_in_fewer_bits_lie_beside_recurrent_state_in_single_precision() {
    let _serial = one_at_a_time();
    let prompts = [tokens(4, 11), tokens(5, 9)];
    let (_, mixers) = mixes().pop().expect("mixes");
    for means in Means::ALL {
        for (kind, tolerance) in means.kinds().filter(|(kind, _)| *kind != CacheKind::F32) {
            eprintln!("{means:?}, {kind}");
            let mut model = model(&mixers, means, kind);
            conformance::check(&mut model, &prompts, near(tolerance));
            let kv = model.groups.kv.iter().map(|shape| {
                let rows = shape.layers * 2 * shape.kv_heads as usize;
                rows * kind.row_bytes(shape.head_dim as usize)
            });
            let singles = network::model(&mixers, means, CacheKind::F32);
            let singles = singles.spec().layer_groups.iter();
            let recurrent = singles.filter(|group| group.kind == LayerKind::Recurrent);
            let expected: Vec<usize> = kv.chain(recurrent.map(|group| group.bytes)).collect();
            let found = model.spec().layer_groups.iter();
            let found: Vec<usize> = found.map(|group| group.bytes).collect();
            assert_eq!(found, expected, "{kind}");
        }
    }
}

/// Rows are computed alone, so the running sums of a batch are those of each span alone, to the
/// last bit.
#[test]
fn recurrent_state_does_not_depend_on_chunks_or_the_batch() {
    let _serial = one_at_a_time();
    let mixers = [Mixer::DeltaNet(network::DELTA)];
    let prompts = [tokens(6, 9), tokens(7, 9)];
    for means in Means::ALL {
        let mut model = model(&mixers, means, CacheKind::F32);
        let mut whole = Vec::new();
        for prompt in &prompts {
            let mut slot = Slot::new(&mut model, &[]);
            slot.step(&mut model, prompt);
            slot.seal(&mut model, 9);
            whole.push(packed(&mut model, &slot.path[0]));
        }
        assert_ne!(whole[0], whole[1]);
        for chunk in [1, 2, 4] {
            let mut slots = [(); 2].map(|()| Slot::new(&mut model, &[]));
            for from in (0..9).step_by(chunk) {
                let to = 9.min(from + chunk);
                let mut spans = Vec::new();
                for (slot, prompt) in slots.iter_mut().zip(&prompts) {
                    spans.push(Span {
                        tokens: (&prompt[from..to]).into(),
                        path: &slot.path,
                        tail: &mut slot.tail,
                        output_kind: OutputKind::Nothing,
                    });
                }
                model.step(&mut spans).expect("a step");
            }
            for (slot, whole) in slots.iter_mut().zip(&whole) {
                slot.seal(&mut model, 9);
                assert_eq!(packed(&mut model, &slot.path[0]), *whole, "{means:?}");
            }
        }
    }
}

/// The network's recurrent layers really remember: a longer past gives other logits.
#[test]
fn running_sums_reach_back_to_the_first_token() {
    let _serial = one_at_a_time();
    let mut model = model_with(
        &[Mixer::ShortConv(network::CONV)],
        Means::Kernels,
        CacheKind::F32,
        Sums { decay: 1.0 },
    );
    let mut prompt = tokens(17, 12);
    let expected = Slot::new(&mut model, &[]).step(&mut model, &prompt);
    prompt[0] += 1;
    let found = Slot::new(&mut model, &[]).step(&mut model, &prompt);
    let last = expected.len() - 4;
    assert_ne!(found[last..], expected[last..]);
}
