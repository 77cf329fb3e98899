//! Slots: whose conversation a newcomer continues, and whose place it takes.
//!
//! Motet has no fixed number of slots. A slot of ollama's that is not in use is a
//! conversation that is over and cached; one that was never used is room, for which a
//! stranger's conversation, older than all, stands here. The slot that is *chosen* is
//! the one that a newcomer continues to its end, or else the first to be evicted.

use motet::TokenId;
use motet::cache::{CacheError, Effect, Salt, shift};
use motet::config::SlotChoice;
use motet::model::LayerKind::Full;
use motet::model::oracle::OracleConfig;

use crate::Known;
use crate::cases::Fact;
use crate::check::Check;
use crate::house::{Begun, House};
use crate::pieces::NEXT;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "input_cache.find_slot",
        cases: &[
            ("Empty", find),
            ("Extend", find),
            ("Fork", find),
            ("Evict", find),
        ],
    },
    Known {
        suite: "input_cache.load_slot",
        cases: &[
            ("Basic cache hit - single user", load),
            ("Basic cache hit - multi user", load),
            ("No available slots", load_beside),
        ],
    },
    Known {
        suite: "input_cache.shift_slot",
        cases: &[
            ("Normal shift", shift_slot),
            ("Cache removal fails", reprocess),
            (
                "keep >= ctx is an error (code rule, no upstream test)",
                keep_all,
            ),
        ],
    },
];

/// Tokens of no case.
const STRANGER: [TokenId; 2] = [900, 901];

/// Who is no concern of anybody else.
fn stranger() -> Salt {
    Salt::new("a stranger")
}

struct OldSlot {
    id: usize,
    inputs: Vec<TokenId>,
    age_s: Option<usize>,
}

fn old_slots(case: &Fact<'_>) -> Vec<OldSlot> {
    let slot = |slot: &Fact<'_>| OldSlot {
        id: slot.get("id").number(),
        inputs: slot.get("inputs").tokens(),
        age_s: slot.get("last_used_age_s").number_or_null(),
    };
    case.get("slots").items().iter().map(slot).collect()
}

/// A house in which these conversations were held, the oldest first.
fn house(slots: &[OldSlot], slot_choice: SlotChoice) -> House {
    let mut house = House::with(&[Full], |config| config.slot_choice = slot_choice);
    if slots.iter().any(|slot| slot.inputs.is_empty()) {
        let begun = house.begin_with(&STRANGER, |begin| begin.salt = stranger());
        house.feed(begun.sequence, &STRANGER);
        house.close(begun.sequence);
    }
    let mut held: Vec<&OldSlot> = slots
        .iter()
        .filter(|slot| !slot.inputs.is_empty())
        .collect();
    held.sort_by_key(|slot| std::cmp::Reverse(slot.age_s));
    for slot in held {
        house.converse(&slot.inputs, &[]);
    }
    house
}

/// The slot that a newcomer with this prompt takes, and what it begun with. It goes on
/// with one token of its own, since one is always left to evaluate.
fn choose(house: &mut House, slots: &[OldSlot], prompt: &[TokenId]) -> (usize, Begun) {
    let newcomer = [prompt, &[NEXT]].concat();
    let begun = house.begin(&newcomer, &[]);
    let whole =
        |slot: &&OldSlot| !slot.inputs.is_empty() && slot.inputs == newcomer[..begun.cached];
    let continued = slots.iter().find(whole).map(|slot| slot.id);
    house.feed(begun.sequence, &newcomer[begun.cached..]);
    let chosen = continued.unwrap_or_else(|| {
        house.evict_one();
        let stranger = house
            .core
            .can_resume(&stranger(), &STRANGER, STRANGER.len());
        let lost = |slot: &&OldSlot| house.matched(&slot.inputs) < slot.inputs.len();
        let empty = slots.iter().find(|slot| slot.inputs.is_empty());
        match empty {
            Some(empty) if !stranger => empty.id,
            _ => slots.iter().find(lost).expect("somebody gave way").id,
        }
    });
    (chosen, begun)
}

fn find(check: &mut Check, case: &Fact<'_>) {
    let (slots, prompt) = (old_slots(case), case.get("prompt").tokens());
    let policies = [("longest", SlotChoice::Longest), ("best", SlotChoice::Best)];
    for (name, policy) in policies {
        let expect = case.get("expect").get(name);
        let mut house = house(&slots, policy);
        let (chosen, begun) = choose(&mut house, &slots, &prompt);
        check.same("shared", begun.cached, expect.get("len").number());
        // Without anything in common, `Longest` of ollama's takes the first slot, and
        // Motet's lets go who is last in the order, as `Best` does.
        let beside = slots.iter().all(|slot| !slot.inputs.is_empty()) && begun.cached == 0;
        let oldest = slots.iter().max_by_key(|slot| slot.age_s).expect("slots");
        let instead = (beside && policy == SlotChoice::Longest).then_some(oldest.id);
        check.same_or_instead("slot", chosen, instead, expect.get("slot").number());
        let fork = case.get("derived").get("best_fork");
        if policy == SlotChoice::Best && !fork.is_null() {
            check.same("source", fork.get("src").number(), 0);
            let source = &slots[fork.get("src").number()].inputs;
            assert_eq!(house.matched(source), source.len(), "the source stays");
            check.same("forked", begun.cached, fork.get("len").number());
        }
    }
}

fn policy(case: &Fact<'_>) -> SlotChoice {
    match case.get("multi_user").flag() {
        true => SlotChoice::Best,
        false => SlotChoice::Longest,
    }
}

