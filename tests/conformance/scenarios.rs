//! Requests one after another, on models of four kinds of layers.
//!
//! ollama's layers without state need nothing and are left out. The variants with look-ahead
//! drafts, which key the trie by pairs of tokens, have no counterpart, because Motet drafts
//! nothing. The comparison covers the behavior of ollama's trie: the tokens of a prompt that it
//! knows, the tokens that a sequence can start from, the tokens that a slot holds. The layout
//! of its nodes is not compared.
//!
//! Requests have labels, and their expectations have these labels in their names: `A`,
//! `findable_after_A`, `A_live_tokens`.

use motet::TokenId;
use motet_protocol::common_prefix;

use crate::cases::{Fact, part};
use crate::check::Check;
use crate::harness::{CacheHarness, Node};
use crate::requests::{
    Era, Request, RequestResult, expected, naive, requests, seal, without_lookahead,
};
use crate::suites::{Known, holds};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "prefix_cache.scenarios_head",
        own_cases: 7,
        beside: &[],
        shapes: &[
            (&["derived_traces", "expect.prompt", "expect.fed"], prefill),
            (&["derived_traces", "expect.budget_GiB"], eviction_at_head),
            (&["derived_traces", "expect"], requests_at_head),
        ],
    },
    Known {
        suite: "prefix_cache.scenarios_seed_era",
        own_cases: 5,
        beside: &[],
        shapes: &[
            (
                &["derived_traces", "expect.system_prompt_match"],
                eviction_in_seed_era,
            ),
            (&["derived_traces", "expect"], requests_in_seed_era),
        ],
    },
];

/// Size of a snapshot if a case does not give one.
const SNAPSHOT_GIB: usize = 2;

fn requests_at_head(check: &mut Check, case: &Fact<'_>) {
    run(check, case, Era::Head);
}

fn requests_in_seed_era(check: &mut Check, case: &Fact<'_>) {
    run(check, case, Era::Seed);
}

/// Runs all requests in each environment, and compares every expectation.
fn run(check: &mut Check, case: &Fact<'_>, era: Era) {
    let expect = case.get("expect");
    let traces = case.get("derived_traces");
    for (name, layers) in Era::environments(&traces) {
        let mut harness = CacheHarness::new(layers);
        let mut naive = naive(layers);
        let requests = requests(case, name);
        let mut asked = Vec::new();
        for request in &requests {
            let result = request.run(check, &mut harness, era, &mut naive);
            let points = request.restore_points.iter();
            asked.extend(points.map(|at| part(&request.inputs, 0..*at).to_vec()));
            if let Some(of_request) = expect.maybe(&request.label) {
                let of_request = expected(&of_request, name);
                compare(check, &of_request, &harness, request, &result);
            }
            compare_by_label(check, &expect, &harness, request, &result);
            check_restore_points(&expect, &harness, &request.label, &asked);
        }
        let labels: Vec<&str> = requests.iter().map(|request| &request.label[..]).collect();
        if let Some(after) = expect.maybe("user_node_exists_after") {
            let unknown = after
                .texts()
                .into_iter()
                .find(|label| !labels.contains(label));
            assert_eq!(unknown, None, "there is no such request");
        }
        if let Some(at) = expect.maybe("user_snapshot_at") {
            let points = requests
                .iter()
                .flat_map(|request| request.restore_points.clone());
            check.same("restore points", points.collect(), vec![at.number()]);
        }
        if let Some(words) = expect.maybe("only_refreshed") {
            traces
                .get(name)
                .skip(&["restore_landing", "refreshed_nodes_end_offsets"]);
            last_use(check, &words, &mut harness, &requests);
        }
        harness.check_no_leak();
    }
}

/// Compares one request with its expectation.
fn compare(
    check: &mut Check,
    expect: &Fact<'_>,
    harness: &CacheHarness,
    request: &Request,
    result: &RequestResult,
) {
    let label = &request.label;
    let what = |field: &str| format!("{label}: {field}");
    let tokens = request.inputs.len();
    for (field, expected) in expect.fields() {
        let what = what(field);
        match field {
            "remaining" => {
                let expected = without_lookahead(&expected);
                check.theirs(&what, tokens - request.cached, expected);
                let own_rule = tokens - result.own_rule.cached;
                check.same_or_instead(&what, tokens - result.cached, own_rule, expected);
            }
            "remaining_lt" => {
                let less_than = expected.number();
                assert!(
                    tokens - result.cached < less_than,
                    "{what}: less than {less_than}"
                );
            }
            "pending_snapshots" => {
                let expected = expected.number();
                // ollama also takes a snapshot where a prompt branches off, besides the
                // requested ones.
                let branches = request.matched.min(tokens - 1) > request.cached;
                let asked = request.restore_points.len();
                check.theirs(&what, asked + usize::from(branches), expected);
                let own_rule = result.own_rule.points.len();
                check.same_or_instead(&what, result.points.len(), own_rule, expected);
            }
            "findable" => {
                check.same(&what, harness.matched(&request.all()), expected.number());
            }
            "snapshot_offset" => {
                let ends = ends(&harness.nodes(), &request.inputs);
                let at = expected.number();
                assert!(
                    ends.contains(&at),
                    "{what}: sealed at {ends:?}, not at {at}"
                );
            }
            _ => panic!("the field `{field}` of request {label} is unknown"),
        }
    }
}

