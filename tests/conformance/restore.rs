//! Restore points of recurrent layers.
//!
//! ollama keeps a ring of positions at which a sequence's state was saved. Motet seals the
//! state at restore points, and the trie keeps them until their bytes are needed. The state
//! after position `p` is that of the first `p + 1` tokens.

use motet::TokenId;
use motet::cache::CacheError;
use motet::model::LayerKind::Recurrent;
use motet::model::oracle::OracleConfig;
use motet::model::{Model, ModelError};
use motet_core::cache::Effect;
use motet_model::{Packer, Segment};

use crate::cases::{Fact, NUMBER_MAX};
use crate::check::Check;
use crate::harness::{CacheHarness, SlotOpened};
use crate::segments::{oracle, packed, sealed};
use crate::suites::Known;

/// Most layers of a model.
const LAYERS_MAX: usize = 64;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "kvcache.recurrent_checkpoint_store",
        own_cases: 5,
        beside: &[],
        shapes: &[(&["capacity", "ops"], ring)],
    },
    Known {
        suite: "kvcache.recurrent_restore",
        own_cases: 4,
        beside: &[],
        shapes: &[
            (&["checkpoints", "target"], prepare),
            (&["layers_needing", "layers_present", "remove"], incomplete),
            (&["checkpoints", "pending_restore", "remove"], remove_middle),
            (&["state_size", "asked_dims"], shape),
        ],
    },
];

/// A recurrent model's sequence, and the positions at which its state was requested.
struct Ring {
    harness: CacheHarness,
    live: SlotOpened,
    tokens: Vec<TokenId>,
    /// All recorded positions, including those that a ring may have forgotten.
    recorded: Vec<usize>,
    /// The position at which the sequence branched off without a saved state.
    branch: Option<usize>,
    /// The entries of a ring with the case's capacity.
    entries: Vec<Option<usize>>,
}

impl Ring {
    /// Creates a sequence that will record these positions, and continues after the last one.
    fn new(positions: &[usize], last: usize, capacity: usize) -> Self {
        let mut harness = CacheHarness::new(&[Recurrent]);
        let tokens: Vec<TokenId> = (1..=last as TokenId + 20).collect();
        let live = harness.open_slot(&tokens, &points(positions, tokens.len()));
        Self {
            harness,
            live,
            tokens,
            recorded: Vec::new(),
            branch: None,
            entries: vec![None; capacity],
        }
    }

    /// Records a position and returns its index in a ring.
    fn record(&mut self, position: usize) -> usize {
        let computed = self.harness.tokens(self.live.sequence).len();
        assert!(
            (computed..self.tokens.len() + 1).contains(&(position + 1)),
            "position {position} is recorded after {computed} tokens; expected ascending positions"
        );
        let next = &self.tokens[computed..=position];
        self.harness.evaluate(self.live.sequence, next);
        let passed = self.branch.take_if(|branch| *branch <= position);
        self.recorded.extend(passed.filter(|at| *at < position));
        self.recorded.push(position);
        // The first free entry, or else the oldest.
        let entries = self.entries.iter().enumerate();
        let ring_index = entries.min_by_key(|(_, entry)| **entry);
        let (ring_index, _) = ring_index.expect("a ring has capacity");
        self.entries[ring_index] = Some(position);
        ring_index
    }

    /// The restore points on the sequence's path, as positions.
    fn restorable(&self) -> Vec<usize> {
        let ends = 1..=self.tokens.len();
        let ends = ends.filter(|at| self.harness.can_resume(&self.tokens, *at));
        ends.map(|at| at - 1).collect()
    }

    /// The deepest restore point of a sequence that differs at `target`.
    fn best(&self, target: usize) -> Option<usize> {
        let known = target.min(self.tokens.len());
        self.harness.resumable(&self.tokens[..known]).checked_sub(1)
    }

    /// Branches off after this position: the sequence restarts, shares the tokens before, and
    /// will be asked to record these later positions.
    fn prune_after(&mut self, position: usize, later: &[usize]) {
        let computed = self.harness.tokens(self.live.sequence).len();
        self.harness.close(self.live.sequence);
        let others = self.tokens.len() as TokenId;
        for token in &mut self.tokens[position + 1..] {
            *token += others;
        }
        let points = points(later, self.tokens.len());
        self.live = self.harness.open_slot(&self.tokens, &points);
        self.recorded.retain(|at| *at <= position);
        // Motet seals a prompt where it branches off.
        let branches = position < computed && self.recorded.last() != Some(&position);
        self.branch = branches.then_some(position);
        for entry in &mut self.entries {
            *entry = entry.filter(|at| *at <= position);
        }
    }
}

/// Offsets of the state after these positions, and of the end. The end is not reached, so that
/// no state is taken before the last token.
fn points(positions: &[usize], end: usize) -> Vec<usize> {
    positions.iter().map(|at| at + 1).chain([end]).collect()
}

