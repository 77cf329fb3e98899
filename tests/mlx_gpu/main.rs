//! The real model on a GPU beside the CPU: greedy tokens, logits, moved and shared state, an
//! engine that offloads, and the engine's rules about the device (`rules.rs`).
//!
//! Where MLX has no GPU, the CPU stands in for it, with the operations that a GPU uses and the
//! same type of cached state. `--include-ignored --nocapture` runs all and shows how far the devices differ.
#![cfg(feature = "mlx")]

#[path = "../common/gpu.rs"]
mod gpu;
#[path = "../mlx_model/harness.rs"]
#[allow(dead_code, reason = "each test takes what it needs")]
mod harness;
#[path = "../common/killable.rs"]
mod killable;
#[path = "../common/model.rs"]
mod model;
mod rules;

use std::rc::Rc;

use gpu::{gpu_options, has_gpu};
use harness::{Slot, greedy, one_at_a_time, step, token};
use motet::config::EngineConfig;
use motet::model::Model;
use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_model::{OutputKind, Packer, Segment};
use motet_testkit::logits::{
    Difference, argmax, difference, difference_of_rows, margin, negative_log,
};
use serde::Deserialize;

/// Margin of the CPU's best token above which a GPU must find the same one. Logits around 20 are
/// multiples of 1/8 in bf16, and all before them are rounded as well.
const MARGIN: f32 = 0.75;

/// Largest difference of any logit between the devices, and between two ways on one device.
const LOGITS: f32 = 2.0;
const MOVED: f32 = 1.0;

#[derive(Deserialize)]
struct References {
    models: Vec<ReferenceModel>,
}

#[derive(Deserialize)]
struct ReferenceModel {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    ids: Vec<TokenId>,
    greedy: Vec<TokenId>,
}

fn cases() -> Vec<Case> {
    let text = include_str!("../data/reference_generations.json");
    let mut references: References = serde_json::from_str(text).expect("well-formed references");
    references.models.swap_remove(0).cases
}

/// The amount of work.
struct Amount {
    prompts: usize,
    tokens: usize,
    cases: usize,
}

/// All of it on a GPU. The CPU takes a hundred milliseconds for a step without kernels.
fn amount() -> Amount {
    let [prompts, tokens, cases] = if has_gpu(&files()) {
        [11, 64, 5]
    } else {
        [2, 8, 1]
    };
    Amount {
        prompts,
        tokens,
        cases,
    }
}

/// Prompts of several lengths: the cases, and parts of all of them one after another.
fn prompts() -> Vec<Vec<TokenId>> {
    let cases = cases();
    let all: Vec<TokenId> = cases
        .iter()
        .flat_map(|case| case.ids.iter().chain(&case.greedy).copied())
        .collect();
    let parts = [(3, 40), (20, 90), (60, 150), (100, 300), (5, 400), (0, 500)];
    let parts = parts.map(|(from, to)| all[from..to.min(all.len())].to_vec());
    cases
        .into_iter()
        .map(|case| case.ids)
        .chain(parts)
        .collect()
}

fn files() -> ModelFiles {
    ModelFiles::open(&model::model()).expect("a complete model")
}

fn gpu() -> MlxModel {
    MlxModel::load(&files(), gpu_options(&files())).expect("a model on the GPU")
}

fn cpu() -> MlxModel {
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        arithmetic: Some(Arithmetic::Exact),
        ..MlxOptions::default()
    };
    MlxModel::load(&files(), options).expect("a model on the CPU")
}

/// The first greedy tokens, with the margin of each.
fn greedy_tokens(model: &mut MlxModel, prompt: &[TokenId], tokens: usize) -> Vec<(TokenId, f32)> {
    let mut slot = Slot::new(model, &[]);
    let mut inputs = prompt.to_vec();
    let next = (0..tokens).map(|_| {
        let logits = slot.logits(model, &inputs);
        let last = logits.last().expect("a row for each token");
        inputs = vec![argmax(last)];
        (argmax(last), margin(last))
    });
    next.collect()
}

/// Each device's own greedy tokens, up to the first that differs: there the CPU had a near tie.
#[test]
#[ignore = "it takes a minute without a GPU"]
fn greedy_tokens_are_the_cpus_up_to_a_near_tie() {
    let _serial = one_at_a_time();
    let (mut gpu, mut cpu) = (gpu(), cpu());
    let mut same = 0;
    let amount = amount();
    for (index, prompt) in prompts()[..amount.prompts].iter().enumerate() {
        let expected = greedy_tokens(&mut cpu, prompt, amount.tokens);
        let found = greedy_tokens(&mut gpu, prompt, amount.tokens);
        let first = (0..amount.tokens).find(|at| found[*at].0 != expected[*at].0);
        let tokens = prompt.len();
        let Some(at) = first else {
            println!("prompt {index} ({tokens} tokens): all tokens are the same");
            same += 1;
            continue;
        };
        let ((other, _), (token, margin)) = (found[at], expected[at]);
        println!(
            "prompt {index} ({tokens} tokens): token {at} is {other}, on the CPU {token} by {margin:.3}"
        );
        assert!(margin < MARGIN, "prompt {index}, token {at}");
    }
    println!(
        "{same} of {} outputs of {} tokens are the same as a whole",
        amount.prompts, amount.tokens
    );
}

