//! Requests of a scenario, and what Motet makes of them.

use std::collections::BTreeSet;

use motet::TokenId;
use motet::model::LayerKind::{self, Full, Recurrent, Window};

use crate::cases::Fact;
use crate::check::Check;
use crate::house::{Begun, House};

/// What ollama calls a model of these layers.
pub(crate) type Environment = (&'static str, &'static [LayerKind]);

const ENVIRONMENTS: [Environment; 4] = [
    ("Transformer", &[Full]),
    ("SlidingWindow", &[Full, Window { tokens: 4 }]),
    ("Recurrent", &[Full, Recurrent]),
    ("StatelessLayers", &[Recurrent, Full]),
];

/// What a sequence is fed. At the head of ollama's history the last token is never
/// evaluated, be it the prompt's or the output's; in the era of the seed all are.
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

/// What came of it.
pub(crate) struct Answer {
    pub(crate) matched: usize,
    pub(crate) cached: usize,
    pub(crate) remaining: usize,
    /// Offsets at which the cache wants to seal it, those that were asked for left out.
    pub(crate) own_points: BTreeSet<usize>,
}

impl Era {
    pub(crate) fn environments(self, traces: &Fact<'_>) -> &'static [Environment] {
        let known = match self {
            Self::Head => &ENVIRONMENTS[..],
            Self::Seed => &ENVIRONMENTS[..3],
        };
        let names: Vec<&str> = traces.fields().iter().map(|(name, _)| *name).collect();
        for name in &names {
            let plain = name.trim_end_matches("+Lookahead");
            let found = known.iter().any(|(known, _)| *known == plain);
            assert!(found, "environment {name} is not known here");
        }
        let missing = known.iter().find(|(known, _)| !names.contains(known));
        assert_eq!(missing, None, "an environment is missing");
        known
    }
}

pub(crate) fn requests(case: &Fact<'_>, environment: &str) -> Vec<Request> {
    let of = |name: &str| {
        let trace = case.get("derived_traces").get(name);
        match trace.value().is_array() {
            true => trace.items(),
            false => trace.get("requests").items(),
        }
    };
    // Which tokens a slot holds does not depend on the kinds of layers.
    let plain = of("Transformer");
    let request = |(request, plain): (&Fact<'_>, &Fact<'_>)| {
        let points = request.get("user_snapshot_at");
        Request {
            label: request.get("label").text().to_owned(),
            inputs: request.get("inputs").tokens(),
            generated: request.get("generated").tokens(),
            restore_points: match points.value().is_array() {
                true => points.numbers(),
                false => [points.number()].into_iter().filter(|at| *at > 0).collect(),
            },
            live: plain.get("live_tokens_after").tokens(),
            matched: request.get("matched").number(),
            cached: request.get("cached").number(),
        }
    };
    of(environment).iter().zip(&plain).map(request).collect()
}

impl Request {
    /// Begins it and feeds it what its era does; it stays live.
    pub(crate) fn start(&self, house: &mut House, era: Era) -> (Begun, Answer) {
        let matched = house.matched(&self.inputs);
        let begun = house.begin_with(&self.inputs, |begin| {
            begin.restore_points.clone_from(&self.restore_points);
            begin.tokens_max += self.generated.len();
        });
        let points = house.checkpoints(begun.sequence).into_iter();
        let answer = Answer {
            matched,
            cached: begun.cached,
            remaining: self.inputs.len() - begun.cached,
            own_points: points
                .filter(|at| !self.restore_points.contains(at))
                .collect(),
        };
        let all = [&self.inputs[..], &self.generated].concat();
        let fed = all.len() - usize::from(era == Era::Head);
        house.feed(begun.sequence, &all[begun.cached..fed]);
        (begun, answer)
    }

    /// Runs it to its end, and compares what the trie knew, what the sequence started
    /// from, and what its slot held.
    pub(crate) fn run(
        &self,
        check: &mut Check,
        house: &mut House,
        era: Era,
        more: Option<usize>,
    ) -> Answer {
        let (begun, answer) = self.start(house, era);
        let label = &self.label;
        check.same(&format!("{label}: known"), answer.matched, self.matched);
        assert!(
            more.is_none_or(|more| more > self.cached),
            "{label}: Motet is never worse"
        );
        check.same_or_instead(
            &format!("{label}: cached"),
            answer.cached,
            more,
            self.cached,
        );
        let held = house.tokens(begun.sequence).to_vec();
        check.same(&format!("{label}: held"), held, self.live.clone());
        house.close(begun.sequence);
        answer
    }
}

pub(crate) fn other_than_full(environment: &str) -> bool {
    environment != "Transformer"
}

/// What is expected of requests in this environment.
pub(crate) fn expected<'a>(expect: &Fact<'a>, environment: &str) -> Fact<'a> {
    let others = || {
        expect
            .maybe("others")
            .filter(|_| other_than_full(environment))
    };
    let own = expect.maybe(environment);
    own.or_else(others).unwrap_or_else(|| expect.clone())
}

/// `3+lookahead` tokens are three: there is no look-ahead.
pub(crate) fn without_lookahead(fact: &Fact<'_>) -> usize {
    match fact.is_text() {
        true => {
            let text = fact.text();
            let number = text
                .strip_suffix("+lookahead")
                .or_else(|| text.strip_suffix("-lookahead"));
            let number = number.and_then(|number| number.parse().ok());
            number.unwrap_or_else(|| panic!("`{text}` is no number of tokens"))
        }
        false => fact.number(),
    }
}

pub(crate) fn each(
    case: &Fact<'_>,
    era: Era,
    mut act: impl FnMut(&'static str, House, Vec<Request>),
) {
    for (name, layers) in era.environments(&case.get("derived_traces")) {
        act(name, House::new(layers), requests(case, name));
    }
}