/// Ends of the nodes on the path of these tokens.
fn ends(nodes: &[Node], tokens: &[TokenId]) -> Vec<usize> {
    let nodes = nodes.iter().filter(|node| tokens.starts_with(&node.spelt));
    nodes.map(|node| node.spelt.len()).collect()
}

/// Compares the expectations after one request, whose names contain its label.
fn compare_by_label(
    check: &mut Check,
    expect: &Fact<'_>,
    harness: &CacheHarness,
    request: &Request,
    result: &RequestResult,
) {
    let label = &request.label;
    let held = [
        expect
            .maybe("live_tokens")
            .and_then(|live| live.maybe(label)),
        expect.maybe(&format!("live_tokens_after_{label}")),
        expect.maybe(&format!("{label}_live_tokens")),
    ];
    for held in held.into_iter().flatten() {
        let what = format!("{label}: held");
        check.same(&what, result.held.clone(), held.tokens());
    }
    if let Some(find) = expect.maybe(&format!("findable_after_{label}")) {
        let found = harness.matched(&find.get("tokens").tokens());
        check.same("found", found, find.get("matched").number());
    }
    if let Some(remaining) = expect.maybe(&format!("{label}_remaining")) {
        let (before, left) = request.inputs.split_at(result.cached);
        let left: Vec<String> = left.iter().map(TokenId::to_string).collect();
        let boundary = before.last().expect("it starts from cached tokens");
        let words = format!(
            "[{}] with the boundary token {boundary} re-evaluated too when look-ahead is on",
            left.join(",")
        );
        check.prose(&remaining, &words);
    }
}

/// Checks that restore points that callers asked for stay.
fn check_restore_points(
    expect: &Fact<'_>,
    harness: &CacheHarness,
    label: &str,
    asked: &[Vec<TokenId>],
) {
    let nodes = harness.nodes();
    for point in asked {
        let is_retained = |node: &Node| node.view.restore_point && node.spelt == *point;
        assert!(nodes.iter().any(is_retained), "{point:?} stays");
    }
    let after = expect.maybe("user_node_exists_after");
    if after.is_some_and(|after| after.texts().contains(&label)) {
        assert!(!asked.is_empty(), "there is one after {label}");
    }
}

/// Checks which nodes count as used: in Motet, all nodes on the path.
fn last_use(check: &mut Check, words: &Fact<'_>, harness: &mut CacheHarness, requests: &[Request]) {
    let theirs = "the frontier and the restore landing node; traversed intermediate nodes \
                  keep their old last-used";
    check.prose(words, theirs);
    check.lacks("use times that are later below than above");
    let path = &requests.last().expect("requests").live;
    for node in harness.nodes() {
        let used = path.starts_with(&node.spelt);
        assert_eq!(node.view.idle_uses == 0, used, "{node:?}");
    }
    // The purpose of use times: the first branch without a use since then is evicted first.
    harness.evict_one();
    assert_eq!(harness.matched(path), path.len());
    let can_continue = |at: usize| {
        let mut later = requests[at + 1..].iter();
        later.any(|later| later.live.starts_with(&requests[at].live))
    };
    let unused = (0..requests.len()).find(|at| !can_continue(*at));
    let unused = &requests[unused.expect("the last has none after it")].live;
    assert!(harness.matched(unused) < unused.len());
}

