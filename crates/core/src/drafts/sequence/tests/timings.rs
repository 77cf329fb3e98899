//! The costs of drafts, on text with repeats:
//! `cargo test --release -p motet-core times_of_drafts -- --ignored --nocapture`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use motet_protocol::{Salt, TokenId};

use crate::drafts::{Answers, SaltChances, SequenceDrafts};

const TOKENS: usize = 100_000;

/// Numbers that follow each other without order.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.0 >> 33) % bound
    }
}

/// Text of common and rare tokens, a third of it copied from the text before.
fn text(numbers: &mut Numbers) -> Vec<TokenId> {
    let mut text: Vec<TokenId> = Vec::with_capacity(TOKENS);
    while text.len() < TOKENS {
        let begin = numbers.below(text.len() as u64 + 1) as usize;
        let end = text.len().min(begin + numbers.below(40) as usize);
        text.extend_from_within(begin..end);
        for _ in 0..numbers.below(80) {
            let kinds = 1 << numbers.below(17);
            text.push(numbers.below(kinds) as TokenId);
        }
    }
    text.truncate(TOKENS);
    text
}

#[test]
#[ignore = "prints times"]
fn times_of_drafts() {
    let mut numbers = Numbers(1);
    let (prompt, output) = (text(&mut numbers), text(&mut numbers));
    let salt = Salt::default();
    let mut answers = Answers::new(1 << 26);
    let started = Instant::now();
    for answer in text(&mut numbers).chunks(500) {
        answers.add(&salt, answer);
    }
    let per_token = started.elapsed().as_nanos() / TOKENS as u128;
    let bytes = answers.bytes() as f64 / TOKENS as f64;
    println!("answers: {per_token} ns a token to add, {bytes:.1} bytes a token");

    let mut drafts = SequenceDrafts::new(prompt.into(), Arc::from([]), Arc::from([]));
    let started = Instant::now();
    while drafts.index_prompt(512) > 0 {}
    let per_token = started.elapsed().as_nanos() / TOKENS as u128;
    let bytes = drafts.bytes() as f64 / TOKENS as f64;
    println!("prompt: {per_token} ns a token to index, {bytes:.1} bytes a token");

    let mut chances = SaltChances::new();
    let (mut tokens, mut survival) = (Vec::new(), Vec::new());
    let mut times: Vec<u128> = Vec::with_capacity(TOKENS);
    for token in output {
        let started = Instant::now();
        drafts.ahead(answers.of(&salt), &chances, 8, &mut tokens, &mut survival);
        drafts.push(black_box(token), &mut chances);
        times.push(started.elapsed().as_nanos());
    }
    let mean = times.iter().sum::<u128>() / times.len() as u128;
    times.sort_unstable();
    let at = |percent: usize| times[times.len() * percent / 100];
    let longest = times.last().expect("there are tokens");
    println!(
        "push and ahead: median {} ns, mean {mean} ns, 99th percentile {} ns, longest {longest} ns",
        at(50),
        at(99)
    );
    let bytes = drafts.bytes() as f64 / (2 * TOKENS) as f64;
    println!("sequence: {bytes:.1} bytes a token");
}
