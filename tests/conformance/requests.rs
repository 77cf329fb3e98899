//! Requests of a scenario, and Motet's results for them.

use std::collections::BTreeSet;

use motet::TokenId;
use motet::model::LayerKind::{self, Full, Recurrent, Window};
use motet::model::oracle::OracleConfig;
use motet_testkit::naive::NaiveCache;

use crate::cases::{Fact, part};
use crate::check::Check;
use crate::harness::{CacheHarness, SlotOpened};

/// ollama's name for a model, and its layers.
pub(crate) type Environment = (&'static str, &'static [LayerKind]);

const ENVIRONMENTS: [Environment; 4] = [
    ("Transformer", &[Full]),
    ("SlidingWindow", &[Full, Window { tokens: 4 }]),
    ("Recurrent", &[Full, Recurrent]),
    ("StatelessLayers", &[Recurrent, Full]),
];

/// The number of the one salt.
const SALT: usize = 0;

/// Tokens that a sequence evaluates. At the head of ollama's history the last token of the
/// prompt or the output is never evaluated; in the era of the seed all tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Era {
    Head,
    Seed,
}

/// One request of a scenario.
pub(crate) struct Request {
    pub(crate) label: String,
    pub(crate) inputs: Vec<TokenId>,
    pub(crate) generated: Vec<TokenId>,
    pub(crate) restore_points: Vec<usize>,
    pub(crate) live: Vec<TokenId>,
    pub(crate) matched: usize,
    pub(crate) cached: usize,
}

/// Result of a request.
pub(crate) struct RequestResult {
    pub(crate) matched: usize,
    pub(crate) cached: usize,
    /// Offsets at which it is to be sealed.
    pub(crate) points: BTreeSet<usize>,
    /// The tokens that its slot held in the end.
    pub(crate) held: Vec<TokenId>,
    /// The result of Motet's own rule for it.
    pub(crate) own_rule: OwnRule,
}

/// The start of a request and its seal offsets, by Motet's own rule.
pub(crate) struct OwnRule {
    pub(crate) cached: usize,
    pub(crate) points: BTreeSet<usize>,
}

impl OwnRule {
    /// Motet's own rule, on token lists: a request starts at sealed offsets of others.
    fn of(naive: &NaiveCache, request: &Request) -> Self {
        let tokens = &request.inputs;
        // One token must remain to evaluate.
        let last = tokens.len().checked_sub(1).expect("a request has inputs");
        let known = naive.cached_tokens(SALT, &tokens[..last]);
        let cached = naive.resumable(SALT, &tokens[..last]);
        let mut points: BTreeSet<usize> = request.restore_points.iter().copied().collect();
        if !naive.spec().resumes_anywhere() {
            if points.is_empty() {
                points.insert(last);
            }
            points.insert(known);
        }
        points.retain(|at| *at > cached);
        Self { cached, points }
    }
}

/// An empty cache of a model with these layers.
pub(crate) fn naive(layers: &[LayerKind]) -> NaiveCache {
    NaiveCache::new(&OracleConfig::with_layers(layers).spec())
}

/// Seals a sequence with these tokens at these offsets and at its end.
pub(crate) fn seal(naive: &mut NaiveCache, points: &BTreeSet<usize>, evaluated: &[TokenId]) {
    let points = points.iter().filter(|at| **at < evaluated.len());
    for at in points.chain([&evaluated.len()]) {
        naive.publish(SALT, &evaluated[..*at]);
    }
}

impl Era {
    /// The environments that a case has traces of.
    pub(crate) fn environments(traces: &Fact<'_>) -> Vec<Environment> {
        let names = traces.value().as_object().expect("traces by their names");
        for name in names.keys() {
            let plain = name.trim_end_matches("+Lookahead");
            if plain != name {
                traces.skip(&[name.as_str()]);
            }
            let mut known = ENVIRONMENTS.iter();
            let found = known.any(|(known, _)| *known == plain);
            assert!(found, "the environment {name} is unknown");
        }
        let known = ENVIRONMENTS.iter().copied();
        let there: Vec<Environment> = known
            .filter(|(name, _)| names.contains_key(*name))
            .collect();
        assert!(!there.is_empty(), "there are traces");
        there
    }
}