/// Evaluates only a part of a prompt: later restore points are not made, and the state that it
/// has reached is kept, even if it is cancelled there.
fn prefill(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    if let Some(then) = expect.maybe("then") {
        check.prose(&then, "close without attach");
    }
    let prompt = expect.get("prompt").tokens();
    let points = expect.get("scheduled").numbers();
    let evaluated = expect.get("fed").number();
    let at = without_lookahead(&expect.get("node_at"));
    let traces = case.get("derived_traces");
    for (name, layers) in Era::environments(&traces) {
        let trace = traces.get(name);
        trace.skip(&["trie_after_attach", "trie_after_cancel"]);
        let mut harness = CacheHarness::new(layers);
        let opened = harness.open_slot(&prompt, &points);
        harness.evaluate(opened.sequence, part(&prompt, 0..evaluated));
        check.same("sealed", ends(&harness.nodes(), &prompt), vec![at]);
        harness.close(opened.sequence);
        let nodes = harness.nodes();
        let is_retained = |node: &Node| node.view.restore_point && node.spelt.len() == at;
        assert!(nodes.iter().any(is_retained), "it stays");
        if let Some(expected) = expect.maybe("no_node_beyond_written") {
            let none = nodes.iter().all(|node| node.spelt.len() <= evaluated);
            check.same("nothing beyond", none, expected.flag());
        }
        if let Some(retry) = trace.maybe("retry") {
            let mut naive = naive(layers);
            let points = points.iter().copied().collect();
            seal(&mut naive, &points, part(&prompt, 0..evaluated));
            for retry in retry.items().iter().map(Request::of) {
                retry.run(check, &mut harness, Era::Head, &mut naive);
            }
        }
        let clean = holds(|| harness.check_no_leak());
        if let Some(expected) = expect.maybe("no_leak_on_next_request") {
            check.same("no leak", clean, expected.flag());
        }
        assert!(clean, "nothing is left");
    }
}

fn eviction_at_head(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    let each = expect.maybe("inflate_each_snapshot_GiB");
    let each = each.map_or(SNAPSHOT_GIB, |each| each.number());
    let snapshots = expect.get("budget_GiB").number() / each;
    evict(
        case,
        Era::Head,
        snapshots,
        |path_len, fits, system, resumed| {
            if let Some(within) = expect.maybe("after_evict_bytes_le_budget") {
                check.same("within the budget", fits, within.flag());
            }
            if let Some(least) = expect.maybe("active_path_len_ge") {
                assert!(path_len >= least.number(), "{path_len} parts");
            }
            if let Some(fully) = expect.maybe("system_prompt_still_matches_fully") {
                check.same("still there", resumed == system, fully.flag());
            }
        },
    );
}

fn eviction_in_seed_era(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    // The budget is part of a field's name.
    let within = expect.names().into_iter().find_map(|name| {
        let budget = name.strip_prefix("after_evict_bytes_le_")?;
        let budget: usize = budget.strip_suffix("GiB")?.parse().ok()?;
        Some((budget, expect.get(name).flag()))
    });
    let (budget, within) = within.expect("a budget");
    let snapshots = budget / SNAPSHOT_GIB;
    evict(case, Era::Seed, snapshots, |_, fits, _, resumed| {
        check.same("within the budget", fits, within);
        let expected = expect.get("system_prompt_match").number();
        check.same("still there", resumed, expected);
    });
}

/// Runs conversations that share a system prompt. The last is still live when the budget
/// shrinks to so many snapshots. Returns the number of parts in the live one's path and tail,
/// whether the others were evicted, the length of the system prompt, and how much of it a
/// sequence can start from.
fn evict(
    case: &Fact<'_>,
    era: Era,
    snapshots: usize,
    mut inspect: impl FnMut(usize, bool, usize, usize),
) {
    let traces = case.get("derived_traces");
    for (name, layers) in Era::environments(&traces) {
        let trace = traces.get(name);
        trace.skip(&["bytes_before_GiB", "bytes_after_GiB"]);
        trace.skip(&["evicted_in_order", "remaining_nodes"]);
        let requests = requests(case, name);
        let mut naive = naive(layers);
        let mut harness = CacheHarness::with(layers, |config| config.device_bytes_max = 1 << 12);
        let (last, before) = requests.split_last().expect("requests");
        let first = before.first().expect("two requests");
        for request in before {
            let (opened, _) = request.start(&mut harness, era, &mut naive);
            harness.close(opened.sequence);
        }
        let (live, _) = last.start(&mut harness, era, &mut naive);
        let nodes = harness.nodes();
        let (path, others): (Vec<&Node>, Vec<&Node>) =
            nodes.iter().partition(|node| node.view.ref_count > 0);
        // As in the case, one layer's state of a node counts as one snapshot. The budget
        // suffices for those of the live sequence, and for as many of the smallest others.
        let is_retained = (snapshots / layers.len()).saturating_sub(path.len());
        let smallest = others.iter().map(|node| node.view.bytes).min();
        let own: usize = path.iter().map(|node| node.view.bytes).sum();
        let budget = own + is_retained * smallest.expect("others");
        let fits = harness.evict_until(budget);
        let evicted = harness.core.stats().evicted_segments;
        assert!(evicted > 0, "a snapshot had to be evicted");
        let system = common_prefix(&last.inputs, &first.inputs);
        let resumed = harness.resumable(&first.inputs[..system]);
        inspect(path.len() + 1, fits, system, resumed);
        // The live sequence continues as if nothing had been evicted.
        harness.evaluate(live.sequence, &[last.inputs[0]]);
        harness.close(live.sequence);
        harness.check_no_leak();
    }
}
