//! Contents of a window layer, and their visibility.
//!
//! After a write, ollama's rotating cache holds the tokens that the chunk sees: the window's
//! tokens before it, and the chunk itself. The tests compare that with the tokens that a model
//! with such a window is found to read.

use std::sync::atomic::{AtomicUsize, Ordering};

use motet::TokenId;
use motet::model::LayerKind::{self, Full, Window};
use motet::model::ModelError;
use motet::model::oracle::OracleConfig;
use motet::model::weights::ModelFiles;

use crate::cases::{Fact, NUMBER_MAX};
use crate::check::Check;
use crate::harness::{CacheHarness, SlotOpened};
use crate::reach::tokens_read;
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "mlx.rotating_cache.contents",
        own_cases: 6,
        beside: &[],
        shapes: &[(&["window", "steps"], contents)],
    },
    Known {
        suite: "mlx.attention_masks",
        own_cases: 4,
        beside: &[],
        shapes: &[
            (&["window", "writes", "masks"], decode),
            (&["window", "L", "masks"], prefill),
            (&["window", "total"], single_query),
            (&["window", "L"], latent),
        ],
    },
];

/// A sequence of given ids, on a model with one window layer.
struct Ring {
    harness: CacheHarness,
    live: SlotOpened,
    window: usize,
}

impl Ring {
    fn new(window: usize, first: &[TokenId]) -> Self {
        let mut harness = CacheHarness::new(&[Window { tokens: window }]);
        let live = harness.open_slot(first, &[]);
        Self {
            harness,
            live,
            window,
        }
    }

    fn ids(&self) -> Vec<TokenId> {
        self.harness.tokens(self.live.sequence).to_vec()
    }

    /// Evaluates ids in one step. Returns the ids that they see.
    fn evaluate(&mut self, ids: &[TokenId]) -> Vec<TokenId> {
        let past = self.ids();
        self.harness.step(&[(self.live.sequence, ids)]);
        let read = tokens_read(self.window, &past, ids);
        [&past[past.len() - read..], ids].concat()
    }

    /// Returns to the first `offset` ids. A window's state cannot be undone: the sequence ends.
    /// Another one starts from as much of it as it can, and evaluates the rest again. Returns
    /// whether there was no rest.
    fn rewind(&mut self, offset: usize, next: &[TokenId]) -> bool {
        let ids = self.ids();
        assert!(
            offset <= ids.len(),
            "{offset} is among the {} ids",
            ids.len()
        );
        let retained = ids[..offset].to_vec();
        self.harness.close(self.live.sequence);
        self.live = self.harness.open_slot(&[&retained[..], next].concat(), &[]);
        let cached = self.live.cached;
        self.harness
            .evaluate(self.live.sequence, &retained[cached..]);
        cached == offset
    }
}

fn contents(check: &mut Check, case: &Fact<'_>) {
    let steps = case.get("steps").items();
    let ids = |step: &Fact<'_>| {
        let ids = step.maybe("feed").or_else(|| step.maybe("feed_each"));
        ids.map(|ids| ids.tokens())
    };
    let first = steps.first().and_then(ids).expect("the first step has ids");
    let mut ring = Ring::new(case.get("window").within(1..=NUMBER_MAX), &first);
    for (i, step) in steps.iter().enumerate() {
        let mut seen = Vec::new();
        if let Some(offset) = step.maybe("rewind") {
            let next = steps.get(i + 1).and_then(ids).expect("the steps continue");
            let ok = ring.rewind(offset.number(), &next);
            check.same("goes back", ok, step.get("ok").flag());
        } else if step.maybe("feed").is_some() {
            seen = ring.evaluate(&ids(step).expect("ids"));
        } else {
            for id in ids(step).expect("ids") {
                seen = ring.evaluate(&[id]);
            }
        }
        if let Some(offset) = step.maybe("expect_offset") {
            check.same("offset", ring.ids().len(), offset.number());
        }
        if let Some(buffer) = step.maybe("expect_buffer") {
            check.same("the visible tokens", seen.clone(), buffer.tokens());
        }
        if let Some(set) = step.maybe("expect_set") {
            let mut expected = set.tokens();
            expected.sort_unstable();
            check.same("the visible tokens", seen, expected);
        }
    }
}

