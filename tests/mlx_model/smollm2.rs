//! SmolLM2-135M-Instruct against recorded outputs of Transformers.

use std::path::PathBuf;
use std::rc::Rc;

use motet::TokenId;
use motet::model::mlx::{Arithmetic, MlxModel, MlxOptions, MlxSegment};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, Model, SegmentSize};
use motet_model::{OutputKind, Packer, Segment};
use motet_storage::tiers::precision::EightBits;
use motet_testkit::logits::{Difference, argmax, difference, margin, negative_log};
use serde_json::Value;

use crate::harness::{Slot, assert_close, greedy, one_at_a_time, rows, step, token};

/// Margin of the reference's best token above which the best token must be the same.
const MARGIN: f64 = 0.01;

struct Case {
    ids: Vec<TokenId>,
    last_top10: Vec<(TokenId, f64)>,
    mean_nll: f64,
    greedy: Vec<TokenId>,
    greedy_margin: Vec<f64>,
}

fn cases() -> Vec<Case> {
    let json = include_str!("../data/reference_generations.json");
    let json: Value = serde_json::from_str(json).expect("JSON");
    let cases = json["models"][0]["cases"].as_array().expect("cases");
    let numbers = |value: &Value| -> Vec<f64> {
        let numbers = value.as_array().expect("an array");
        numbers
            .iter()
            .map(|x| x.as_f64().expect("a number"))
            .collect()
    };
    let ids = |value: &Value| numbers(value).iter().map(|x| *x as TokenId).collect();
    cases
        .iter()
        .map(|case| Case {
            ids: ids(&case["ids"]),
            last_top10: case["last_top10"]
                .as_array()
                .expect("pairs")
                .iter()
                .map(|pair| (numbers(pair)[0] as TokenId, numbers(pair)[1]))
                .collect(),
            mean_nll: case["mean_nll"].as_f64().expect("a number"),
            greedy: ids(&case["greedy"]),
            greedy_margin: numbers(&case["greedy_margin"]),
        })
        .collect()
}

/// Products in `f32`, as the reference computes.
fn exact() -> MlxOptions {
    MlxOptions {
        arithmetic: Some(Arithmetic::Exact),
        ..MlxOptions::default()
    }
}

fn load(options: MlxOptions) -> MlxModel {
    let path = std::env::var_os("MOTET_MODEL")
        .map(PathBuf::from)
        .or_else(|| {
            let folder = PathBuf::from(std::env::var_os("MOTET_MODEL_DIR")?);
            Some(folder.join("smollm2-135m-instruct.gguf"))
        });
    let Some(path) = path.filter(|path| path.exists()) else {
        panic!("the model is missing: run `cargo xtask setup --model smollm2-135m-instruct`");
    };
    let files = ModelFiles::open(&path).expect("a complete model");
    MlxModel::load(&files, options).expect("a model")
}

/// One load for all checks, because loading takes longer than the checks.
#[test]
fn smollm2() {
    let _serial = one_at_a_time();
    let mut model = load(exact());
    let cases = cases();
    assert_eq!(cases.len(), 5);
    for case in &cases {
        logits_are_the_reference(&mut model, case);
    }
    greedy_tokens_are_the_reference(&mut model, &cases);
    batched_equals_single_and_warm_equals_cold(&mut model, &cases);
    moved_state_gives_the_same_logits(&mut model, &cases[4].ids);
    a_shift_is_hardly_noticed(&mut model, &cases);
    eight_bits_are_hardly_noticed(&mut model, &cases);
    fewer_bits_are_hardly_noticed(&mut model, &cases);
    fast_products_are_hardly_noticed(&mut model, &cases);
}