fn load(check: &mut Check, case: &Fact<'_>) {
    let (slots, prompt) = (old_slots(case), case.get("prompt").tokens());
    let expect = case.get("expect");
    let mut house = house(&slots, policy(case));
    let begun = house.begin(&prompt, &[]);
    check.same("error", false, expect.get("error").flag());
    let remaining = prompt.len() - begun.cached;
    check.same("remaining", remaining, expect.get("remaining_len").number());
    let continued = slots
        .iter()
        .find(|slot| slot.inputs == prompt[..begun.cached]);
    let continued = continued.map(|slot| slot.id);
    check.same("slot", continued, Some(expect.get("slot").number()));
    let nodes = house.nodes();
    let used = nodes
        .iter()
        .find(|node| node.spelt == prompt[..begun.cached]);
    let in_use = used.is_some_and(|node| node.view.holders > 0);
    check.same("in use", in_use, expect.get("in_use_after").flag());
}

/// All slots are in use: Motet makes another, which shares what is computed already.
/// What it may run out of is room.
fn load_beside(check: &mut Check, case: &Fact<'_>) {
    let (slots, prompt) = (old_slots(case), case.get("prompt").tokens());
    let mut house = House::with(&[Full], |config| config.slot_choice = policy(case));
    for slot in &slots {
        let begun = house.begin(&[&slot.inputs[..], &[NEXT]].concat(), &[]);
        house.feed(begun.sequence, &slot.inputs);
    }
    let (newcomer, effects) = house.try_begin(&prompt, |begin| begin.tokens_max = 8);
    let error = effects.iter().any(|e| matches!(e, Effect::NoRoom { .. }));
    check.instead(
        "error",
        error,
        false,
        case.get("expect").get("error").flag(),
    );
    let leader = match effects[..] {
        [
            Effect::Waits { tokens, .. },
            Effect::Checkpoint { sequence, at },
        ] => {
            assert_eq!((tokens, at), (slots[0].inputs.len(), tokens));
            sequence
        }
        ref others => panic!("the newcomer waits for who computes the same: {others:?}"),
    };
    house.reach(leader);
    let begun = house.begun(newcomer).expect("it has begun");
    assert_eq!(
        begun.cached,
        slots[0].inputs.len(),
        "what both share is computed once"
    );
    house.feed(newcomer, &prompt[begun.cached..]);
    let most = house.oracle.context_tokens_max * 1000;
    let (_, effects) = house.try_begin(&STRANGER, |begin| begin.tokens_max = most);
    assert!(
        matches!(effects[..], [Effect::NoRoom { .. }]),
        "{effects:?}"
    );
}

/// A slot that is full.
fn full_slot(case: &Fact<'_>, can_shift: bool) -> (House, Begun, Vec<TokenId>) {
    let context_tokens_max = case.get("num_ctx").number();
    let oracle = OracleConfig {
        context_tokens_max,
        can_shift,
        ..OracleConfig::default()
    };
    let mut house = House::of(oracle, |_| {});
    let inputs = case.get("inputs").tokens();
    let begun = house.begin_with(&inputs, |begin| {
        begin.keep = Some(case.get("num_keep").number());
        begin.tokens_max = context_tokens_max;
    });
    house.feed(begun.sequence, &inputs);
    (house, begun, inputs)
}

fn shift_slot(check: &mut Check, case: &Fact<'_>) {
    let (mut house, begun, inputs) = full_slot(case, true);
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let discard = shift::discard(context, keep, inputs.len()).expect("`keep` is in the context");
    let removed = keep..keep + discard;
    let result = house.remove(begun.sequence, removed.clone());
    check.same(
        "error",
        result.is_err(),
        !case.get("expect").get("error").is_null(),
    );
    let after = house.tokens(begun.sequence).to_vec();
    let expected = case.get("expect").get("slot_len_after").number();
    check.same("length", after.len(), expected);
    let derived = case.get("derived");
    check.same("tokens", after, derived.get("slot_inputs_after").tokens());
    let range = derived.get("backend_remove_range").numbers();
    check.same("removed", vec![removed.start, removed.end], range);
    // What follows is computed from what was moved.
    house.feed(begun.sequence, &[NEXT]);
}

/// The model cannot move state: the slot is given up, and what stays is begun anew.
fn reprocess(check: &mut Check, case: &Fact<'_>) {
    assert!(case.get("backend_remove_fails").flag());
    let (mut house, begun, inputs) = full_slot(case, false);
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let discard = shift::discard(context, keep, inputs.len()).expect("`keep` is in the context");
    let result = house.remove(begun.sequence, keep..keep + discard);
    assert_eq!(result, Err(CacheError::CannotMove));
    let expect = case.get("expect");
    check.prose(&expect.get("error"), "reprocess_inputs");
    house.close(begun.sequence);
    let left = house.begun(begun.sequence).map_or(0, |begun| begun.cached);
    check.same("length", left, expect.get("slot_len_after").number());
    let stays = [&inputs[..keep], &inputs[keep + discard..]].concat();
    let derived = case.get("derived").get("inputs_to_reprocess").tokens();
    check.same("what stays", stays.clone(), derived);
    let again = house.begin(&stays, &[]);
    assert_eq!(again.cached, keep, "what is kept is still cached");
    house.feed(again.sequence, &stays[again.cached..]);
}

fn keep_all(check: &mut Check, case: &Fact<'_>) {
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let refused = shift::discard(context, keep, case.get("inputs").items().len());
    let too_large = CacheError::KeepTooLarge {
        keep,
        context_tokens: context,
    };
    assert_eq!(refused, Err(too_large));
    check.prose(&case.get("expect").get("error"), "keep_exceeds_context");
}
