//! Synthetic traces that test a policy's weaknesses. Each is the same on every run and
//! every machine.
//!
//! | file | content |
//! |---|---|
//! | `generator.rs` | fresh blocks, random numbers of several distributions, events in time |
//! | `chats.rs` | conversations, alone and mixed with other loads |
//! | `prompts.rs` | prompts that are repeated unchanged |

mod chats;
mod generator;
mod prompts;

use crate::replay::trace::Trace;
use generator::Generator;

type Make = fn(&mut Generator) -> Vec<Vec<u32>>;

/// Name, seed, generator.
const ALL: &[(&str, u64, Make)] = &[
    ("loop-5", 1, |g| prompts::looping(g, 0.0525)),
    ("loop-20", 1, |g| prompts::looping(g, 0.21)),
    ("zipf-0.6", 2, |g| prompts::zipf(g, 0.6)),
    ("zipf-0.9", 2, |g| prompts::zipf(g, 0.9)),
    ("zipf-1.2", 2, |g| prompts::zipf(g, 1.2)),
    ("questions", 16, prompts::questions),
    ("working-sets", 6, prompts::working_sets),
    ("late-return", 8, prompts::late_return),
    ("recent", 10, prompts::recent),
    ("heavy-tail", 11, prompts::heavy_tail),
    ("drift", 12, prompts::drift),
    ("twice", 13, prompts::twice),
    ("phases", 15, prompts::phases),
    ("one-shots", 3, chats::one_shots),
    ("chat-quick", 4, |g| chats::steady(g, 100.0, 5.0)),
    ("chat-slow", 4, |g| chats::steady(g, 600.0, 3.0)),
    ("chat-slower", 4, |g| chats::steady(g, 2500.0, 4.0)),
    ("chat-partial", 44, chats::partial),
    ("chat-batch", 5, chats::with_batch),
    ("chat-quicker", 66, |g| chats::change(g, 1500.0, 60.0)),
    ("chat-calmer", 67, |g| chats::change(g, 60.0, 1500.0)),
    ("regenerate", 17, chats::regenerate),
    ("agents", 7, chats::agents),
    ("bursts", 14, chats::bursts),
    ("mixture", 9, chats::mixture),
];

/// All names.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, ..)| *name).collect()
}

/// The trace of this name, or all of them; empty if there is no such name.
pub(crate) fn named(name: &str) -> Vec<Trace> {
    let selected = ALL.iter().filter(|(n, ..)| name == "all" || name == *n);
    selected
        .map(|(name, seed, make)| Trace {
            name: (*name).to_owned(),
            requests: make(&mut Generator::new(*seed))
                .into_iter()
                .map(crate::replay::trace::Request::from_blocks)
                .collect(),
        })
        .collect()
}