/// Attention is causal, with or without an explicit mask; Motet has no other masks.
fn masks(check: &mut Check, case: &Fact<'_>) {
    for mask in case.get("masks").texts() {
        let is_own = mask.starts_with("array [") || mask.starts_with("causal + relax ");
        match mask {
            "none" | "causal" => {}
            _ if is_own => check.lacks("masks of a caller"),
            _ => panic!("`{mask}` is not a known mask"),
        }
    }
}

/// Evaluates one token after others. `sliding_windows` in `tests/mlx_model/tiny.rs` tests with
/// the MLX backend that the numbers are those of attention over these tokens.
fn decode(check: &mut Check, case: &Fact<'_>) {
    let window = case.get("window").within(1..=NUMBER_MAX);
    masks(check, case);
    let ids: Vec<TokenId> = (1..=case.get("writes").token()).collect();
    let mut ring = Ring::new(window, &ids);
    let seen = ids.iter().map(|id| ring.evaluate(&[*id])).last();
    let first = ids.len().saturating_sub(window);
    assert_eq!(seen.as_deref(), Some(&ids[first..]));
    let words =
        format!("equal within 1e-5 to attention over the last {window} positions in logical order");
    check.prose(&case.get("expect"), &words);
}

/// Evaluates many tokens at once: each sees the same as on its own.
fn prefill(check: &mut Check, case: &Fact<'_>) {
    let window = case.get("window").within(1..=NUMBER_MAX);
    masks(check, case);
    let words = "blocked iff (causal and k>q and not relaxed) or k < q-window+1";
    check.prose(&case.get("expect"), words);
    let ids: Vec<TokenId> = (1..=case.get("L").token()).collect();
    for query in 0..ids.len() {
        let read = tokens_read(window, &ids[..query], &ids[query..]);
        let first = (query + 1).saturating_sub(window);
        assert_eq!(read, query - first, "the window of token {query}");
    }
    // All rows of one chunk are the same as without a cache.
    Ring::new(window, &ids).evaluate(&ids);
}

/// Evaluates a token alone, and as the last of a chunk, on both kinds of layers.
fn single_query(check: &mut Check, case: &Fact<'_>) {
    let words = "single-query causal equals no mask on both caches";
    check.prose(&case.get("expect"), words);
    let window = case.get("window").within(1..=NUMBER_MAX);
    let total = case.get("total").within(2..=NUMBER_MAX);
    let ids: Vec<TokenId> = (1..=total as TokenId).collect();
    let layers: [&[LayerKind]; 2] = [&[Full], &[Window { tokens: window }]];
    for layers in layers {
        for is_alone in [false, true] {
            let mut harness = CacheHarness::of(OracleConfig::with_layers(layers), |_| {});
            let live = harness.open_slot(&ids, &[]).sequence;
            // Both are compared with the same reference.
            let (before, last) = ids.split_at(ids.len() - 1);
            if is_alone {
                harness.step(&[(live, before)]);
                harness.step(&[(live, last)]);
            } else {
                harness.step(&[(live, &ids)])
            }
            assert_eq!(harness.tokens(live), ids);
        }
    }
}

/// Models whose values are a part of the keys are rejected by name.
fn latent(check: &mut Check, case: &Fact<'_>) {
    case.skip(&["window", "L"]);
    check.lacks("attention with latent keys");
    check.prose(&case.get("expect"), "V sliced from K equals reference");
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let name = format!("motet-cases-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).expect("a folder");
    let config = r#"{"architectures": ["DeepseekV2ForCausalLM"]}"#;
    std::fs::write(folder.join("config.json"), config).expect("a file");
    let rejected = ModelFiles::open(&folder);
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    match rejected {
        Err(ModelError::Architecture { found, .. }) => assert_eq!(found, "DeepseekV2ForCausalLM"),
        other => panic!("there is no such model: {other:?}"),
    }
}