#[test]
fn smollm2_deterministic() {
    let _serial = one_at_a_time();
    let mut model = load(MlxOptions {
        deterministic: true,
        ..MlxOptions::default()
    });
    let cases = cases();
    for case in &cases {
        logits_are_the_reference(&mut model, case);
    }
    let single = cases
        .iter()
        .map(|case| Slot::new(&mut model, &[]).logits(&mut model, &case.ids));
    let single: Vec<Vec<Vec<f32>>> = single.collect();
    let mut slots: Vec<Slot> = cases.iter().map(|_| Slot::new(&mut model, &[])).collect();
    let spans = slots.iter_mut().zip(&cases);
    let mut spans: Vec<_> = spans
        .map(|(slot, case)| (slot, &case.ids[..], OutputKind::Logits))
        .collect();
    let together = step(&mut model, &mut spans);
    for ((single, together), case) in single.iter().zip(together).zip(&cases) {
        let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
            rows.iter().flatten().map(|x| x.to_bits()).collect()
        };
        assert_eq!(bits(single), bits(&rows(together, case.ids.len())));
    }
}

/// State cached in 16 and in 8 bits: the bytes are fewer, and the loss on the same text changes by
/// less than 0.2 % and 1 %.
fn fewer_bits_are_hardly_noticed(model: &mut MlxModel, cases: &[Case]) {
    let bytes = |model: &MlxModel| model.spec().segment_bytes(SegmentSize::whole(1));
    let whole = mean_loss(model, cases);
    let kinds = [
        (CacheKind::Bf16, 0.002),
        (CacheKind::F16, 0.002),
        (CacheKind::Int8, 0.01),
    ];
    for (kind, most) in kinds {
        let mut rounded = load(MlxOptions {
            cache_dtype: Some(kind),
            ..exact()
        });
        // Heads have 64 numbers.
        let rows = bytes(model) / CacheKind::F32.row_bytes(64);
        assert_eq!(bytes(&rounded), rows * kind.row_bytes(64), "{kind}");
        let found = mean_loss(&mut rounded, cases);
        let change = found / whole - 1.0;
        println!(
            "{} bytes a token cached in {kind}: mean negative log-likelihood {found:.5}, {whole:.5} \
             in f32 ({:+.3} %)",
            bytes(&rounded),
            100.0 * change
        );
        assert!(change.abs() < most, "{kind}: {found}, not {whole}");
        assert!(change != 0.0, "no state was cached in {kind}");
    }
}

/// Activations in 8 bits, the default: the loss on the same text changes by less than 0.5 %.
fn fast_products_are_hardly_noticed(model: &mut MlxModel, cases: &[Case]) {
    let exact = mean_loss(model, cases);
    let mut fast = load(MlxOptions::default());
    let found = mean_loss(&mut fast, cases);
    let change = found / exact - 1.0;
    println!(
        "activations in 8 bits: mean negative log-likelihood {found:.5}, {exact:.5} in f32 \
         ({:+.3} %)",
        100.0 * change
    );
    assert!(change.abs() < 0.005, "{found}, not {exact}");
    assert!(change != 0.0, "nothing was rounded");
}

/// The mean negative log-likelihood of the cases' texts as one. Most of it is evaluated in
/// chunks over segments, and the rest token by token.
fn mean_loss(model: &mut MlxModel, cases: &[Case]) -> f64 {
    let text = |case: &Case| [&case.ids[..], &case.greedy].concat();
    let ids: Vec<TokenId> = cases.iter().flat_map(text).collect();
    let mut slot = Slot::new(model, &[]);
    let mut logits = Vec::new();
    let (before, after) = ids[..ids.len() - 1].split_at(ids.len() - 64);
    for chunk in before.chunks(100) {
        logits.append(&mut slot.logits(model, chunk));
        slot.seal(model, chunk.len());
    }
    for token in after {
        logits.append(&mut slot.logits(model, &[*token]));
    }
    let pairs = logits.iter().zip(&ids[1..]);
    let sum: f64 = pairs.map(|(row, next)| negative_log(row, *next)).sum();
    sum / logits.len() as f64
}

fn logits_are_the_reference(model: &mut MlxModel, case: &Case) {
    let logits = Slot::new(model, &[]).logits(model, &case.ids);
    let last = &logits[case.ids.len() - 1];
    for (token, expected) in &case.last_top10 {
        let found = f64::from(last[*token as usize]);
        assert!(
            (found - expected).abs() < 2e-3,
            "token {token}: {found}, not {expected}"
        );
    }
    let next = &case.ids[1..];
    let nll: f64 = logits
        .iter()
        .zip(next)
        .map(|(row, next)| negative_log(row, *next))
        .sum();
    let nll = nll / next.len() as f64;
    assert!(
        (nll - case.mean_nll).abs() < 1e-3,
        "{nll}, not {}",
        case.mean_nll
    );
}