pub(crate) fn requests(case: &Fact<'_>, environment: &str) -> Vec<Request> {
    let traces = case.get("derived_traces");
    let of = |name: &str| {
        let trace = traces.get(name);
        if trace.value().is_array() {
            trace.items()
        } else {
            trace.get("requests").items()
        }
    };
    let mut requests: Vec<Request> = of(environment).iter().map(Request::of).collect();
    // The tokens that a slot holds do not depend on the kinds of layers.
    if traces.has("Transformer") {
        for (request, plain) in requests.iter_mut().zip(of("Transformer")) {
            request.live = plain.get("live_tokens_after").tokens();
        }
    }
    requests
}

impl Request {
    pub(crate) fn of(fact: &Fact<'_>) -> Self {
        // Fields that follow from the rest, and the layout of ollama's trie.
        fact.skip(&["total", "remaining", "pending_snapshots_at_begin"]);
        fact.skip(&["snapshot_offset", "trie_after"]);
        let points = fact.get("user_snapshot_at");
        Self {
            label: fact.get("label").text().to_owned(),
            inputs: fact.get("inputs").tokens(),
            generated: fact.get("generated").tokens(),
            restore_points: if points.value().is_array() {
                points.numbers()
            } else {
                [points.number()].into_iter().filter(|at| *at > 0).collect()
            },
            live: fact.get("live_tokens_after").tokens(),
            matched: fact.get("matched").number(),
            cached: fact.get("cached").number(),
        }
    }

    /// The prompt and the output.
    pub(crate) fn all(&self) -> Vec<TokenId> {
        [&self.inputs[..], &self.generated].concat()
    }

    /// Opens its slot and evaluates the tokens of its era; it stays live.
    pub(crate) fn start(
        &self,
        harness: &mut CacheHarness,
        era: Era,
        naive: &mut NaiveCache,
    ) -> (SlotOpened, RequestResult) {
        let matched = harness.matched(&self.inputs);
        let opened = harness.open_slot_with(&self.inputs, |open_slot| {
            open_slot.restore_points.clone_from(&self.restore_points);
            open_slot.tokens_max += self.generated.len();
        });
        let points = harness.checkpoints(opened.sequence).into_iter().collect();
        let own_rule = OwnRule::of(naive, self);
        let all = self.all();
        let evaluated = all.len() - usize::from(era == Era::Head);
        harness.evaluate(opened.sequence, part(&all, opened.cached..evaluated));
        seal(naive, &own_rule.points, part(&all, 0..evaluated));
        let result = RequestResult {
            matched,
            cached: opened.cached,
            points,
            held: harness.tokens(opened.sequence).to_vec(),
            own_rule,
        };
        (opened, result)
    }

    /// Runs it to its end. Compares the tokens that the trie knew, those that the sequence
    /// started from, and those that its slot held.
    pub(crate) fn run(
        &self,
        check: &mut Check,
        harness: &mut CacheHarness,
        era: Era,
        naive: &mut NaiveCache,
    ) -> RequestResult {
        let (opened, result) = self.start(harness, era, naive);
        let label = &self.label;
        check.same(&format!("{label}: known"), result.matched, self.matched);
        assert!(
            result.cached >= self.cached,
            "{label}: starts from {}, and {} is expected: Motet is never worse",
            result.cached,
            self.cached
        );
        let what = format!("{label}: cached");
        check.same_or_instead(&what, result.cached, result.own_rule.cached, self.cached);
        check.same(&format!("{label}: held"), &result.held, &self.live);
        harness.close(opened.sequence);
        result
    }
}

/// The expectations for requests in this environment.
pub(crate) fn expected<'a>(expect: &Fact<'a>, environment: &str) -> Fact<'a> {
    let own = expect.maybe(environment);
    let others = || {
        expect
            .maybe("others")
            .filter(|_| environment != "Transformer")
    };
    own.or_else(others).unwrap_or_else(|| expect.clone())
}

/// `3+lookahead` tokens are three: there is no look-ahead.
pub(crate) fn without_lookahead(fact: &Fact<'_>) -> usize {
    if !fact.is_text() {
        return fact.number();
    }
    let text = fact.text();
    let number = text
        .strip_suffix("+lookahead")
        .or_else(|| text.strip_suffix("-lookahead"));
    let number = number.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("`{text}` is not a number of tokens"))
}