/// Positions that are recorded before the sequence branches off.
fn recorded_next(ops: &[Fact<'_>]) -> Vec<usize> {
    let is = |op: &Fact<'_>, kind: &str| op.get("op").text() == kind;
    let until = ops.iter().take_while(|op| !is(op, "prune_after"));
    let records = until.filter(|op| is(op, "record"));
    records.map(|op| op.get("pos").number()).collect()
}

fn ring(check: &mut Check, case: &Fact<'_>) {
    let ops = case.get("ops").items();
    let all = ops
        .iter()
        .filter_map(|op| op.maybe("pos").or_else(|| op.maybe("target")));
    let last = all.map(|at| at.number()).max().expect("some position");
    let mut ring = Ring::new(&recorded_next(&ops), last, case.get("capacity").number());
    for (at, op) in ops.iter().enumerate() {
        match op.get("op").text() {
            "record" => {
                let before = ring.restorable().len();
                let own_rule = ring.recorded.len();
                let ring_index = ring.record(op.get("pos").number());
                if let Some(index) = op.maybe("expect_index") {
                    check.theirs("recorded at", ring_index, index.number());
                    check.same_or_instead("recorded before", before, own_rule, index.number());
                }
            }
            "best" => {
                let target = op.get("target").number();
                let expected = op.get("expect").number_or_null();
                let before = |at: &usize| *at < target;
                let in_ring = ring.entries.iter().copied().flatten().filter(before);
                check.theirs("best", in_ring.max(), expected);
                // A ring keeps only its latest records.
                let recorded = ring.recorded.iter().copied().filter(before).max();
                check.same_or_instead("best", ring.best(target), recorded, expected);
            }
            "prune_after" => {
                let later = recorded_next(&ops[at + 1..]);
                ring.prune_after(op.get("pos").number(), &later);
            }
            "state" => state(check, &ring, &op.get("expect")),
            other => panic!("`{other}` is not an operation"),
        }
    }
    ring.harness.core.check_integrity();
}

fn state(check: &mut Check, ring: &Ring, expect: &Fact<'_>) {
    let restorable = ring.restorable();
    let recorded = &ring.recorded;
    for (field, expected) in expect.fields() {
        match field {
            "size" => {
                let in_ring = ring.entries.iter().flatten().count();
                check.theirs("size", in_ring, expected.number());
                let (size, own_rule) = (restorable.len(), recorded.len());
                check.same_or_instead("size", size, own_rule, expected.number());
            }
            "last_pos" => {
                let last = restorable.last().map_or(-1, |at| *at as i64);
                check.same("last", last, expected.integer());
            }
            // The ring has overwritten its first entry; Motet has both.
            "entry0" => {
                let expected = expected.number();
                let (Some(first), Some(own_rule)) = (restorable.first(), recorded.first()) else {
                    panic!("`entry0`: no position was recorded");
                };
                check.theirs(
                    "first",
                    ring.entries.first().copied().flatten(),
                    Some(expected),
                );
                check.same_or_instead("first", *first, *own_rule, expected);
                assert!(restorable.contains(&expected), "{expected} is there too");
            }
            _ => panic!("the field `{field}` of a state is unknown"),
        }
    }
}

/// Branches off at `target`, from the deepest state before it.
fn prepare(check: &mut Check, case: &Fact<'_>) {
    let checkpoints = case.get("checkpoints").numbers();
    let target = case.get("target").within(1..=NUMBER_MAX);
    let last = checkpoints.iter().copied().max().unwrap_or(0).max(target);
    let mut ring = Ring::new(&checkpoints, last, checkpoints.len());
    for at in &checkpoints {
        ring.record(*at);
    }
    ring.prune_after(target - 1, &[]);
    let expect = case.get("expect");
    check.same("found", ring.live.cached > 0, expect.get("ok").flag());
    if let Some(retained) = expect.maybe("tokens_kept") {
        check.same("kept", ring.live.cached, retained.number());
    }
    if let Some(restored) = expect.maybe("pending_checkpoint") {
        let last = ring.restorable().last().copied();
        check.same("restored", last, restored.number_or_null());
    }
    // Tokens evaluated from there on give the same rows as without a cache.
    let rest = ring.tokens[ring.live.cached..].to_vec();
    ring.harness.evaluate(ring.live.sequence, &rest);
}

/// Every segment has the state of all layers or of none, and tokens are never removed from
/// under a state. Where one layer's state is missing, no sequence resumes.
fn incomplete(check: &mut Check, case: &Fact<'_>) {
    let layers = case.get("layers_needing").texts();
    let present = case.get("layers_present").texts();
    let incomplete = present.len() < layers.len() && present.iter().all(|p| layers.contains(p));
    assert!(incomplete, "the state of some layer is missing");
    let removed = case.get("remove").items();
    let [from, end] = &removed[..] else {
        case.get("remove").is_no("list of a start and null");
    };
    let from = from.within(1..=NUMBER_MAX);
    assert!(end.is_null(), "all later tokens are removed");
    let checkpoints = case.get("checkpoints").numbers();
    assert!(
        checkpoints.contains(&(from - 1)),
        "its state would be restored"
    );
    let mut harness = CacheHarness::new(&vec![Recurrent; layers.len()]);
    let tokens: Vec<TokenId> = (1..from as TokenId + 10).collect();
    // The incomplete state of the case is absent here: state is taken before the last token only.
    let last = tokens.len() - 1;
    let opened = harness.open_slot(&tokens, &[last]);
    harness.evaluate(opened.sequence, &tokens);
    let rejected = harness.remove(opened.sequence, from..tokens.len());
    assert_eq!(rejected, Err(CacheError::CannotMove));
    for offset in 1..tokens.len() {
        assert_eq!(harness.can_resume(&tokens, offset), offset == last);
    }
    // A sequence can return to a position whose state was taken as a whole.
    assert_eq!(harness.remove(opened.sequence, last..tokens.len()), Ok(()));
    check.prose(&case.get("expect").get("error"), "not_supported");
}

/// Recurrent state cannot be moved: the sequence restarts at the end of its unchanged tokens.
fn remove_middle(check: &mut Check, case: &Fact<'_>) {
    let checkpoints = case.get("checkpoints").numbers();
    let pending = case.get("pending_restore").number_or_null();
    assert!(
        pending.is_none_or(|at| checkpoints.contains(&at)),
        "it is a checkpoint"
    );
    let removed = case.get("remove").range();
    let last = checkpoints
        .iter()
        .copied()
        .max()
        .unwrap_or(0)
        .max(removed.end);
    let mut ring = Ring::new(&checkpoints, last, checkpoints.len());
    for at in &checkpoints {
        ring.record(*at);
    }
    let computed = ring.harness.tokens(ring.live.sequence).len();
    if computed <= removed.end {
        let next = &ring.tokens[computed..=removed.end];
        ring.harness.evaluate(ring.live.sequence, next);
    }
    let rejected = ring.harness.remove(ring.live.sequence, removed.clone());
    assert_eq!(rejected, Err(CacheError::CannotMove));
    ring.harness.close(ring.live.sequence);
    ring.tokens.drain(removed.clone());
    let (sequence, effects) = ring.harness.try_open_slot(&ring.tokens, |_| {});
    let shifted = checkpoints.iter().filter_map(|at| match *at {
        at if at < removed.start => Some(at),
        at => at
            .checked_sub(removed.end)
            .map(|after| after + removed.start),
    });
    let shifted: Vec<usize> = shifted.collect();
    let stay = checkpoints.iter().copied().filter(|at| *at < removed.start);
    let expect = case.get("expect");
    let expected = expect.get("positions_sorted").numbers();
    check.theirs("restorable", shifted, expected.clone());
    let restorable = ring.restorable();
    check.same_or_instead("restorable", restorable.clone(), stay.collect(), expected);
    // State is restored when the slot is opened: the sequence waits for nothing.
    let waits = effects.iter().find_map(|effect| match effect {
        Effect::Deferred { tokens, .. } => Some(*tokens),
        _ => None,
    });
    let expected = expect.get("pending_restore").number_or_null();
    check.same("still to restore", waits, expected);
    let opened = ring.harness.opened(sequence).expect("it has a slot");
    assert_eq!(opened.cached.checked_sub(1), restorable.last().copied());
    let rest = ring.tokens[opened.cached..].to_vec();
    ring.harness.evaluate(sequence, &rest);
}

/// State of another shape is rejected where it could be imported: from bytes.
fn shape(check: &mut Check, case: &Fact<'_>) {
    let asked = case.get("asked_dims").items();
    let asked = asked
        .first()
        .expect("`asked_dims` has a first")
        .within(1..=LAYERS_MAX);
    let of = |layers: usize| oracle(&OracleConfig::with_layers(&vec![Recurrent; layers]));
    let mut of_this_shape = of(case.get("state_size").within(1..=LAYERS_MAX));
    let segment = sealed(&mut of_this_shape, &[1, 2, 3], 0..3);
    let bytes = packed(&mut of_this_shape, &segment);
    let other = of(asked);
    assert_ne!(other.packer().identity(), of_this_shape.packer().identity());
    let rejected = other.packer().unpack(segment.segment_size(), &bytes);
    assert!(
        matches!(rejected, Err(ModelError::Import(_))),
        "{rejected:?}"
    );
    check.prose(&case.get("expect").get("error"), "invalid_shape");
}
