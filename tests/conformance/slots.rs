//! Slots: which conversation a new sequence continues, and which one it replaces.
//!
//! Motet has no fixed number of slots. An idle slot of ollama corresponds to a finished, cached
//! conversation. A slot that was never used corresponds to free memory; here an unrelated
//! conversation, older than all others, takes its place. The *chosen* slot is the one that a
//! new sequence continues to its end, or else the first to be evicted.

use motet::TokenId;
use motet::cache::{CacheError, PrefixKey, Salt};
use motet::config::SlotChoice;
use motet::model::LayerKind::Full;
use motet::model::oracle::OracleConfig;
use motet_core::cache::{Effect, shift};
use motet_protocol::common_prefix;

use crate::cases::Fact;
use crate::check::Check;
use crate::harness::{CacheHarness, SlotOpened};
use crate::segments::NEXT;
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "input_cache.find_slot",
        own_cases: 4,
        beside: &[],
        shapes: &[(&["slots", "prompt", "expect.longest"], find)],
    },
    Known {
        suite: "input_cache.load_slot",
        own_cases: 3,
        beside: &[],
        shapes: &[(&["multi_user", "slots", "prompt"], load)],
    },
    Known {
        suite: "input_cache.shift_slot",
        own_cases: 3,
        // The length already tells that nothing is left.
        beside: &["backend_cleared"],
        shapes: &[(&["num_ctx", "inputs", "num_keep"], shift_slot)],
    },
];

/// Tokens that no case uses.
const UNRELATED: [TokenId; 2] = [900, 901];

/// A salt that no other sequence has.
fn unrelated() -> Salt {
    Salt::new("an unrelated prompt")
}

struct OldSlot {
    id: usize,
    inputs: Vec<TokenId>,
    in_use: bool,
    age_s: Option<usize>,
}

fn old_slots(case: &Fact<'_>) -> Vec<OldSlot> {
    let slot = |slot: &Fact<'_>| OldSlot {
        id: slot.get("id").number(),
        inputs: slot.get("inputs").tokens(),
        in_use: slot.get("in_use").flag(),
        age_s: slot.get("last_used_age_s").number_or_null(),
    };
    case.get("slots").items().iter().map(slot).collect()
}

/// Creates a harness in which these conversations were held, the oldest first.
fn harness(slots: &[OldSlot], slot_choice: SlotChoice) -> CacheHarness {
    let mut harness = CacheHarness::with(&[Full], |config| config.slot_choice = slot_choice);
    if slots.iter().any(|slot| slot.inputs.is_empty()) {
        let opened =
            harness.open_slot_with(&UNRELATED, |open_slot| open_slot.key.salt = unrelated());
        harness.evaluate(opened.sequence, &UNRELATED);
        harness.close(opened.sequence);
    }
    let mut held: Vec<&OldSlot> = slots
        .iter()
        .filter(|slot| !slot.inputs.is_empty())
        .collect();
    held.sort_by_key(|slot| std::cmp::Reverse(slot.age_s));
    for slot in &held {
        harness.converse(&slot.inputs, &[]);
    }
    // A conversation with the same beginning as an older one has changed its use. Each is used
    // once more up to its end to undo that.
    for slot in &held {
        let used = harness.open_slot(&[&slot.inputs[..], &[NEXT]].concat(), &[]);
        harness.discard(used.sequence);
    }
    harness
}

/// The slot whose conversation a new sequence continues to its end, if any.
fn continued(slots: &[OldSlot], candidate: &[TokenId], cached: usize) -> Option<usize> {
    let is_continued = |slot: &&OldSlot| {
        let all = slot.inputs.len();
        all > 0 && all >= cached && candidate.starts_with(&slot.inputs)
    };
    slots.iter().find(is_continued).map(|slot| slot.id)
}

