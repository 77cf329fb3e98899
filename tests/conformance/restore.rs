//! Restore points of recurrent layers.
//!
//! ollama keeps a ring of positions at which a sequence's state was saved; Motet seals
//! the state at restore points, and the trie keeps them until their bytes are wanted.
//! The state after position `p` is that of the first `p + 1` tokens.

use motet::TokenId;
use motet::cache::CacheError;
use motet::model::LayerKind::Recurrent;
use motet::model::oracle::OracleConfig;
use motet::model::{Model, ModelError, Packer, Segment};

use crate::Known;
use crate::cases::Fact;
use crate::check::Check;
use crate::house::{Begun, House};
use crate::pieces::{oracle, packed, sealed};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "kvcache.recurrent_checkpoint_store",
        cases: &[
            ("BestIndex", ring),
            ("PruneAfter", ring),
            ("RingBufferWrapAround", ring),
            ("FullCapacity", ring),
            ("PruneAfterAll", ring),
        ],
    },
    Known {
        suite: "kvcache.recurrent_restore",
        cases: &[
            ("PrepareRestore", prepare),
            ("Incomplete checkpoint", incomplete),
            (
                "Remove middle shifts checkpoints and clears pending restore",
                remove_middle,
            ),
            ("Shape validation", shape),
        ],
    },
];

const TOKENS: usize = 120;

/// A recurrent model's sequence, and where its state was asked for.
struct Ring {
    house: House,
    live: Begun,
    tokens: Vec<TokenId>,
    /// Positions that were recorded, whatever a ring may have forgotten.
    recorded: Vec<usize>,
}

impl Ring {
    /// A sequence that will be asked to record these positions.
    fn new(positions: &[usize]) -> Self {
        let mut house = House::new(&[Recurrent]);
        let tokens: Vec<TokenId> = (1..=TOKENS as TokenId).collect();
        let points: Vec<usize> = positions.iter().map(|at| at + 1).collect();
        let live = house.begin(&tokens, &points);
        let recorded = Vec::new();
        Self {
            house,
            live,
            tokens,
            recorded,
        }
    }

    fn record(&mut self, position: usize) {
        let computed = self.house.tokens(self.live.sequence).len();
        let next = &self.tokens[computed..=position];
        self.house.feed(self.live.sequence, next);
        self.recorded.push(position);
    }

    /// The restore points on the sequence's path, as positions.
    fn restorable(&self) -> Vec<usize> {
        let ends = 1..=self.tokens.len();
        let ends = ends.filter(|at| self.house.can_resume(&self.tokens, *at));
        ends.map(|at| at - 1).collect()
    }

    /// The deepest one that a sequence can start from which differs at `target`.
    fn best(&self, target: usize) -> Option<usize> {
        self.house
            .resumable(&self.tokens[..target.min(TOKENS)])
            .checked_sub(1)
    }

    /// The sequence goes another way after this position: it begins anew, and shares
    /// what came before.
    fn prune_after(&mut self, position: usize) {
        self.house.close(self.live.sequence);
        for token in &mut self.tokens[position + 1..] {
            *token += TOKENS as TokenId;
        }
        self.live = self.house.begin(&self.tokens, &[TOKENS]);
    }
}

fn ring(check: &mut Check, case: &Fact<'_>) {
    let capacity = case.get("capacity").number();
    let ops = case.get("ops").items();
    let records = ops.iter().filter(|op| op.get("op").text() == "record");
    let positions: Vec<usize> = records.map(|op| op.get("pos").number()).collect();
    let mut ring = Ring::new(&positions);
    for op in &ops {
        match op.get("op").text() {
            "record" => {
                if let Some(index) = op.maybe("expect_index") {
                    check.same("recorded before", ring.restorable().len(), index.number());
                }
                ring.record(op.get("pos").number());
            }
            "best" => {
                let target = op.get("target").number();
                let expected = op.get("expect").number_or_null();
                // A ring has forgotten what was recorded before its last ones.
                let known = ring.recorded.iter().filter(|at| **at < target);
                let forgotten = known.copied().max().filter(|_| expected.is_none());
                let forgotten = forgotten.filter(|_| ring.recorded.len() > capacity);
                let best = ring.best(target);
                check.same_or_instead("best", best, forgotten.map(Some), expected);
            }
            "prune_after" => ring.prune_after(op.get("pos").number()),
            "state" => state(check, &ring, &op.get("expect")),
            other => panic!("`{other}` is no operation"),
        }
    }
    ring.house.core.check_integrity();
}

