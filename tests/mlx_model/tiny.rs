//! Tiny models of every shape, against the naive implementation.

use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, Model, ModelError, SegmentSize};
use motet::request::Sampling;
use motet_model::sampling::{SampleInputs, TokenSampling, sample_row};
use motet_model::{OutputKind, Span, SpanOutput, Tail, TokenSource};

use motet_testkit::logits::argmax;

use crate::harness::{Slot, assert_close, greedy, one_at_a_time, rows, step, token};
use crate::naive::{Scaling, Shape, Tiny, VOCAB};

pub(crate) const TOLERANCE: f32 = 1e-4;
/// Tolerances where cached numbers are rounded to 8 and to 11 significant bits.
pub(crate) const BF16_TOLERANCE: f32 = 0.03;
pub(crate) const F16_TOLERANCE: f32 = 0.004;
/// The tolerance where cached numbers are rounded to 1/127 of the largest of their group.
pub(crate) const INT8_TOLERANCE: f32 = 0.05;

pub(crate) const PLAIN: Shape = Shape {
    layers: 2,
    hidden: 40,
    inner: 72,
    heads: 3,
    kv_heads: 1,
    head_dim: 48,
    window: None,
    bias: false,
    tied: true,
    scaling: Scaling::None,
};

pub(crate) const WINDOWED: Shape = Shape {
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    window: Some(7),
    ..PLAIN
};

/// With the crate's own kernels, where they are available, and without.
pub(crate) fn both(tiny: &Tiny) -> [MlxModel; 2] {
    [true, false].map(|kernels| load(tiny, kernels))
}

/// The models of [`both`], with state cached in each type of numbers, and the tolerance of
/// their logits against the naive ones.
pub(crate) fn models_of_every_cache_kind(tiny: &Tiny) -> Vec<(MlxModel, f32)> {
    let kinds = [
        (CacheKind::F32, TOLERANCE),
        (CacheKind::Bf16, BF16_TOLERANCE),
        (CacheKind::F16, F16_TOLERANCE),
        (CacheKind::Int8, INT8_TOLERANCE),
    ];
    let load = |kernels| {
        // Only this crate's kernels read numbers that share a scale, of heads that they support.
        let reads_codes = kernels && tiny.head_dim().is_multiple_of(16);
        let kinds = kinds.into_iter();
        let readable = kinds.filter(move |(kind, _)| reads_codes || kind.float().is_some());
        readable.map(move |(kind, tolerance)| (load_cached(tiny, kernels, kind), tolerance))
    };
    [true, false].into_iter().flat_map(load).collect()
}

pub(crate) fn load(tiny: &Tiny, kernels: bool) -> MlxModel {
    load_cached(tiny, kernels, CacheKind::F32)
}

pub(crate) fn load_cached(tiny: &Tiny, kernels: bool, kind: CacheKind) -> MlxModel {
    let files = ModelFiles::open(tiny.folder()).expect("a complete model");
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels,
        cache_dtype: Some(kind),
        ..MlxOptions::default()
    };
    MlxModel::load(&files, options).expect("a model")
}

/// `count` tokens, different for each `seed`.
pub(crate) fn tokens(seed: usize, count: usize) -> Vec<u32> {
    let mix = |index: usize| (index * 31 + seed * 17 + index * index * 7) % VOCAB;
    (0..count).map(|index| mix(index) as u32).collect()
}

pub(crate) fn expected(tiny: &Tiny, tokens: &[u32]) -> Vec<Vec<f32>> {
    let rows = tiny.logits(tokens);
    rows.iter()
        .map(|row| row.iter().map(|x| *x as f32).collect())
        .collect()
}

/// Chunks of many sizes, then single tokens, against the naive logits.
fn check(shape: Shape, chunks: &[usize]) {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(shape, 1);
    let tokens = tokens(1, chunks.iter().sum());
    let expected = expected(&tiny, &tokens);
    for mut model in both(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        let mut found = Vec::new();
        let mut rest = tokens.as_slice();
        for size in chunks {
            let (chunk, more) = rest.split_at(*size);
            found.append(&mut slot.logits(&mut model, chunk));
            rest = more;
        }
        assert_close(&found, &expected, TOLERANCE, &format!("{shape:?}"));
    }
}

