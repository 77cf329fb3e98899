//! Visibility of the past for each token of a batch.
//!
//! Motet has no cells: a sequence sees its own path and tail, in order, and in a window layer
//! their last tokens. A *key* is a token as the case names it: its id, less the distance by
//! which it has moved towards the start.

use std::collections::BTreeMap;

use motet::model::LayerKind::{self, Full, Window};
use motet::model::oracle::OracleConfig;
use motet::{SequenceId, TokenId};

use crate::cases::{Fact, NUMBER_MAX, number_in};
use crate::check::Check;
use crate::harness::CacheHarness;
use crate::reach::tokens_read;
use crate::suites::Known;

/// Storage fields that Motet does not have.
const CELLS: &[&str] = &["cells_total", "max_seq", "max_batch", "memory", "derived"];

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "kvcache.causal",
        own_cases: 7,
        beside: CELLS,
        shapes: &[
            (&["init.window", "swa_memory_effective", "steps"], windowed),
            (&["init", "steps"], causal),
        ],
    },
    Known {
        suite: "kvcache.defrag_historic",
        own_cases: 1,
        beside: CELLS,
        shapes: &[(&["init", "steps"], causal)],
    },
];

/// The part of the past that a batch sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VisibleRange {
    /// All tokens.
    All,
    /// The last so many tokens, including itself.
    Last(usize),
    /// The tokens of its own chunk of this size, which no layer of Motet has.
    Chunk(usize),
}

/// A sequence of a case, and its keys.
struct ReplayedSequence {
    sequence: SequenceId,
    keys: Vec<TokenId>,
    /// Number of keys whose state is the same as in a sequence of their own.
    exact: usize,
}

struct Replay {
    harness: CacheHarness,
    visible_range: VisibleRange,
    sequences: BTreeMap<usize, ReplayedSequence>,
    /// Copied keys of sequences that have not started yet.
    copies: BTreeMap<usize, Vec<TokenId>>,
    /// Every key that ever occurred.
    seen: Vec<TokenId>,
    capacity: usize,
}

/// One sequence's part of a batch.
struct BatchPart {
    keys: Vec<TokenId>,
    positions: Vec<usize>,
    /// Its rows in the batch.
    rows: Vec<usize>,
}

/// The offsets at which a windowed sequence can resume are asked for last, if at all.
fn windowed(check: &mut Check, case: &Fact<'_>) {
    let steps = case.get("steps").items();
    let asks = |step: &Fact<'_>| step.get("op").text() == "can_resume";
    if steps.last().is_some_and(asks) {
        can_resume(check, case)
    } else {
        causal(check, case)
    }
}