/// The CPU's tokens as inputs of both, so that one near tie does not end the comparison.
#[test]
fn logits_after_the_same_text_are_near_the_cpus() {
    let _serial = one_at_a_time();
    let (mut gpu, mut cpu) = (gpu(), cpu());
    let (mut rows, mut others, mut lost) = (0, 0, 0.0_f32);
    let mut all = Difference::default();
    let (mut cpu_loss, mut gpu_loss, mut scored) = (0.0, 0.0, 0);
    for case in &cases()[..amount().cases] {
        let text = [&case.ids[..], &case.greedy].concat();
        let (prompt, rest) = text.split_at(case.ids.len());
        let (mut on_gpu, mut on_cpu) = (Slot::new(&mut gpu, &[]), Slot::new(&mut cpu, &[]));
        let mut found = on_gpu.logits(&mut gpu, prompt);
        let mut expected = on_cpu.logits(&mut cpu, prompt);
        for token in rest {
            found.extend(on_gpu.logits(&mut gpu, &[*token]));
            expected.extend(on_cpu.logits(&mut cpu, &[*token]));
        }
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let row = difference(found, expected);
            assert!(row.sum.is_finite(), "row {at}");
            rows += 1;
            all += row;
            if argmax(found) != argmax(expected) {
                others += 1;
                lost = lost.max(margin(expected));
            }
            if let Some(next) = text.get(at + 1) {
                cpu_loss += negative_log(expected, *next);
                gpu_loss += negative_log(found, *next);
                scored += 1;
            }
        }
    }
    let (largest, mean) = (all.largest, all.mean());
    let [cpu_loss, gpu_loss] = [cpu_loss, gpu_loss].map(|loss| loss / f64::from(scored));
    println!(
        "{rows} rows: {others} have another best token, which was {lost:.3} ahead at most; logits \
         differ by {largest:.3} at most and {mean:.4} in the mean; loss {gpu_loss:.5}, on the CPU \
         {cpu_loss:.5}"
    );
    assert!(lost < MARGIN && largest < LOGITS);
    assert!((gpu_loss / cpu_loss - 1.0).abs() < 0.01);
}

/// Sixteen sequences in one step, alone, and over sealed prefixes.
#[test]
fn a_batch_gives_the_tokens_of_single_sequences() {
    let _serial = one_at_a_time();
    let mut gpu = gpu();
    let tokens = amount().tokens.min(16);
    let some = prompts().into_iter().take(amount().prompts);
    let prompts: Vec<Vec<TokenId>> = some.cycle().take(16).collect();
    let single = prompts
        .iter()
        .map(|prompt| greedy_tokens(&mut gpu, prompt, tokens));
    let single: Vec<Vec<(TokenId, f32)>> = single.collect();
    for sealed in [false, true] {
        let slot = |prompt: &Vec<TokenId>| {
            let mut slot = Slot::new(&mut gpu, &[]);
            if sealed {
                let before = &prompt[..prompt.len() - 1];
                slot.step(&mut gpu, before, OutputKind::Nothing);
                slot.seal(&mut gpu, prompt.len() / 2);
            }
            slot
        };
        let mut slots: Vec<Slot> = prompts.iter().map(slot).collect();
        let rest = prompts.iter().zip(&slots);
        let mut inputs: Vec<Vec<TokenId>> = rest
            .map(|(prompt, slot)| prompt[slot.tokens()..].to_vec())
            .collect();
        let mut differing = vec![None; prompts.len()];
        for at in 0..tokens {
            let spans = slots.iter_mut().zip(&inputs);
            let mut spans: Vec<_> = spans
                .map(|(slot, inputs)| (slot, inputs.as_slice(), greedy()))
                .collect();
            let found = step(&mut gpu, &mut spans).into_iter().map(token);
            let found: Vec<TokenId> = found.collect();
            let alone = single.iter().map(|tokens| tokens[at]);
            for (index, (found, (expected, margin))) in found.iter().zip(alone).enumerate() {
                if *found != expected && differing[index].is_none() {
                    differing[index] = Some(at);
                    println!("sealed: {sealed}; sequence {index}, token {at}: margin {margin:.3}");
                    assert!(margin < MARGIN, "sequence {index}, token {at}");
                }
            }
            inputs = found.iter().map(|token| vec![*token]).collect();
        }
        let same = differing.iter().filter(|at| at.is_none()).count();
        println!("sealed: {sealed}; {same} of 16 have the tokens that they have alone");
    }
}

#[track_caller]
fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    let largest = difference_of_rows(found, expected).largest;
    println!("{what}: logits differ by {largest:.3} at most");
    assert!(largest < MOVED, "{what}: {largest}");
}

