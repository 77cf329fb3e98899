//! The fuzz targets without a fuzzer: the stored corpus, and mutations of it.
//!
//! These mutations are not guided; `cargo xtask fuzz` finds more. Its findings are part of the
//! corpus.

#[allow(unreachable_pub, reason = "it is a crate of its own as well")]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::path::Path;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use targets::{TARGETS, Target};

const MUTATIONS: usize = 1_500;
const BYTES_MAX: usize = 4096;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(name);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<_> = files.map(|file| file.expect("an entry").path()).collect();
    paths.sort();
    let read = |path| std::fs::read(path).expect("it can be read");
    paths.into_iter().map(read).collect()
}

/// A corpus entry with a few changes, or followed by another one, or random bytes.
fn mutation(corpus: &[Vec<u8>], rng: &mut impl Rng) -> Vec<u8> {
    let any = |rng: &mut dyn FnMut(usize) -> usize| corpus[rng(corpus.len())].clone();
    let mut below = |most: usize| rng.random_range(0..most);
    if below(20) == 0 {
        return (0..below(400)).map(|_| below(256) as u8).collect();
    }
    let mut bytes = any(&mut below);
    for _ in 0..1 + below(6) {
        let at = below(bytes.len() + 1);
        match below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, below(256) as u8),
            2 => {
                let other = any(&mut below);
                let from = below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            3 => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill([0, 0xFF, 0x7F][below(3)]);
            }
            _ if at < bytes.len() => bytes[at] = below(256) as u8,
            _ => {}
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn check(name: &str, seed: u64) {
    let (_, target): (_, Target) = *TARGETS
        .iter()
        .find(|(of, _)| *of == name)
        .expect("a target");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has a corpus");
    corpus.iter().for_each(|input| target(input));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..MUTATIONS {
        let input = mutation(&corpus, &mut rng);
        let run = std::panic::AssertUnwindSafe(|| target(&input));
        if let Err(panic) = std::panic::catch_unwind(run) {
            println!("{name} fails on {input:?}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn messages_to_the_cache() {
    check("cache", 1);
}

#[test]
fn messages_to_the_pager() {
    check("pager", 10);
}

#[test]
fn files_of_models() {
    check("gguf", 2);
    check("safetensors", 3);
    check("config", 4);
}

#[test]
fn tokenizers_templates_and_text() {
    check("tokenizer", 5);
    check("template", 6);
    check("text", 7);
    check("answer", 11);
}

#[test]
fn files_of_the_disk_tier() {
    check("disk", 8);
}

#[test]
fn requests() {
    check("request", 9);
}