const CHUNKS: &[usize] = &[1, 3, 65, 1, 1, 64, 2, 13];

#[test]
fn grouped_queries_and_sizes_of_heads() {
    for (heads, kv_heads, head_dim) in [(2, 2, 64), (3, 1, 48), (4, 1, 80), (8, 2, 16)] {
        let shape = Shape {
            heads,
            kv_heads,
            head_dim,
            ..PLAIN
        };
        check(shape, CHUNKS);
    }
}

/// Models whose attention is composed of MLX's operations while the other kernels are used.
#[test]
fn unsupported_heads_are_composed() {
    for (heads, kv_heads, head_dim) in [(2, 1, 24), (3, 3, 20), (4, 2, 8)] {
        for window in [None, Some(5)] {
            let shape = Shape {
                heads,
                kv_heads,
                head_dim,
                window,
                ..PLAIN
            };
            check(shape, CHUNKS);
        }
    }
}

#[test]
fn odd_heads_with_windows_shorter_than_a_chunk() {
    for (heads, kv_heads, head_dim) in [(5, 1, 48), (4, 2, 80)] {
        let shape = Shape {
            hidden: 56,
            heads,
            kv_heads,
            head_dim,
            window: Some(9),
            ..PLAIN
        };
        check(shape, CHUNKS);
    }
}

/// The last token that fits into a context, with and without kernels.
#[test]
fn a_context_is_filled_to_its_last_token() {
    let _serial = one_at_a_time();
    for (head_dim, window) in [(48, None), (80, Some(100))] {
        let shape = Shape {
            layers: 1,
            head_dim,
            window,
            ..PLAIN
        };
        let tiny = Tiny::new(shape, 14);
        let [with, without] = both(&tiny).map(|mut model| {
            let context = model.spec().context_tokens_max;
            let tokens = tokens(14, context);
            let mut slot = Slot::new(&mut model, &[]);
            let (last, before) = tokens.split_last().expect("a context");
            for chunk in before.chunks(512) {
                slot.step(&mut model, chunk, OutputKind::Nothing);
            }
            let logits = slot.logits(&mut model, &[*last]);
            assert_eq!(slot.tail.tokens(), context);
            logits
        });
        assert_close(&with, &without, TOLERANCE, &format!("{shape:?}"));
    }
}

#[test]
fn biases_and_a_head_of_its_own() {
    let shape = Shape {
        bias: true,
        tied: false,
        ..PLAIN
    };
    check(shape, CHUNKS);
}

#[test]
fn rotary_scaling() {
    for scaling in [Scaling::Linear, Scaling::Llama3] {
        check(Shape { scaling, ..PLAIN }, CHUNKS);
    }
}

#[test]
fn sliding_windows() {
    for window in [1, 2, 7, 64, 100, 1000] {
        let shape = Shape {
            window: Some(window),
            ..WINDOWED
        };
        check(shape, CHUNKS);
    }
}

#[test]
fn a_tail_outgrows_its_block() {
    check(PLAIN, &[200, 55, 1, 1, 40]);
}

/// A window's tail drops state that no later token sees, without changing the logits.
#[test]
fn a_windowed_tail_stays_small() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(
        Shape {
            layers: 1,
            ..WINDOWED
        },
        2,
    );
    let tokens = tokens(2, 600);
    let expected = expected(&tiny, &tokens);
    for mut model in both(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        let found: Vec<_> = tokens
            .chunks(5)
            .flat_map(|chunk| slot.logits(&mut model, chunk))
            .collect();
        assert_close(&found, &expected, TOLERANCE, "600 tokens");
        assert_eq!(slot.tail.tokens(), 600);
        let spec = model.spec();
        assert_eq!(
            slot.tail.bytes(),
            spec.segment_bytes(SegmentSize::whole(1)) * spec.tail_block_tokens,
            "the tail holds at most one block"
        );
        assert!(
            slot.tail.bytes() <= spec.tail_bytes(600),
            "the tail holds at most its reservation"
        );
    }
}