/// All cases in one batch. The reference's tokens are the inputs, so that one near tie does not
/// end the check.
fn greedy_tokens_are_the_reference(model: &mut MlxModel, cases: &[Case]) {
    let mut slots: Vec<Slot> = cases.iter().map(|_| Slot::new(model, &[])).collect();
    let mut inputs: Vec<Vec<TokenId>> = cases.iter().map(|case| case.ids.clone()).collect();
    for index in 0..cases[0].greedy.len() {
        let found = next_tokens(model, &mut slots, &inputs);
        for (case, found) in cases.iter().zip(found) {
            let (expected, margin) = (case.greedy[index], case.greedy_margin[index]);
            let same = found == expected || margin <= MARGIN;
            assert!(same, "token {index}: {found}, not {expected} ({margin})");
        }
        inputs = cases.iter().map(|case| vec![case.greedy[index]]).collect();
    }
}

/// Each slot's logits after its share of `inputs`, all in one step.
fn next_tokens(model: &mut MlxModel, slots: &mut [Slot], inputs: &[Vec<TokenId>]) -> Vec<TokenId> {
    let spans = slots.iter_mut().zip(inputs);
    let mut spans: Vec<_> = spans
        .map(|(slot, inputs)| (slot, inputs.as_slice(), greedy()))
        .collect();
    step(model, &mut spans).into_iter().map(token).collect()
}

/// Sixteen prompts, greedy. Each gives the same tokens alone, in a batch of all, and in a batch
/// of all over sealed prefixes, up to its first near tie.
fn batched_equals_single_and_warm_equals_cold(model: &mut MlxModel, cases: &[Case]) {
    const OUTPUT: usize = 6;
    let prompts: Vec<Vec<TokenId>> = (0..16)
        .map(|index| {
            let ids = &cases[index % 5].ids;
            let mut prompt = ids[..ids.len() - index / 5].to_vec();
            prompt.extend_from_slice(&cases[(index + 1) % 5].ids[..index % 4]);
            prompt
        })
        .collect();
    let reference_tokens: Vec<Vec<(TokenId, f32)>> = prompts
        .iter()
        .map(|prompt| {
            let mut slot = Slot::new(model, &[]);
            let mut inputs = prompt.clone();
            let mut next_tokens = Vec::new();
            for _ in 0..OUTPUT {
                let logits = slot.logits(model, &inputs);
                let last = &logits[logits.len() - 1];
                next_tokens.push((argmax(last), margin(last)));
                inputs = vec![argmax(last)];
            }
            next_tokens
        })
        .collect();
    let cold = prompts.iter().map(|_| Slot::new(model, &[])).collect();
    assert_same(
        &reference_tokens,
        &together(model, cold, &prompts, OUTPUT),
        "batched",
    );
    let warm = prompts
        .iter()
        .map(|prompt| {
            let mut slot = Slot::new(model, &[]);
            slot.step(model, &prompt[..prompt.len() - 1], OutputKind::Nothing);
            slot.seal(model, prompt.len() / 2);
            slot
        })
        .collect();
    assert_same(
        &reference_tokens,
        &together(model, warm, &prompts, OUTPUT),
        "warm",
    );
}

/// Greedy outputs of slots in one batch, each after the rest of its prompt.
fn together(
    model: &mut MlxModel,
    mut slots: Vec<Slot>,
    prompts: &[Vec<TokenId>],
    output: usize,
) -> Vec<Vec<TokenId>> {
    let rest = prompts
        .iter()
        .zip(&slots)
        .map(|(prompt, slot)| prompt[slot.tokens()..].to_vec());
    let mut inputs: Vec<Vec<TokenId>> = rest.collect();
    let mut outputs = vec![Vec::new(); prompts.len()];
    for _ in 0..output {
        let tokens = next_tokens(model, &mut slots, &inputs);
        inputs = tokens.iter().map(|token| vec![*token]).collect();
        outputs
            .iter_mut()
            .zip(tokens)
            .for_each(|(output, token)| output.push(token));
    }
    outputs
}

