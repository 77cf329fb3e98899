//! Long conversations and cancelled prefills, on a model with recurrent and full layers.
//!
//! ollama looks one token ahead there and keys prompts by pairs of tokens, so that it matches
//! one token less where a prompt branches off. Motet keys prompts by single tokens.

use motet::TokenId;
use motet::model::LayerKind::{self, Full, Recurrent};

use crate::cases::{Fact, NUMBER_MAX, part};
use crate::check::Check;
use crate::harness::{CacheHarness, SlotOpened};
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[Known {
    suite: "prefix_cache.long_scenarios",
    own_cases: 3,
    // The remainder and the bound, under other names.
    beside: &["left", "max_allowed_gap", "turn"],
    shapes: &[
        (
            &["first_prompt_len", "first_gen_len", "turns"],
            conversation,
        ),
        (&["prompt_len", "chunk", "steps"], cancelled_prefills),
        (&["steps"], divergent_cancels),
    ],
}];

const LAYERS: [LayerKind; 4] = [Recurrent, Full, Recurrent, Full];

/// ollama captures state at this distance within a prompt, and at this distance before its end.
const EVERY: usize = 8;
const BEFORE_END: usize = 4;
/// Tokens that ollama looks ahead.
const AHEAD: usize = 1;

struct Scenario {
    harness: CacheHarness,
    next: TokenId,
}

impl Scenario {
    fn new() -> Self {
        let harness = CacheHarness::with(&LAYERS, |config| config.device_bytes_max = 1 << 18);
        Self { harness, next: 0 }
    }

    /// Returns tokens that did not occur before.
    fn fresh(&mut self, tokens: usize) -> Vec<TokenId> {
        let first = self.next;
        self.next += tokens as TokenId;
        (first..self.next).collect()
    }

    fn open_slot(&mut self, prompt: &[TokenId]) -> SlotOpened {
        self.harness.open_slot(prompt, &points(prompt.len()))
    }

    /// Runs a request to its end: the prompt, and all of the output but its last token, which
    /// is never evaluated.
    fn complete(&mut self, prompt: &[TokenId], generated: &[TokenId]) -> (usize, SlotOpened) {
        let matched = self.harness.matched(prompt);
        let opened = self.open_slot(prompt);
        let all = [prompt, generated].concat();
        let evaluated = part(&all, opened.cached..all.len().saturating_sub(1));
        self.harness.evaluate(opened.sequence, evaluated);
        self.harness.close(opened.sequence);
        (matched, opened)
    }

    /// Runs a request that is cancelled when its slot holds so many tokens.
    fn cancel(&mut self, prompt: &[TokenId], chunk: usize, at: usize) -> (usize, SlotOpened) {
        let matched = self.harness.matched(prompt);
        let opened = self.open_slot(prompt);
        assert!(chunk > 0, "a chunk has tokens");
        for tokens in part(prompt, opened.cached..at).chunks(chunk) {
            self.harness.evaluate(opened.sequence, tokens);
        }
        self.harness.close(opened.sequence);
        (matched, opened)
    }

    /// Whether every node has all full layers' state of exactly its range.
    fn covers(&self) -> bool {
        let full = LAYERS.iter().filter(|kind| **kind == Full).count();
        let full_bytes = |tokens: usize| full * self.harness.oracle.layer_bytes.token * tokens;
        let mut nodes = self.harness.nodes().into_iter();
        nodes.all(|node| node.view.bytes >= full_bytes(node.view.tokens.len()))
    }
}

/// Offsets at which the state of a prompt of so many tokens is captured.
fn points(prompt: usize) -> Vec<usize> {
    let regular = (EVERY..prompt).step_by(EVERY);
    let before_end = prompt.checked_sub(BEFORE_END);
    regular.chain(before_end.filter(|at| *at > 0)).collect()
}

fn conversation(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    let extension = expect.get("extension_turn_without_away");
    check.prose(&extension, "cached==matched");
    check.prose(&expect.get("every_turn"), "cached>=matched-bound");
    let mut scenario = Scenario::new();
    let mut prompt = scenario.fresh(case.get("first_prompt_len").number());
    let mut generated = scenario.fresh(case.get("first_gen_len").number());
    scenario.complete(&prompt, &generated);
    let turns = case.get("turns").items();
    let derived = case.maybe("derived").map(|derived| derived.items());
    // The derived fields repeat those of the turn.
    let repeated = ["keep_gen", "new_tail", "gen_len", "away_before"];
    let other = case.get("away");
    let [len, gen_len] = ["prompt_len", "gen_len"].map(|field| other.get(field).number());
    for (at, turn) in turns.iter().enumerate() {
        let derived = derived
            .as_ref()
            .map(|derived| derived.get(at).expect("as many as turns"));
        let away = turn.get("away_before").flag();
        if away {
            let (away, output) = (scenario.fresh(len), scenario.fresh(gen_len));
            scenario.complete(&away, &output);
        }
        let retained = usize::try_from(turn.get("keep_gen").integer()).unwrap_or(generated.len());
        prompt.extend(part(&generated, 0..retained));
        prompt.extend(scenario.fresh(turn.get("new_tail").number()));
        let dropped = generated.len() - retained;
        let bound = EVERY + BEFORE_END + 1 + generated.len() + dropped;
        if let Some(derived) = derived {
            derived.skip(&repeated);
            derived.skip(&["matched"]);
            check.same("prompt", prompt.len(), derived.get("total").number());
            check.same("bound", bound, derived.get("bound").number());
        }
        generated = scenario.fresh(turn.get("gen_len").number());
        let (matched, opened) = scenario.complete(&prompt, &generated);
        assert!(
            opened.cached + bound >= matched,
            "{turn:?}: {opened:?} of {matched}"
        );
        if dropped == 0 && !away {
            assert_eq!(opened.cached, matched, "{turn:?}");
        }
        let theirs = derived.map_or(0, |derived| derived.get("cached").number());
        assert!(
            opened.cached >= theirs,
            "{turn:?}: {opened:?}, Motet is never worse"
        );
        check.same("coverage", scenario.covers(), expect.get("coverage").flag());
    }
    let evicted = scenario.harness.core.stats().evicted_segments;
    check.same(
        "no computed token was dropped",
        evicted == 0,
        expect.get("free_all_never").flag(),
    );
    scenario.harness.check_no_leak();
}