/// Each span gets its own logits whatever else is in the batch.
#[test]
fn mixed_batch_across_shared_and_private_segments() {
    let _serial = one_at_a_time();
    let wide = Shape {
        head_dim: 80,
        ..PLAIN
    };
    let unsupported = Shape {
        head_dim: 24,
        ..PLAIN
    };
    for shape in [PLAIN, wide, unsupported] {
        let tiny = Tiny::new(shape, 3);
        for (mut model, tolerance) in models_of_every_cache_kind(&tiny) {
            mixed_batch(&tiny, &mut model, tolerance);
        }
    }
}

fn mixed_batch(tiny: &Tiny, model: &mut MlxModel, tolerance: f32) {
    let prefix = tokens(3, 90);
    let mut first = Slot::new(model, &[]);
    first.step(model, &prefix, OutputKind::Nothing);
    first.seal(model, 30);
    first.seal(model, 60);
    // Three spans on the whole prefix, one on its first part, one on nothing.
    let paths = [
        &first.path[..],
        &[],
        &first.path[..1],
        &first.path[..],
        &first.path[..],
    ];
    let paths = paths.map(<[_]>::to_vec);
    let mut slots: Vec<Slot> = paths.iter().map(|path| Slot::new(model, path)).collect();
    let mut histories: Vec<Vec<u32>> = slots
        .iter()
        .map(|slot| prefix[..slot.tokens()].to_vec())
        .collect();
    for (round, sizes) in [[4, 70, 1, 1, 20], [1, 1, 1, 1, 1], [1, 66, 3, 1, 130]]
        .iter()
        .enumerate()
    {
        let inputs: Vec<Vec<u32>> = sizes
            .iter()
            .enumerate()
            .map(|(slot, size)| tokens(10 * round + slot, *size))
            .collect();
        let mut spans: Vec<_> = slots
            .iter_mut()
            .zip(&inputs)
            .map(|(slot, inputs)| (slot, inputs.as_slice(), OutputKind::Logits))
            .collect();
        let span_outputs = step(model, &mut spans);
        for ((history, inputs), span_output) in histories.iter_mut().zip(&inputs).zip(span_outputs)
        {
            history.extend(inputs);
            let all = expected(tiny, history);
            let found = rows(span_output, inputs.len());
            let what = format!("round {round}, {} tokens", history.len());
            assert_close(
                &found,
                &all[history.len() - inputs.len()..],
                tolerance,
                &what,
            );
        }
    }
}

#[test]
fn span_outputs_follow_the_order_of_the_spans() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 4);
    let mut model = load(&tiny, true);
    let output_kinds = [
        greedy(),
        OutputKind::Nothing,
        OutputKind::Logits,
        greedy(),
        OutputKind::Nothing,
    ];
    let inputs: Vec<Vec<u32>> = (0..output_kinds.len())
        .map(|slot| tokens(slot, 3 + slot))
        .collect();
    let mut slots: Vec<Slot> = output_kinds
        .iter()
        .map(|_| Slot::new(&mut model, &[]))
        .collect();
    let mut spans: Vec<_> = slots
        .iter_mut()
        .zip(&inputs)
        .zip(&output_kinds)
        .map(|((slot, inputs), output_kind)| (slot, inputs.as_slice(), output_kind.clone()))
        .collect();
    let span_outputs = step(&mut model, &mut spans);
    for ((inputs, output_kind), span_output) in inputs.iter().zip(&output_kinds).zip(span_outputs) {
        let logits = expected(&tiny, inputs);
        match output_kind {
            OutputKind::Nothing => assert_eq!(span_output, SpanOutput::Nothing),
            OutputKind::Token(_) => {
                assert_eq!(token(span_output), argmax(&logits[inputs.len() - 1]))
            }
            OutputKind::Logits => {
                assert_close(
                    &rows(span_output, inputs.len()),
                    &logits,
                    TOLERANCE,
                    "logits between",
                );
            }
            OutputKind::Verify(_) | OutputKind::PromptLogprobs(_) | OutputKind::HiddenSum(_) => {
                unreachable!("no span asks for these")
            }
        }
    }
}