#[track_caller]
fn assert_same(reference_tokens: &[Vec<(TokenId, f32)>], found: &[Vec<TokenId>], what: &str) {
    for (prompt, (reference_tokens, found)) in reference_tokens.iter().zip(found).enumerate() {
        for (index, ((expected, margin), found)) in reference_tokens.iter().zip(found).enumerate() {
            if expected != found {
                let near = f64::from(*margin) <= MARGIN;
                assert!(
                    near,
                    "{what}, prompt {prompt}, token {index}: {found}, not {expected}"
                );
                break;
            }
        }
    }
}

/// Sealing, splitting, exporting, importing and merging do not change the logits that follow.
fn moved_state_gives_the_same_logits(model: &mut MlxModel, ids: &[TokenId]) {
    const TOLERANCE: f32 = 1e-4;
    let (before, after) = ids.split_at(100);
    let plain = Slot::new(model, &[]).logits(model, ids)[100..].to_vec();
    let mut slot = Slot::new(model, &[]);
    slot.step(model, before, OutputKind::Nothing);
    slot.seal(model, 100);
    let (head, rest) = model.split(&slot.path[0], 33).expect("split");
    let packer = model.packer();
    let mut bytes = vec![0; packer.packed_bytes(rest.segment_size())];
    let detached_state = model.export(&rest).expect("a detached state");
    packer
        .pack(&detached_state, &mut bytes)
        .expect("the buffer has the packed size");
    let detached_state = packer.unpack(rest.segment_size(), &bytes);
    let rest = model.import(detached_state.expect("the detached state is unpacked"));
    let rest = rest.expect("a segment");
    let whole = model.merge(&head, &rest).expect("merged");
    let mut merged = Slot::new(model, &[Rc::new(whole)]);
    let mut moved = Slot::new(model, &[Rc::new(head), Rc::new(rest)]);
    for (slot, what) in [
        (&mut slot, "sealed"),
        (&mut moved, "moved"),
        (&mut merged, "merged"),
    ] {
        assert_close(&slot.logits(model, after), &plain, TOLERANCE, what);
    }
}

/// Removes tokens from the middle of a text. The model still predicts the rest as text, for
/// each layout of segments. With keys that were not rotated, the loss would be 1.0 instead of
/// 0.2.
fn a_shift_is_hardly_noticed(model: &mut MlxModel, cases: &[Case]) {
    const LAST: usize = 60;
    let ids: Vec<TokenId> = cases.iter().flat_map(|case| case.ids.clone()).collect();
    let (before, after) = ids.split_at(ids.len() - LAST);
    let removed = 4..60;
    let loss = |logits: &[Vec<f32>]| -> f64 {
        let next = logits.iter().zip(&after[1..]);
        let sum: f64 = next.map(|(row, next)| negative_log(row, *next)).sum();
        sum / (LAST - 1) as f64
    };
    let mut shifted = |seals: &[usize]| {
        let mut slot = Slot::new(model, &[]);
        slot.step(model, before, OutputKind::Nothing);
        seals.iter().for_each(|tokens| slot.seal(model, *tokens));
        let result = model.remove(&slot.path, 0, &mut slot.tail, removed.clone());
        result.expect("removed");
        slot.path.clear();
        slot.logits(model, after)
    };
    let (plain, sealed) = (shifted(&[]), shifted(&[30, 50]));
    assert_close(&sealed, &plain, 1e-3, "sealed, then shifted");
    let shorter = [&before[..removed.start], &before[removed.end..]].concat();
    let mut cold = Slot::new(model, &[]);
    cold.step(model, &shorter, OutputKind::Nothing);
    let cold = loss(&cold.logits(model, after));
    let shifted = loss(&plain);
    assert!(
        shifted < cold + 0.1,
        "{shifted} shifted, {cold} computed again"
    );
}

