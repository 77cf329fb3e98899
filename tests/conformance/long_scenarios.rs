//! Long conversations, and prefills that are cancelled, on a model with recurrent and
//! with full layers.
//!
//! ollama looks a token ahead there and knows prompts by pairs of tokens, so that it
//! matches a token less where a prompt branches off. Motet knows them by tokens.

use motet::TokenId;
use motet::model::LayerKind::{self, Full, Recurrent};

use crate::Known;
use crate::cases::Fact;
use crate::check::Check;
use crate::house::{Begun, House};

pub(crate) const SUITES: &[Known] = &[Known {
    suite: "prefix_cache.long_scenarios",
    cases: &[
        ("TestScenarioConversationTurns", conversation),
        ("TestScenarioCancelledPrefills", cancelled_prefills),
        ("TestScenarioDivergentCancels", divergent_cancels),
    ],
}];

const LAYERS: [LayerKind; 4] = [Recurrent, Full, Recurrent, Full];

/// Where ollama captures state: every so many tokens of a prompt, and so many before
/// its end.
const EVERY: usize = 8;
const BEFORE_END: usize = 4;
/// How far it looks ahead.
const AHEAD: usize = 1;

struct Scenario {
    house: House,
    next: TokenId,
}

impl Scenario {
    fn new() -> Self {
        let house = House::with(&LAYERS, |config| config.device_bytes_max = 1 << 18);
        Self { house, next: 0 }
    }

    /// Tokens that were never there before.
    fn fresh(&mut self, tokens: usize) -> Vec<TokenId> {
        let first = self.next;
        self.next += tokens as TokenId;
        (first..self.next).collect()
    }

    fn begin(&mut self, prompt: &[TokenId]) -> Begun {
        let regular = (EVERY..prompt.len()).step_by(EVERY);
        let points: Vec<usize> = regular.chain([prompt.len() - BEFORE_END]).collect();
        self.house.begin(prompt, &points)
    }

    /// A request that is carried to its end: the prompt, and all of the output but its
    /// last token, which is never evaluated.
    fn complete(&mut self, prompt: &[TokenId], generated: &[TokenId]) -> (usize, Begun) {
        let matched = self.house.matched(prompt);
        let begun = self.begin(prompt);
        let all = [prompt, generated].concat();
        let fed = &all[begun.cached..all.len() - 1];
        self.house.feed(begun.sequence, fed);
        self.house.close(begun.sequence);
        (matched, begun)
    }

    /// A request that is cancelled when its slot holds so many tokens.
    fn cancel(&mut self, prompt: &[TokenId], chunk: usize, at: usize) -> (usize, Begun) {
        let matched = self.house.matched(prompt);
        let begun = self.begin(prompt);
        for tokens in prompt[begun.cached..at].chunks(chunk) {
            self.house.feed(begun.sequence, tokens);
        }
        self.house.close(begun.sequence);
        (matched, begun)
    }

    /// Every node has all full layers' state of exactly its range.
    fn covers(&self) -> bool {
        let full = LAYERS.iter().filter(|kind| **kind == Full).count();
        let full_bytes = |tokens: usize| full * self.house.oracle.layer_bytes * tokens;
        let mut nodes = self.house.nodes().into_iter();
        nodes.all(|node| node.view.bytes >= full_bytes(node.view.tokens.len()))
    }
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
    let derived = case.get("derived").items();
    for (turn, derived) in turns.iter().zip(&derived) {
        let away = turn.get("away_before").flag();
        if away {
            let away = case.get("away");
            let [len, gen_len] = ["prompt_len", "gen_len"].map(|field| away.get(field).number());
            let (away, output) = (scenario.fresh(len), scenario.fresh(gen_len));
            scenario.complete(&away, &output);
        }
        let kept = usize::try_from(turn.get("keep_gen").integer()).unwrap_or(generated.len());
        prompt.extend(&generated[..kept]);
        prompt.extend(scenario.fresh(turn.get("new_tail").number()));
        check.same("prompt", prompt.len(), derived.get("total").number());
        let dropped = generated.len() - kept;
        let bound = EVERY + BEFORE_END + 1 + generated.len() + dropped;
        check.same("bound", bound, derived.get("bound").number());
        generated = scenario.fresh(turn.get("gen_len").number());
        let (matched, begun) = scenario.complete(&prompt, &generated);
        assert!(
            begun.cached + bound >= matched,
            "{turn:?}: {begun:?} of {matched}"
        );
        if dropped == 0 && !away {
            assert_eq!(begun.cached, matched, "{turn:?}");
        }
        let never_worse = begun.cached >= derived.get("cached").number();
        assert!(never_worse, "{turn:?}: {begun:?}");
        check.same("coverage", scenario.covers(), expect.get("coverage").flag());
    }
    let evicted = scenario.house.core.stats().evicted_segments;
    check.same(
        "nothing was given up",
        evicted == 0,
        expect.get("free_all_never").flag(),
    );
    scenario.house.check_no_leak();
}