#[test]
fn sampled_tokens_follow_the_logits() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 12);
    let warm = Sampling {
        temperature: 0.9,
        seed: 5,
        ..Sampling::GREEDY
    };
    let samplings = [
        warm,
        Sampling::GREEDY,
        Sampling { top_k: 9, ..warm },
        Sampling { top_p: 0.8, ..warm },
        Sampling {
            top_k: 20,
            top_p: 0.7,
            min_p: 0.1,
            ..warm
        },
    ];
    let prompts: Vec<Vec<u32>> = (0..samplings.len())
        .map(|slot| tokens(slot, 5 + slot))
        .collect();
    for mut model in both(&tiny) {
        let logits: Vec<Vec<f32>> = prompts
            .iter()
            .map(|prompt| {
                Slot::new(&mut model, &[])
                    .logits(&mut model, prompt)
                    .remove(prompt.len() - 1)
            })
            .collect();
        for position in 0..20 {
            let samples = samplings.map(|sampling| TokenSampling { sampling, position });
            let mut slots = samples.map(|_| Slot::new(&mut model, &[]));
            let mut spans: Vec<_> = slots
                .iter_mut()
                .zip(&prompts)
                .zip(samples)
                .map(|((slot, prompt), token_sampling)| {
                    (slot, prompt.as_slice(), OutputKind::Token(token_sampling))
                })
                .collect();
            let found = step(&mut model, &mut spans).into_iter().map(token);
            for ((found, token_sampling), logits) in found.zip(samples).zip(&logits) {
                assert_eq!(
                    found,
                    sample_row(&token_sampling, logits),
                    "{token_sampling:?}"
                );
            }
        }
    }
}

#[test]
fn bad_spans_are_errors() {
    let _serial = one_at_a_time();
    let mut model = load(&Tiny::new(PLAIN, 10), true);
    for tokens in [&[][..], &[VOCAB as u32], &[1, u32::MAX]] {
        let mut tail = model.tail(&[], 0).expect("a tail");
        let result = model.step(&mut [Span {
            tokens: TokenSource::Known(tokens),
            path: &[],
            tail: &mut tail,
            output_kind: OutputKind::Nothing,
        }]);
        assert!(
            matches!(result, Err(ModelError::Device(_))),
            "{tokens:?}: {result:?}"
        );
    }
    assert_eq!(model.step(&mut []).expect("nothing to do"), []);
}

/// A decode step writes its rows into the tail's buffers. A copy of one of them would show in
/// the peak.
#[test]
fn tails_are_written_in_place() {
    check_in_place(|model, slot| {
        for token in 0..20 {
            slot.step(model, &[token], greedy());
        }
    });
}

/// The same with two steps in flight: the next one is submitted while kernels of the previous
/// one still have to write to the same buffers.
#[test]
fn tails_of_two_steps_in_flight_are_written_in_place() {
    check_in_place(|model, slot| {
        let mut submit = |model: &mut MlxModel, tokens: TokenSource<'_, MlxModel>| {
            let mut spans = [Span {
                tokens,
                path: &[],
                tail: &mut slot.tail,
                output_kind: greedy(),
            }];
            model.submit(&mut spans).expect("a submitted step")
        };
        let plain = || match greedy() {
            OutputKind::Token(token_sampling) => vec![SampleInputs::plain(token_sampling)],
            _ => unreachable!("a token is requested"),
        };
        let mut in_flight = submit(model, TokenSource::Known(&[5]));
        model
            .sample(&mut in_flight, plain())
            .expect("the step is sampled");
        for _ in 0..20 {
            let mut next = submit(model, TokenSource::Sampled(&in_flight, 0, &[]));
            model.finish(in_flight).expect("the step finishes");
            model
                .sample(&mut next, plain())
                .expect("the step is sampled");
            in_flight = next;
        }
        model.finish(in_flight).expect("the step finishes");
    });
}

/// Checks that `decode` needs much less memory than one of its slot's buffers.
fn check_in_place(decode: impl Fn(&mut MlxModel, &mut Slot)) {
    let _serial = one_at_a_time();
    let shape = Shape {
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        ..PLAIN
    };
    let tiny = Tiny::new(shape, 11);
    for mut model in both(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(11, 700), OutputKind::Nothing);
        let buffer = slot.tail.bytes() / (2 * shape.layers);
        let before = model.memory().active_bytes;
        motet::model::mlx::mlx_rs::memory::reset_peak_memory().expect("a counter");
        decode(&mut model, &mut slot);
        let peak = model.memory().peak_bytes - before;
        assert!(peak < buffer / 4, "{peak} bytes beside buffers of {buffer}");
    }
}