fn state(check: &mut Check, ring: &Ring, expect: &Fact<'_>) {
    let restorable = ring.restorable();
    for (field, expected) in expect.fields() {
        match field {
            "size" => check.same("size", restorable.len(), expected.number()),
            "last_pos" => {
                let last = restorable.last().map_or(-1, |at| *at as i64);
                check.same("last", last, expected.integer());
            }
            // Where the ring has overwritten its first entry, Motet has both.
            "entry0" => {
                let first = restorable[0];
                check.instead("first", first, ring.recorded[0], expected.number());
                let last = *restorable.last().expect("there are some");
                check.same("last", last, expected.number());
            }
            other => panic!("`{other}` is nothing that a ring has"),
        }
    }
}

fn prepare(check: &mut Check, case: &Fact<'_>) {
    let checkpoints = case.get("checkpoints").numbers();
    let mut ring = Ring::new(&checkpoints);
    checkpoints.iter().for_each(|at| ring.record(*at));
    ring.prune_after(case.get("target").number() - 1);
    let expect = case.get("expect");
    check.same("found", ring.live.cached > 0, expect.get("ok").flag());
    check.same("kept", ring.live.cached, expect.get("tokens_kept").number());
    let last = ring.restorable().last().copied();
    check.same(
        "restored",
        last,
        expect.get("pending_checkpoint").number_or_null(),
    );
    // And what is evaluated from there on is what it is without a cache.
    let rest = ring.tokens[ring.live.cached..].to_vec();
    ring.house.feed(ring.live.sequence, &rest);
}

/// Every segment has the state of all layers or of none, and tokens are never taken out
/// from under a state: where one layer's is missing, nobody resumes.
fn incomplete(check: &mut Check, case: &Fact<'_>) {
    let layers = case.get("layers_needing").items().len();
    assert!(case.get("layers_present").items().len() < layers);
    let mut house = House::new(&vec![Recurrent; layers]);
    let tokens: Vec<TokenId> = (1..20).collect();
    // So what is incomplete there is nothing here: no state is taken.
    let begun = house.begin(&tokens, &[]);
    house.feed(begun.sequence, &tokens);
    let from = case.get("remove").items()[0].number();
    let refused = house.remove(begun.sequence, from..tokens.len());
    assert_eq!(refused, Err(CacheError::CannotMove));
    let last = tokens.len() - 1;
    for offset in 1..tokens.len() {
        assert_eq!(house.can_resume(&tokens, offset), offset == last);
    }
    // Where it was taken, whole, one can go back.
    assert_eq!(house.remove(begun.sequence, last..tokens.len()), Ok(()));
    check.prose(&case.get("expect").get("error"), "not_supported");
}

/// Recurrent state cannot be moved: the sequence begins anew where its tokens are
/// still what they were.
fn remove_middle(check: &mut Check, case: &Fact<'_>) {
    let checkpoints = case.get("checkpoints").numbers();
    let mut ring = Ring::new(&checkpoints);
    checkpoints.iter().for_each(|at| ring.record(*at));
    let removed = case.get("remove").numbers();
    let refused = ring
        .house
        .remove(ring.live.sequence, removed[0]..removed[1]);
    assert_eq!(refused, Err(CacheError::CannotMove));
    ring.house.close(ring.live.sequence);
    ring.tokens.drain(removed[0]..removed[1]);
    ring.live = ring.house.begin(&ring.tokens, &[]);
    let shifted = checkpoints.iter().filter_map(|at| match *at {
        at if at < removed[0] => Some(at),
        at => at.checked_sub(removed[1]).map(|after| after + removed[0]),
    });
    let shifted: Vec<usize> = shifted.collect();
    let stay = checkpoints.iter().copied().filter(|at| *at < removed[0]);
    let expect = case.get("expect");
    let expected = expect.get("positions_sorted").numbers();
    check.theirs("restorable", shifted, expected.clone());
    let restorable = ring.restorable();
    check.instead("restorable", restorable.clone(), stay.collect(), expected);
    assert_eq!(Some(ring.live.cached - 1), restorable.last().copied());
    let waiting = None;
    check.same(
        "still to restore",
        waiting,
        expect.get("pending_restore").number_or_null(),
    );
    let rest = ring.tokens[ring.live.cached..].to_vec();
    ring.house.feed(ring.live.sequence, &rest);
}

/// State of another shape is refused where it could come in: from bytes.
fn shape(check: &mut Check, case: &Fact<'_>) {
    let asked = case.get("asked_dims").numbers()[0];
    let of = |layers: usize| oracle(&OracleConfig::with_layers(&vec![Recurrent; layers]));
    let mut of_this_shape = of(case.get("state_size").number());
    let segment = sealed(&mut of_this_shape, &[1, 2, 3], 0..3);
    let bytes = packed(&mut of_this_shape, &segment);
    let other = of(asked);
    assert_ne!(other.spec().identity, of_this_shape.spec().identity);
    let refused = other.packer().unpack(segment.extent(), &bytes);
    assert!(matches!(refused, Err(ModelError::Import(_))), "{refused:?}");
    check.prose(&case.get("expect").get("error"), "invalid_shape");
}