/// The slot that an opened sequence takes: the one that it continues, or the first to be
/// evicted once it has evaluated the rest of its tokens.
fn replaced_slot(
    harness: &mut CacheHarness,
    slots: &[OldSlot],
    candidate: &[TokenId],
    opened: SlotOpened,
) -> usize {
    harness.evaluate(opened.sequence, &candidate[opened.cached..]);
    continued(slots, candidate, opened.cached).unwrap_or_else(|| {
        harness.evict_one();
        let unrelated =
            harness
                .core
                .can_resume(&PrefixKey::of(unrelated()), &UNRELATED, UNRELATED.len());
        let lost = |slot: &&OldSlot| harness.matched(&slot.inputs) < slot.inputs.len();
        let empty = slots.iter().find(|slot| slot.inputs.is_empty());
        match empty {
            Some(empty) if !unrelated => empty.id,
            _ => slots.iter().find(lost).expect("a slot was evicted").id,
        }
    })
}

fn find(check: &mut Check, case: &Fact<'_>) {
    let (slots, prompt) = (old_slots(case), case.get("prompt").tokens());
    let free = slots.iter().all(|slot| !slot.in_use);
    assert!(free, "a slot that is `in_use` is unsupported");
    // One token always remains to evaluate.
    let candidate = [&prompt[..], &[NEXT]].concat();
    for (name, expect) in case.get("expect").fields() {
        let policy = match name {
            "longest" => SlotChoice::Longest,
            "best" => SlotChoice::Best,
            _ => panic!("the field `expect.{name}` is unknown"),
        };
        let mut harness = harness(&slots, policy);
        let opened = harness.open_slot(&candidate, &[]);
        let chosen = replaced_slot(&mut harness, &slots, &candidate, opened);
        check.same("shared", opened.cached, expect.get("len").number());
        let expected = expect.get("slot").number();
        check.theirs("slot", ollamas_rule(&slots, &prompt, policy), expected);
        let own_rule = own_rule(&slots, &candidate, opened.cached, policy);
        check.same_or_instead("slot", chosen, own_rule, expected);
        if let (SlotChoice::Best, Some(derived)) = (policy, case.maybe("derived")) {
            fork(
                check,
                &derived.get("best_fork"),
                &slots,
                &harness,
                opened,
                &prompt,
            );
        }
    }
}

/// The slot by Motet's rule. Among several with an equally long common prefix, `Longest` takes
/// the most recently used, where ollama takes the first. Without a common prefix it evicts the
/// oldest, as `Best` does.
fn own_rule(slots: &[OldSlot], candidate: &[TokenId], cached: usize, policy: SlotChoice) -> usize {
    let most = slots
        .iter()
        .filter(|slot| common_prefix(&slot.inputs, candidate) == cached);
    let last_used = most.min_by_key(|slot| slot.age_s);
    let reused = last_used.filter(|_| policy == SlotChoice::Longest && cached > 0);
    continued(slots, candidate, cached).unwrap_or_else(|| reused.unwrap_or(oldest(slots)).id)
}

/// The slot by ollama's rule: the first with the longest common prefix, unless `Best` would
/// have to overwrite it; then the oldest.
fn ollamas_rule(slots: &[OldSlot], prompt: &[TokenId], policy: SlotChoice) -> usize {
    let first = sharing_most(slots, prompt);
    let shared = common_prefix(&first.inputs, prompt);
    let is_whole = shared > 0 && shared == first.inputs.len();
    match policy {
        SlotChoice::Best if !is_whole => oldest(slots).id,
        _ => first.id,
    }
}

/// The first slot with the longest common prefix.
fn sharing_most<'a>(slots: &'a [OldSlot], prompt: &[TokenId]) -> &'a OldSlot {
    let less = |slot: &&OldSlot| std::cmp::Reverse(common_prefix(&slot.inputs, prompt));
    slots.iter().min_by_key(less).expect("slots")
}

/// The slot that was never used, or else the least recently used.
fn oldest(slots: &[OldSlot]) -> &OldSlot {
    let age = |slot: &&OldSlot| std::cmp::Reverse(slot.age_s.unwrap_or(usize::MAX));
    slots.iter().min_by_key(age).expect("slots")
}