fn cancelled_prefills(check: &mut Check, case: &Fact<'_>) {
    let steps = case.get("steps").items();
    let [cancelled, probe, retry, completed] = &steps[..] else {
        panic!("four steps");
    };
    let chunk = case.get("chunk").number();
    let mut scenario = Scenario::new();
    let prompt = scenario.fresh(case.get("prompt_len").number());
    let first = cancelled.get("cancel_at").number();
    scenario.cancel(&prompt, chunk, first);

    let words = format!("first {first} tokens + 10 fresh");
    check.prose(&probe.get("probe"), &words);
    let other = [&prompt[..first], &scenario.fresh(10)].concat();
    let matched = scenario.house.matched(&other);
    let cached = scenario.house.resumable(&other);
    let expect = probe.get("expect");
    // What was computed was sealed where it was cancelled, and is known by tokens.
    let [known, resumed] = ["matched", "cached"].map(|field| expect.get(field).number());
    check.theirs("probe: known", first - AHEAD, known);
    check.instead("probe: known", matched, first, known);
    check.theirs("probe: cached", first / EVERY * EVERY - AHEAD, resumed);
    check.instead("probe: cached", cached, first, resumed);

    let at = retry.get("retry_cancel_at").number();
    let answer = scenario.cancel(&prompt, chunk, at);
    compare(check, answer, &retry.get("expect"));
    assert!(completed.get("retry_to_completion").flag());
    let generated = scenario.fresh(completed.get("gen_len").number());
    let answer = scenario.complete(&prompt, &generated);
    compare(check, answer, &completed.get("expect"));
    scenario.house.check_no_leak();
}

fn compare(check: &mut Check, (matched, begun): (usize, Begun), expect: &Fact<'_>) {
    check.same("known", matched, expect.get("matched").number());
    check.same("cached", begun.cached, expect.get("cached").number());
}

/// A conversation goes on beside requests that share some of it and are cancelled.
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
            let other = [&prompt[..shared], &fresh].concat();
            let from = scenario.house.resumable(&other);
            let at = (from + cancelled.get("cancel_at").number()).min(other.len());
            scenario.cancel(&other, cancelled.get("chunk").number(), at);
        } else {
            let extend = step.get("extend");
            let before = generated.len();
            prompt.append(&mut generated);
            prompt.extend(scenario.fresh(extend.get("fresh").number()));
            generated = scenario.fresh(extend.get("gen_len").number());
            let (matched, begun) = scenario.complete(&prompt, &generated);
            turns.push(vec![prompt.len(), matched, begun.cached]);
            if let Some(expect) = step.maybe("expect") {
                let words = format!("cached>=matched-({EVERY}+{BEFORE_END}+1+{before})");
                check.prose(&expect, &words);
                let bound = EVERY + BEFORE_END + 1 + before;
                assert!(begun.cached + bound >= matched, "{begun:?} of {matched}");
            }
        }
        assert!(scenario.covers());
    }
    let derived = case.get("derived");
    let expected = ["second_turn", "final"].map(|turn| derived.get(turn).numbers());
    check.same("turns", turns, expected.to_vec());
    scenario.house.check_no_leak();
}