fn causal(check: &mut Check, case: &Fact<'_>) {
    case.skip(&["swa_memory_effective"]);
    let init = case.get("init");
    let number = |field| {
        let fact = init.maybe(field);
        fact.map(|fact: Fact<'_>| fact.within(1..=NUMBER_MAX))
    };
    let visible_range = match (number("window"), number("chunk")) {
        // ollama's cache counts the tokens before a token; Motet also counts the token itself.
        (Some(window), _) => VisibleRange::Last(window + 1),
        (_, Some(chunk)) => VisibleRange::Chunk(chunk),
        _ => VisibleRange::All,
    };
    if let Some(window) = number("window") {
        check.lacks("a window that does not count the token itself");
        let past: Vec<TokenId> = (1..=window as TokenId).collect();
        assert_eq!(tokens_read(window, &past, &[0]), window - 1);
    }
    if let VisibleRange::Chunk(_) = visible_range {
        check.lacks("layers that attend within chunks");
    }
    let mut replay = Replay::new(visible_range, init.get("capacity").number());
    for step in case.get("steps").items() {
        replay.apply(check, &step);
    }
    replay.end();
}

impl Replay {
    fn new(visible_range: VisibleRange, capacity: usize) -> Self {
        let layer = match visible_range {
            VisibleRange::All => Full,
            VisibleRange::Last(tokens) | VisibleRange::Chunk(tokens) => Window { tokens },
        };
        let harness = CacheHarness::of(oracle(layer), |_| {});
        Self {
            harness,
            visible_range,
            sequences: BTreeMap::new(),
            copies: BTreeMap::new(),
            seen: Vec::new(),
            capacity,
        }
    }

    fn apply(&mut self, check: &mut Check, step: &Fact<'_>) {
        match step.get("op").text() {
            "batch" => self.batch(check, step),
            "remove" => self.remove(step),
            "copy_prefix" => self.copy_prefix(step),
            other => panic!("`{other}` is not an operation"),
        }
    }

    fn batch(&mut self, check: &mut Check, step: &Fact<'_>) {
        let parts = parts(step);
        for (seq, part) in &parts {
            self.start(*seq, &part.keys);
            let next = self.sequences[seq].keys.len();
            if (next..)
                .zip(&part.positions)
                .any(|(ours, theirs)| ours != *theirs)
            {
                check.lacks("positions with gaps");
            }
        }
        let batch: Vec<_> = parts
            .iter()
            .map(|(seq, part)| (self.sequences[seq].sequence, &part.keys[..]))
            .collect();
        // Every row is compared with the reference for exactly these keys.
        self.harness.step(&batch);
        let rows: usize = parts.values().map(|part| part.rows.len()).sum();
        let mut visible = vec![Vec::new(); rows];
        for (seq, part) in &parts {
            let replayed = self.sequences.get_mut(seq).expect("it has started");
            for (key, row) in part.keys.iter().zip(&part.rows) {
                replayed.keys.push(*key);
                visible[*row] = self.visible_range.of(&replayed.keys);
            }
            self.seen.extend(&part.keys);
            let tokens = self.harness.tokens(replayed.sequence).len();
            assert_eq!(tokens, replayed.keys.len(), "no more and no less");
        }
        if let Some(expect) = step.maybe("expect") {
            self.compare(check, &expect, visible);
        }
    }

    fn compare(&self, check: &mut Check, expect: &Fact<'_>, visible: Vec<Vec<TokenId>>) {
        let history = expect.get("history_keys").tokens();
        let stray = history.iter().find(|key| !self.seen.contains(key));
        assert_eq!(stray, None, "a key of the history was never there");
        let rows = expect.get("visible").items();
        assert_eq!(rows.len(), visible.len(), "one row for each token");
        for (mut motet, expected) in visible.into_iter().zip(rows) {
            let mut expected = visible_keys(&history, &expected);
            motet.sort_unstable();
            expected.sort_unstable();
            check.same("the visible tokens", motet, expected);
        }
    }

    /// Starts a sequence unless it has started, with memory for all tokens of the case.
    fn start(&mut self, seq: usize, prompt: &[TokenId]) {
        if !self.sequences.contains_key(&seq) {
            let tokens_max = self.capacity;
            let keys = self.copies.remove(&seq).unwrap_or_default();
            let prompt = [&keys[..], prompt].concat();
            let opened = self
                .harness
                .open_slot_with(&prompt, |open_slot| open_slot.tokens_max = tokens_max);
            assert_eq!(
                opened.cached,
                keys.len(),
                "copied tokens need not be evaluated"
            );
            let replayed = ReplayedSequence {
                sequence: opened.sequence,
                keys,
                exact: usize::MAX,
            };
            self.sequences.insert(seq, replayed);
        }
    }

    fn remove(&mut self, step: &Fact<'_>) {
        let replayed = self.sequences.get_mut(&step.get("seq").number());
        let replayed = replayed.expect("it has started");
        let end = step.get("end").number_or_null();
        let removed = step.get("begin").number()..end.unwrap_or(replayed.keys.len());
        let removal = self.harness.remove(replayed.sequence, removed.clone());
        removal.expect("full attention can be moved");
        let by = removed.len() as TokenId;
        if removed.end < replayed.keys.len() {
            replayed.exact = replayed.exact.min(removed.start);
        }
        assert!(
            removed.end <= replayed.keys.len(),
            "{removed:?} is of its keys"
        );
        replayed.keys.drain(removed.clone());
        for key in &mut replayed.keys[removed.start..] {
            *key = key
                .checked_sub(by)
                .expect("a key is not below its position");
            self.seen.push(*key);
        }
    }

    /// Ends all sequences: their state is cached, except for moved state.
    fn end(mut self) {
        for replayed in self.sequences.values() {
            self.harness.close(replayed.sequence);
        }
        let sequences = self.sequences.values();
        let exact =
            sequences.map(|replayed| &replayed.keys[..replayed.exact.min(replayed.keys.len())]);
        let exact: Vec<&[TokenId]> = exact.collect();
        for keys in &exact {
            assert_eq!(self.harness.resumable(keys), keys.len());
        }
        for node in self.harness.nodes() {
            let known = exact.iter().any(|keys| keys.starts_with(&node.spelt));
            assert!(known, "moved state is not shared: {node:?}");
        }
        self.harness.check_no_leak();
    }

    /// Seals the source up to that offset. The copy starts on the sealed state once its next
    /// tokens are known.
    fn copy_prefix(&mut self, step: &Fact<'_>) {
        let source = self.sequences.get(&step.get("src").number());
        let source = source.expect("the source has started");
        let len = step.get("len").within(0..=source.keys.len());
        let keys = source.keys[..len].to_vec();
        self.harness.share(source.sequence, len);
        self.copies.insert(step.get("dst").number(), keys);
    }
}

impl VisibleRange {
    /// The keys that the last one of these sees.
    fn of(self, keys: &[TokenId]) -> Vec<TokenId> {
        let (next, past) = keys.split_last().expect("a key");
        let read = match self {
            Self::All => past.len(),
            Self::Last(window) => tokens_read(window, past, &[*next]),
            Self::Chunk(chunk) => {
                let own = past.len() % chunk;
                let read = tokens_read(chunk, past, &[*next]);
                assert!(own <= read, "a window as long as a chunk sees the chunk");
                own
            }
        };
        keys[past.len() - read..].to_vec()
    }
}

fn oracle(layer: LayerKind) -> OracleConfig {
    OracleConfig {
        can_shift: true,
        tail_block_tokens: 1,
        ..OracleConfig::with_layers(&[layer])
    }
}

/// The keys that a row of the matrix sees: a list of flags, or a text of digits.
fn visible_keys(history: &[TokenId], row: &Fact<'_>) -> Vec<TokenId> {
    let flags: Vec<bool> = if row.is_text() {
        row.text().chars().map(|digit| digit == '1').collect()
    } else {
        row.items().iter().map(Fact::flag).collect()
    };
    assert_eq!(flags.len(), history.len(), "a flag for each key");
    let seen = history.iter().zip(flags).filter(|(_, seen)| *seen);
    seen.map(|(key, _)| *key).collect()
}

/// The batch by sequence, in the order of their rows.
fn parts(step: &Fact<'_>) -> BTreeMap<usize, BatchPart> {
    let keys = listed(&step.get("keys"));
    let positions = listed(&step.get("positions"));
    let seqs = if step.get("seqs").is_text() {
        // `0 x16` is sixteen times sequence 0.
        let text = step.get("seqs").text();
        let (seq, times) = text.split_once(" x").expect("a sequence, so many times");
        vec![number_in(seq, NUMBER_MAX); number_in(times, NUMBER_MAX)]
    } else {
        step.get("seqs").numbers()
    };
    assert_eq!((seqs.len(), positions.len()), (keys.len(), keys.len()));
    let mut parts = BTreeMap::new();
    for (row, seq) in seqs.into_iter().enumerate() {
        let part: &mut BatchPart = parts.entry(seq).or_insert_with(BatchPart::new);
        part.keys.push(keys[row] as TokenId);
        part.positions.push(positions[row]);
        part.rows.push(row);
    }
    parts
}

/// Numbers, as a list or as `first..last`.
fn listed(fact: &Fact<'_>) -> Vec<usize> {
    if !fact.is_text() {
        return fact.numbers();
    }
    let (first, last) = fact.text().split_once("..").expect("a range");
    let [first, last] = [first, last].map(|end| number_in(end, NUMBER_MAX));
    (first..=last).collect()
}

impl BatchPart {
    fn new() -> Self {
        Self {
            keys: Vec::new(),
            positions: Vec::new(),
            rows: Vec::new(),
        }
    }
}

/// Offsets at which a sequence with a window can resume. ollama retains some tokens more than
/// the window, so that a sequence can return to the last few offsets. Motet seals the state at
/// requested offsets, before the last token of a prompt, and at the end.
fn can_resume(check: &mut Check, case: &Fact<'_>) {
    let init = case.get("init");
    let (theirs, capacity) = (init.get("window").number(), init.get("capacity").number());
    let steps = case.get("steps").items();
    let (ask, fills) = steps.split_last().expect("steps");
    assert_eq!(ask.get("seq").number(), 0, "there is one sequence");
    let mut keys: Vec<TokenId> = Vec::new();
    for fill in fills {
        assert_eq!(fill.get("op").text(), "batch");
        let parts = parts(fill);
        let own = parts.get(&0).expect("it is sequence 0's");
        assert!(
            parts.len() == 1 && own.positions.first() == Some(&keys.len()),
            "no gaps"
        );
        keys.extend(&own.keys);
    }
    assert!((1..=capacity).contains(&keys.len()), "it fits");
    let fields = ask.get("expect").fields();
    let expected: BTreeMap<usize, bool> = fields
        .iter()
        .map(|(at, can)| (number_in(at, NUMBER_MAX), can.flag()))
        .collect();
    let with = |can: &dyn Fn(usize) -> bool| -> BTreeMap<usize, bool> {
        expected.keys().map(|at| (*at, can(*at))).collect()
    };
    let resumes = |asked: &[usize]| {
        let mut harness = CacheHarness::of(oracle(Window { tokens: theirs + 1 }), |_| {});
        harness.converse(&keys, asked);
        with(&|at| harness.can_resume(&keys, at))
    };
    // By default, Motet seals the state at the end.
    let last = keys.len() - 1;
    let sealed = with(&|at| at == 0 || at > last);
    check.same_or_instead("by itself", resumes(&[]), sealed, expected.clone());
    // The past that ollama retains has to hold a window before these.
    let retained = last.saturating_sub(case.get("swa_memory_effective").number());
    let held = |at: usize| at.saturating_sub(theirs) >= retained && at <= last + 1;
    check.theirs("retained", with(&held), expected.clone());
    let expected_offsets: Vec<usize> = expected.keys().copied().filter(|at| held(*at)).collect();
    let mut asked = resumes(&expected_offsets);
    if let Some(from_nothing) = asked.get_mut(&0) {
        assert!(*from_nothing, "it starts without cached tokens");
        *from_nothing = expected[&0];
    }
    check.same("at the requested offset", asked, expected);
}