/// A new sequence forks from the conversation with the longest common prefix, which stays.
fn fork(
    check: &Check,
    fork: &Fact<'_>,
    slots: &[OldSlot],
    harness: &CacheHarness,
    opened: SlotOpened,
    prompt: &[TokenId],
) {
    let source = sharing_most(slots, prompt);
    let most = common_prefix(&source.inputs, prompt);
    let oldest = oldest(slots);
    let forks = most > 0 && most < source.inputs.len() && oldest.id != source.id;
    assert_eq!(
        fork.is_null(),
        !forks,
        "a fork is of a part of a conversation"
    );
    if forks {
        check.same("source", source.id, fork.get("src").number());
        let retained = harness.matched(&source.inputs);
        assert_eq!(retained, source.inputs.len(), "the source stays");
        check.same("forked", opened.cached, fork.get("len").number());
        check.same("forked to", oldest.id, fork.get("dst").number());
    }
}

fn policy(case: &Fact<'_>) -> SlotChoice {
    if case.get("multi_user").flag() {
        SlotChoice::Best
    } else {
        SlotChoice::Longest
    }
}

fn load(check: &mut Check, case: &Fact<'_>) {
    let (slots, prompt) = (old_slots(case), case.get("prompt").tokens());
    let in_use = slots.iter().filter(|slot| slot.in_use).count();
    if in_use > 0 {
        assert_eq!(
            in_use,
            slots.len(),
            "slots of which only some are `in_use` are unsupported"
        );
        return load_beside(check, case, &slots, &prompt);
    }
    let expect = case.get("expect");
    let mut harness = harness(&slots, policy(case));
    let (sequence, _) = harness.try_open_slot(&prompt, |open_slot| open_slot.tokens_max += 64);
    let opened = harness.opened(sequence);
    check.same("error", opened.is_none(), expect.get("error").flag());
    let opened = opened.expect("there is no error");
    let remaining = prompt.len() - opened.cached;
    check.same("remaining", remaining, expect.get("remaining_len").number());
    let nodes = harness.nodes();
    let cached = &prompt[..opened.cached];
    let mut used = nodes.iter().filter(|node| node.spelt == cached);
    let in_use = cached.is_empty() || used.any(|node| node.view.ref_count > 0);
    check.same("in use", in_use, expect.get("in_use_after").flag());
    let slot = replaced_slot(&mut harness, &slots, &prompt, opened);
    check.same("slot", slot, expect.get("slot").number());
}

/// All slots are in use: Motet opens another, which shares the state that is computed already.
/// Only memory can run out.
fn load_beside(check: &mut Check, case: &Fact<'_>, slots: &[OldSlot], prompt: &[TokenId]) {
    let mut harness = CacheHarness::with(&[Full], |config| config.slot_choice = policy(case));
    for slot in slots {
        let opened = harness.open_slot(&[&slot.inputs[..], &[NEXT]].concat(), &[]);
        harness.evaluate(opened.sequence, &slot.inputs[opened.cached..]);
    }
    let most = |slot: &OldSlot| common_prefix(&slot.inputs, prompt);
    let shared = slots.iter().map(most).max().expect("slots");
    let shared = shared.min(prompt.len().saturating_sub(1));
    let (candidate, effects) = harness.try_open_slot(prompt, |open_slot| open_slot.tokens_max += 5);
    let error = effects
        .iter()
        .any(|e| matches!(e, Effect::OutOfMemory { .. }));
    let expected = case.get("expect").get("error").flag();
    check.same_or_instead("error", error, false, expected);
    // State that only a live sequence has is sealed for the new one.
    let mut leaders = effects.iter().filter_map(|effect| match effect {
        Effect::Deferred { tokens, .. } => {
            assert_eq!(*tokens, shared, "it waits for the whole common prefix");
            None
        }
        Effect::Checkpoint { sequence, at, .. } if *at == shared => Some(*sequence),
        _ => None,
    });
    let leader = leaders.next();
    if let Some(leader) = leader {
        harness.reach(leader);
    }
    let opened = harness.opened(candidate);
    let opened = opened.unwrap_or_else(|| panic!("it gets no slot: {effects:?}"));
    assert_eq!(opened.cached, shared, "the common prefix is computed once");
    harness.evaluate(candidate, &prompt[opened.cached..]);
    let most = harness.oracle.context_tokens_max * 1000;
    let (_, effects) = harness.try_open_slot(&UNRELATED, |open_slot| open_slot.tokens_max = most);
    assert!(
        matches!(effects[..], [Effect::OutOfMemory { .. }]),
        "{effects:?}"
    );
}