/// Sealing, splitting, moving to the host and back, merging and removing tokens.
#[test]
fn moved_state_gives_nearly_the_same_logits() {
    let _serial = one_at_a_time();
    let mut gpu = gpu();
    let ids = prompts().pop().expect("prompts");
    let (before, after) = ids.split_at(200);
    let plain = Slot::new(&mut gpu, &[]).logits(&mut gpu, &ids)[200..].to_vec();
    let mut slot = Slot::new(&mut gpu, &[]);
    slot.step(&mut gpu, before, OutputKind::Nothing);
    slot.seal(&mut gpu, 200);
    let (head, rest) = gpu.split(&slot.path[0], 77).expect("split");
    let packer = gpu.packer();
    let mut bytes = vec![0; packer.packed_bytes(rest.segment_size())];
    let exported = gpu.export(&rest).expect("a detached state");
    // The same segment is read by a step while another thread packs it.
    let mut sharing = Slot::new(&mut gpu, &slot.path);
    let (own_packer, into) = (packer.clone(), &mut bytes[..]);
    let packing = std::thread::scope(|scope| {
        let packing = scope.spawn(move || own_packer.pack(&exported, into));
        let logits = sharing.logits(&mut gpu, after);
        packing.join().expect("no panic").expect("packed");
        logits
    });
    let unpacked = packer
        .unpack(rest.segment_size(), &bytes)
        .expect("unpacked");
    let moved = gpu.import(unpacked).expect("a segment");
    let again = gpu.export(&moved).expect("a detached state");
    let mut bytes_again = vec![0; bytes.len()];
    packer.pack(&again, &mut bytes_again).expect("packed");
    assert!(bytes == bytes_again, "a round trip changes no byte");
    let merged = gpu.merge(&head, &moved).expect("merged");
    let mut whole = Slot::new(&mut gpu, &[Rc::new(merged)]);
    let mut parts = Slot::new(&mut gpu, &[Rc::new(head), Rc::new(moved)]);
    assert_close(&packing, &plain, "sealed, while it is packed");
    for (slot, what) in [
        (&mut slot, "sealed"),
        (&mut parts, "moved"),
        (&mut whole, "merged"),
    ] {
        assert_close(&slot.logits(&mut gpu, after), &plain, what);
    }
    let mut shifted = Slot::new(&mut gpu, &[]);
    shifted.step(&mut gpu, before, OutputKind::Nothing);
    gpu.remove(&[], 0, &mut shifted.tail, 20..60)
        .expect("removed");
    let logits = shifted.logits(&mut gpu, after);
    let losses = logits.iter().zip(&after[1..]);
    let loss: f64 = losses.map(|(row, next)| negative_log(row, *next)).sum();
    let losses = plain.iter().zip(&after[1..]);
    let whole: f64 = losses.map(|(row, next)| negative_log(row, *next)).sum();
    println!("after a shift: loss {loss:.2}, of the whole text {whole:.2}");
    assert!(loss.is_finite() && loss < whole + 0.3 * after.len() as f64);
}

/// The engine with a small cache and host memory: prefixes leave the device and come back.
#[test]
#[ignore = "it takes a minute without a GPU"]
fn an_engine_offloads_and_restores() {
    let _serial = one_at_a_time();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(offload_and_restore());
}

async fn offload_and_restore() {
    let mut config = EngineConfig {
        context_tokens_max: Some(768),
        ..EngineConfig::default()
    };
    let spec = MlxModel::outline(&files(), &gpu_options(&files())).expect("a device");
    config.cache.device_bytes_max = spec.tail_bytes(2_048) + config.scratch_bytes(&spec);
    config.pager.host_bytes_max = 512 << 20;
    let engine = Engine::open_with(model::model(), gpu_options(&files())).expect("a model");
    let engine = engine.config(config).start().await.expect("it starts");
    let text = prompts().pop().expect("prompts");
    let prompt = |index: usize| {
        let mut prompt = text.clone();
        prompt.rotate_left(index * 17 % text.len());
        prompt
    };
    let mut first_round = Vec::new();
    let mut same = 0;
    for round in 0..2 {
        let mut streams = Vec::new();
        for index in 0..16 {
            let sampling = match index % 4 {
                0 | 1 => Sampling::GREEDY,
                2 => Sampling {
                    temperature: 0.8,
                    top_p: 0.9,
                    ..Sampling::GREEDY
                },
                _ => Sampling {
                    temperature: 0.8,
                    top_k: 20,
                    ..Sampling::GREEDY
                },
            };
            let request = Request::tokens(prompt(index))
                .output_tokens_max(16)
                .ignore_end_tokens()
                .sampling(sampling);
            streams.push(engine.submit(request).await.expect("it is valid"));
        }
        for (index, stream) in streams.into_iter().enumerate() {
            let completion = stream.collect().await.expect("it ends");
            assert_eq!(completion.tokens.len(), 16, "sequence {index}");
            if round == 0 {
                first_round.push(completion.tokens);
            } else if first_round[index] == completion.tokens {
                same += 1;
            }
        }
    }
    let stats = engine.stats();
    println!(
        "{same} of 16 second answers are the same; {:?}",
        stats.pager
    );
    assert!(stats.pager.packed > 0 && stats.pager.unpacked > 0);
    assert_eq!(stats.pager.failed, 0);
    engine.shutdown(Shutdown::Abort).await;
}