/// Cancels a prompt and retries it until it finishes. Another prompt with the same beginning
/// then inspects the cached state.
fn cancelled_prefills(check: &mut Check, case: &Fact<'_>) {
    let chunk = case.get("chunk").number();
    let mut scenario = Scenario::new();
    let prompt = scenario.fresh(case.get("prompt_len").number());
    let mut reached = 0;
    for step in case.get("steps").items() {
        let cancel = step
            .maybe("cancel_at")
            .or_else(|| step.maybe("retry_cancel_at"));
        let result = if let Some(at) = cancel {
            reached = at.number();
            scenario.cancel(&prompt, chunk, reached)
        } else if let Some(probe) = step.maybe("probe") {
            inspect(
                check,
                &mut scenario,
                &prompt,
                reached,
                &probe,
                &step.get("expect"),
            );
            continue;
        } else {
            assert!(step.get("retry_to_completion").flag());
            let generated = scenario.fresh(step.get("gen_len").number());
            reached = prompt.len();
            scenario.complete(&prompt, &generated)
        };
        if let Some(expect) = step.maybe("expect") {
            let (matched, opened) = result;
            check.same("known", matched, expect.get("matched").number());
            check.same("cached", opened.cached, expect.get("cached").number());
        }
    }
    scenario.harness.check_no_leak();
}

/// Compares the cached part of a prompt that shares tokens with a request that has progressed
/// so far.
fn inspect(
    check: &mut Check,
    scenario: &mut Scenario,
    prompt: &[TokenId],
    reached: usize,
    probe: &Fact<'_>,
    expect: &Fact<'_>,
) {
    let words = probe.text().split(' ');
    let numbers = words.filter_map(|word| word.parse().ok());
    let mut numbers = numbers.filter(|number: &usize| *number <= NUMBER_MAX);
    let (Some(first), Some(fresh)) = (numbers.next(), numbers.next()) else {
        panic!("`{}` contains a number of tokens", probe.text());
    };
    check.prose(probe, &format!("first {first} tokens + {fresh} fresh"));
    assert!(
        first <= reached,
        "tokens that were not computed are unknown"
    );
    let other = [part(prompt, 0..first), &scenario.fresh(fresh)].concat();
    let matched = scenario.harness.matched(&other);
    let cached = scenario.harness.resumable(&other);
    let captured = points(prompt.len()).into_iter().filter(|at| *at <= first);
    let captured = captured.max().unwrap_or(0);
    let [known, resumed] = ["matched", "cached"].map(|field| expect.get(field).number());
    check.theirs("probe: known", first.saturating_sub(AHEAD), known);
    check.same_or_instead("probe: known", matched, first, known);
    // Motet also seals the computed tokens where the request was cancelled, and keys them by
    // token.
    let own_rule = if first == reached { first } else { captured };
    check.theirs("probe: cached", captured.saturating_sub(AHEAD), resumed);
    check.same_or_instead("probe: cached", cached, own_rule, resumed);
}

/// Continues a conversation beside requests that share some of it and are cancelled.
fn divergent_cancels(check: &mut Check, case: &Fact<'_>) {
    let mut scenario = Scenario::new();
    let (mut prompt, mut generated) = (Vec::new(), Vec::new());
    let mut turns = Vec::new();
    for step in case.get("steps").items() {
        if let Some(request) = step.maybe("request") {
            prompt = scenario.fresh(request.get("prompt_len").number());
            generated = scenario.fresh(request.get("gen_len").number());
            scenario.complete(&prompt, &generated);
        } else if let Some(cancelled) = step.maybe("cancelled") {
            let fresh = scenario.fresh(cancelled.get("fresh").number());
            let shared = cancelled.get("shared").number();
            let other = [part(&prompt, 0..shared), &fresh].concat();
            let from = scenario.harness.resumable(&other);
            let at = (from + cancelled.get("cancel_at").number()).min(other.len());
            scenario.cancel(&other, cancelled.get("chunk").number(), at);
        } else {
            let extend = step.get("extend");
            let before = generated.len();
            prompt.append(&mut generated);
            prompt.extend(scenario.fresh(extend.get("fresh").number()));
            generated = scenario.fresh(extend.get("gen_len").number());
            let (matched, opened) = scenario.complete(&prompt, &generated);
            turns.push(vec![prompt.len(), matched, opened.cached]);
            if let Some(expect) = step.maybe("expect") {
                let words = format!("cached>=matched-({EVERY}+{BEFORE_END}+1+{before})");
                check.prose(&expect, &words);
                let bound = EVERY + BEFORE_END + 1 + before;
                assert!(opened.cached + bound >= matched, "{opened:?} of {matched}");
            }
        }
        assert!(scenario.covers());
    }
    if let Some(derived) = case.maybe("derived") {
        let first = derived.get("second_turn").numbers();
        check.same("second turn", turns.first(), Some(&first));
        check.same(
            "last turn",
            turns.last(),
            Some(&derived.get("final").numbers()),
        );
    }
    scenario.harness.check_no_leak();
}