/// Returns a full slot.
fn full_slot(case: &Fact<'_>, can_shift: bool) -> (CacheHarness, SlotOpened, Vec<TokenId>) {
    let context_tokens_max = case.get("num_ctx").number();
    let oracle = OracleConfig {
        context_tokens_max,
        can_shift,
        ..OracleConfig::default()
    };
    let mut harness = CacheHarness::of(oracle, |_| {});
    let inputs = case.get("inputs").tokens();
    let opened = harness.open_slot_with(&inputs, |open_slot| {
        open_slot.keep = Some(case.get("num_keep").number());
        open_slot.tokens_max = context_tokens_max;
    });
    harness.evaluate(opened.sequence, &inputs);
    (harness, opened, inputs)
}

fn shift_slot(check: &mut Check, case: &Fact<'_>) {
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let fails = case.get("backend_remove_fails").flag();
    if keep >= context {
        return keep_all(check, case);
    }
    if fails {
        return reprocess(check, case);
    }
    let (mut harness, opened, inputs) = full_slot(case, true);
    let discard = shift::discard(context, keep, inputs.len()).expect("`keep` is in the context");
    let removed = keep..keep + discard;
    let result = harness.remove(opened.sequence, removed.clone());
    let expect = case.get("expect");
    check.same("error", result.is_err(), !expect.get("error").is_null());
    let after = harness.tokens(opened.sequence).to_vec();
    let expected = expect.get("slot_len_after").number();
    check.same("length", after.len(), expected);
    if let Some(derived) = case.maybe("derived") {
        check.same("tokens", after, derived.get("slot_inputs_after").tokens());
        let range = derived.get("backend_remove_range").numbers();
        check.same("removed", vec![removed.start, removed.end], range);
    }
    // The tokens that follow are computed from the moved state.
    harness.evaluate(opened.sequence, &[NEXT]);
}

/// The model cannot move state: the slot is freed, and the remaining tokens are computed again.
fn reprocess(check: &mut Check, case: &Fact<'_>) {
    let (mut harness, opened, inputs) = full_slot(case, false);
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let discard = shift::discard(context, keep, inputs.len()).expect("`keep` is in the context");
    let result = harness.remove(opened.sequence, keep..keep + discard);
    assert_eq!(result, Err(CacheError::CannotMove));
    let expect = case.get("expect");
    check.prose(&expect.get("error"), "reprocess_inputs");
    harness.close(opened.sequence);
    let cached_tokens = harness
        .opened(opened.sequence)
        .map_or(0, |opened| opened.cached);
    check.same(
        "length",
        cached_tokens,
        expect.get("slot_len_after").number(),
    );
    assert!(
        keep + discard <= inputs.len(),
        "the slot has as many inputs"
    );
    let stays = [&inputs[..keep], &inputs[keep + discard..]].concat();
    if let Some(derived) = case.maybe("derived") {
        let derived = derived.get("inputs_to_reprocess").tokens();
        check.same("the remaining tokens", stays.clone(), derived);
    }
    let reopened = harness.open_slot(&stays, &[]);
    assert_eq!(reopened.cached, keep, "the kept tokens are still cached");
    harness.evaluate(reopened.sequence, &stays[reopened.cached..]);
}

fn keep_all(check: &mut Check, case: &Fact<'_>) {
    case.skip(&["derived"]);
    let [context, keep] = ["num_ctx", "num_keep"].map(|field| case.get(field).number());
    let rejected = shift::discard(context, keep, case.get("inputs").items().len());
    let too_large = CacheError::KeepTooLarge {
        keep,
        context_tokens: context,
    };
    assert_eq!(rejected, Err(too_large));
    check.prose(&case.get("expect").get("error"), "keep_exceeds_context");
}