/// How logits after a prefix that was stored in eight bits differ from those after the exact
/// prefix, row by row.
#[derive(Debug, Default)]
struct Change {
    prefix_tokens: usize,
    rows: usize,
    logits: Difference,
    /// Rows with another best token, and the largest margin lost in one of them.
    other_best: usize,
    margin_lost: f32,
    /// Negative log-likelihoods of the tokens that follow, after either prefix.
    exact_loss: f64,
    eight_loss: f64,
}

/// Prefixes of some hundred tokens, exported, stored in eight bits and imported. The likelihood
/// of the rest of the text stays the same, and clear best tokens stay the best.
fn eight_bits_are_hardly_noticed(model: &mut MlxModel, cases: &[Case]) {
    const LAST: usize = 64;
    let mut all = Change::default();
    for first in 0..cases.len() {
        let texts = cases[first..].iter().chain(&cases[..first]);
        let text = |case: &Case| [&case.ids[..], &case.greedy].concat();
        let ids: Vec<TokenId> = texts.flat_map(text).collect();
        let (before, after) = ids.split_at(ids.len() - LAST);
        let mut exact = Slot::new(model, &[]);
        exact.step(model, before, OutputKind::Nothing);
        exact.seal(model, before.len());
        let retained = in_eight_bits(model, &exact.path[0]);
        let mut eight = Slot::new(model, &[Rc::new(retained)]);
        let exact = exact.logits(model, after);
        let eight = eight.logits(model, after);
        for (at, (exact, eight)) in exact.iter().zip(&eight).enumerate() {
            all.add(exact, eight, after.get(at + 1).copied());
        }
        all.prefix_tokens = before.len();
    }
    println!("{all}");
    assert!(all.logits.largest < 1.0, "{all}");
    assert!(all.margin_lost < 0.25, "{all}");
    assert!(
        (all.eight_loss - all.exact_loss).abs() < 0.01 * all.exact_loss,
        "{all}"
    );
    assert!(
        all.logits.largest > 0.01,
        "no state was stored in eight bits: {all}"
    );
}

impl Change {
    fn add(&mut self, exact: &[f32], eight: &[f32], next: Option<TokenId>) {
        self.rows += 1;
        self.logits += difference(eight, exact);
        assert!(self.logits.sum.is_finite(), "all logits are finite");
        if argmax(eight) != argmax(exact) {
            self.other_best += 1;
            self.margin_lost = self.margin_lost.max(margin(exact));
        }
        if let Some(next) = next {
            self.exact_loss += negative_log(exact, next);
            self.eight_loss += negative_log(eight, next);
        }
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (prefix_tokens, rows) = (self.prefix_tokens, self.rows);
        let mean = self.logits.mean();
        let [eight, exact] = [self.eight_loss, self.exact_loss].map(|loss| loss / rows as f64);
        write!(
            f,
            "{prefix_tokens} tokens in eight bits: the {rows} rows of logits after them differ by \
             {:.3} at most and {mean:.4} in the mean; {} have another best token, and the best \
             was {:.3} ahead at most; loss {eight:.4}, exactly {exact:.4}",
            self.logits.largest, self.other_best, self.margin_lost
        )
    }
}

/// The segment after a round trip through a store that keeps eight bits of each number.
fn in_eight_bits(model: &mut MlxModel, segment: &MlxSegment) -> MlxSegment {
    let (packer, segment_size) = (model.packer(), segment.segment_size());
    let detached_state = model.export(segment).expect("a detached state");
    let mut full = vec![0; packer.packed_bytes(segment_size)];
    packer
        .pack(&detached_state, &mut full)
        .expect("the buffer has the packed size");
    let floats = EightBits(packer.floats(segment_size));
    let eight_bytes = floats
        .eight_bytes(full.len())
        .expect("the packed size is that of whole planes");
    let mut eight = vec![0; eight_bytes];
    floats.encode(&full, &mut eight).expect("finite numbers");
    full.fill(0);
    floats
        .decode(&eight, &mut full)
        .expect("the buffer has the packed size");
    let detached_state = packer
        .unpack(segment_size, &full)
        .expect("the buffer has the packed size");
    model.import(detached_state).expect("a segment")
}
