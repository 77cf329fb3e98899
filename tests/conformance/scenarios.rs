//! Requests one after another, on models of four kinds of layers.
//!
//! ollama's layers without state need nothing and are left out. The variants with
//! look-ahead drafts, which key the trie by pairs of tokens, have no counterpart: Motet
//! drafts nothing. Of ollama's own trie what is compared is how it behaves: how much of
//! a prompt it knows, how much of that it can start from, which tokens a slot holds.
//! The layout of its nodes is its own.

use motet::cache::trie::common_prefix;

use crate::Known;
use crate::cases::Fact;
use crate::check::Check;
use crate::house::House;
use crate::requests::{Era, each, expected, other_than_full, requests, without_lookahead};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "prefix_cache.scenarios_head",
        cases: &[
            ("TestBranchCreationAndReuse", branch),
            ("TestExactMatchSeedBehavior", exact_match),
            ("TestEvictionPreservesActiveConversations", eviction),
            ("TestUserSnapshotPreservesRestorePoint", restore_point),
            ("TestSnapshotBeyondPrefillSkipped", beyond_prefill),
            ("TestPrefillSnapshotsKeptOnCancel", cancelled),
            ("TestLRUOnlyUpdatesUsedNodes", last_use),
        ],
    },
    Known {
        suite: "prefix_cache.scenarios_seed_era",
        cases: &[
            ("TestBranchCreationAndReuse", branch_seed_era),
            ("TestExactMatchSeedBehavior", exact_match_seed_era),
            (
                "TestEvictionPreservesActiveConversations",
                eviction_seed_era,
            ),
            (
                "TestUserSnapshotPreservesRestorePoint",
                restore_point_seed_era,
            ),
            ("TestBranchSwitchRestoresCorrectState", branch_switch),
        ],
    },
];

fn branch(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    each(case, Era::Head, |name, mut house, requests| {
        let [a, b, c] = &requests[..] else {
            panic!("three requests");
        };
        let live = expect.get("live_tokens");
        for request in &requests {
            let tokens = live.get(&request.label).tokens();
            check.same("held", request.live.clone(), tokens);
        }
        let answer = a.run(check, &mut house, Era::Head, None);
        let remaining = expect.get("A").get("remaining").number();
        check.same("A: remaining", answer.remaining, remaining);
        let find = expect.get("findable_after_A");
        let found = house.matched(&find.get("tokens").tokens());
        check.same("A: found", found, find.get("matched").number());
        let answer = b.run(check, &mut house, Era::Head, None);
        let of_b = expected(&expect.get("B"), name);
        let remaining = without_lookahead(&of_b.get("remaining"));
        check.same("B: remaining", answer.remaining, remaining);
        // Besides where it branches off, Motet seals it before its last token.
        let points = answer.own_points.len();
        let more = other_than_full(name).then_some(2);
        let pending = of_b.get("pending_snapshots").number();
        let at_branch = usize::from(answer.own_points.contains(&b.matched));
        check.same("B: restore points at the branch", at_branch, pending);
        check.same_or_instead("B: restore points", points, more, pending);
        // There A was sealed.
        let more = (name != "Transformer").then_some(resumed_in_a(name));
        let answer = c.run(check, &mut house, Era::Head, more);
        let less_than = expect.get("C").get("remaining_lt").number();
        assert!(answer.remaining < less_than, "C starts from something");
        house.check_no_leak();
    });
}

/// How much of A's prompt of 8 tokens C starts from. With full attention all, and with
/// a window too: of what was sealed at 9 tokens a window's worth before that is left.
/// Recurrent layers were sealed before A's last token.
fn resumed_in_a(environment: &str) -> usize {
    match environment {
        "Transformer" | "SlidingWindow" => 8,
        _ => 7,
    }
}

fn exact_match(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    each(case, Era::Head, |name, mut house, requests| {
        let [a, b] = &requests[..] else {
            panic!("two requests");
        };
        a.run(check, &mut house, Era::Head, None);
        // A was sealed before its last token, which is all that B has left.
        let better = other_than_full(name).then_some(4);
        let answer = b.run(check, &mut house, Era::Head, better);
        let of_b = expected(&expect.get("B"), name);
        let (left, points) = (better.map(|_| 1), better.map(|_| 0));
        let remaining = of_b.get("remaining").number();
        check.theirs("B: remaining", b.inputs.len() - b.cached, remaining);
        check.same_or_instead("B: remaining", answer.remaining, left, remaining);
        let pending = of_b.get("pending_snapshots").number();
        let own_points = answer.own_points.len();
        check.same_or_instead("B: restore points", own_points, points, pending);
        let live = expect.get("live_tokens_after_B").tokens();
        check.same("held", b.live.clone(), live);
        house.check_no_leak();
    });
}

fn restore_point(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    each(case, Era::Head, |_, mut house, requests| {
        let at = requests[0].restore_points[0];
        for request in &requests {
            let answer = request.run(check, &mut house, Era::Head, None);
            if request.label == "C" {
                let left = &request.inputs[answer.cached..];
                let words = format!(
                    "[{},{}] with the boundary token {at} re-evaluated too when look-ahead is on",
                    left[0], left[1]
                );
                check.prose(&expect.get("C_remaining"), &words);
            }
            let kept = house.nodes().into_iter();
            let mut kept = kept.filter(|node| node.view.restore_point);
            assert!(kept.any(|node| node.spelt.len() == at), "it stays");
        }
        let labels: Vec<&str> = requests.iter().map(|request| &request.label[..]).collect();
        for label in expect.get("user_node_exists_after").texts() {
            assert!(labels.contains(&label), "there is no request {label}");
        }
        let live = expect.get("D_live_tokens").tokens();
        check.same("held", requests[3].live.clone(), live);
        house.check_no_leak();
    });
}

/// A prompt of which only a part is evaluated: restore points beyond are not made.
fn beyond_prefill(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    let prompt = expect.get("prompt").tokens();
    let (points, fed) = (
        expect.get("scheduled").numbers(),
        expect.get("fed").number(),
    );
    for (_, layers) in Era::Head.environments(&case.get("derived_traces")) {
        let mut house = House::new(layers);
        let begun = house.begin(&prompt, &points);
        house.feed(begun.sequence, &prompt[..fed]);
        let ends = |house: &House| -> Vec<usize> {
            let nodes = house.nodes().into_iter();
            nodes.map(|node| node.spelt.len()).collect()
        };
        let at = without_lookahead(&expect.get("node_at"));
        check.same("sealed", ends(&house), vec![at]);
        assert!(house.nodes()[0].view.restore_point);
        house.close(begun.sequence);
        let none = ends(&house).iter().all(|end| *end <= fed);
        check.same(
            "nothing beyond",
            none,
            expect.get("no_node_beyond_written").flag(),
        );
        house.check_no_leak();
    }
}

/// A prompt that is cancelled in its middle: what it has reached is kept.
fn cancelled(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    check.prose(&expect.get("then"), "close without attach");
    let prompt = expect.get("prompt").tokens();
    let (points, fed) = (
        expect.get("scheduled").numbers(),
        expect.get("fed").number(),
    );
    for (name, layers) in Era::Head.environments(&case.get("derived_traces")) {
        let mut house = House::new(layers);
        let begun = house.begin(&prompt, &points);
        house.feed(begun.sequence, &prompt[..fed]);
        house.close(begun.sequence);
        let nodes = house.nodes();
        let kept: Vec<(usize, bool)> = nodes
            .iter()
            .map(|node| (node.spelt.len(), node.view.restore_point))
            .collect();
        let at = without_lookahead(&expect.get("node_at"));
        check.same("kept", kept, vec![(at, true)]);
        let retry = case.get("derived_traces").get(name).get("retry").items();
        let [retry] = &retry[..] else {
            panic!("one retry");
        };
        let matched = house.matched(&prompt);
        check.same("retry: known", matched, retry.get("matched").number());
        let again = house.begin(&prompt, &retry.get("user_snapshot_at").numbers());
        check.same("retry: cached", again.cached, retry.get("cached").number());
        house.feed(again.sequence, &prompt[again.cached..prompt.len() - 1]);
        let held = house.tokens(again.sequence).to_vec();
        check.same("retry: held", held, retry.get("live_tokens_after").tokens());
        house.close(again.sequence);
        house.check_no_leak();
        check.same(
            "no leak",
            true,
            expect.get("no_leak_on_next_request").flag(),
        );
    }
}

/// Which nodes count as used: in Motet, all on the path.
fn last_use(check: &mut Check, case: &Fact<'_>) {
    let words = "the frontier and the restore landing node; traversed intermediate nodes \
                 keep their old last-used";
    check.prose(&case.get("expect").get("only_refreshed"), words);
    check.lacks("times of use that are later below than above");
    each(case, Era::Head, |name, mut house, requests| {
        for request in &requests {
            let more = (request.label == "B" && name == "SlidingWindow").then_some(3);
            request.run(check, &mut house, Era::Head, more);
        }
        let path = &requests[2].live;
        for node in house.nodes() {
            let used = path.starts_with(&node.spelt);
            assert_eq!(node.view.idle_uses == 0, used, "{node:?}");
        }
        // What it is for: the branch that was not used is the first to go.
        house.evict_one();
        assert_eq!(house.matched(path), path.len());
        let first = &requests[0].live;
        assert!(house.matched(first) < first.len());
        house.check_no_leak();
    });
}

fn eviction(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    let snapshots =
        expect.get("budget_GiB").number() / expect.get("inflate_each_snapshot_GiB").number();
    evict(case, Era::Head, snapshots, |path_len, fits, system| {
        let within = expect.get("after_evict_bytes_le_budget").flag();
        check.same("within the budget", fits, within);
        assert!(path_len >= expect.get("active_path_len_ge").number());
        let all = requests(case, "Transformer")[1].matched;
        let fully = expect.get("system_prompt_still_matches_fully").flag();
        check.same("still there", system == all, fully);
    });
}

fn eviction_seed_era(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    // As at the head: a budget of 8 GiB, and 2 for each snapshot.
    evict(case, Era::Seed, 4, |_, fits, system| {
        let within = expect.get("after_evict_bytes_le_8GiB").flag();
        check.same("within the budget", fits, within);
        check.same(
            "still there",
            system,
            expect.get("system_prompt_match").number(),
        );
    });
}

/// Conversations that share a system prompt, the last of which is still live when all
/// but so many snapshots have to go. Says how many parts the live one's path and tail
/// have, whether what stays fits, and how much of the system prompt can be started from.
fn evict(case: &Fact<'_>, era: Era, snapshots: usize, mut look: impl FnMut(usize, bool, usize)) {
    for (name, layers) in era.environments(&case.get("derived_traces")) {
        let requests = requests(case, name);
        let mut house = House::with(layers, |config| config.device_bytes_max = 1 << 12);
        let (last, before) = requests.split_last().expect("requests");
        for request in before {
            let (begun, _) = request.start(&mut house, era);
            house.close(begun.sequence);
        }
        let (live, _) = last.start(&mut house, era);
        // As in the case, what one layer has of one node counts as much as of another.
        let held = |house: &House| house.core.stats().segments * layers.len();
        assert!(held(&house) > snapshots, "something has to go");
        while held(&house) > snapshots {
            house.evict_one();
        }
        let nodes = house.nodes();
        let path = nodes.iter().filter(|node| node.view.holders > 0).count();
        let system = common_prefix(&last.inputs, &before[0].inputs);
        let fits = held(&house) <= snapshots;
        look(path + 1, fits, house.resumable(&before[0].inputs[..system]));
        // The live one goes on as if nothing had happened.
        house.feed(live.sequence, &[last.inputs[0]]);
        house.close(live.sequence);
        house.check_no_leak();
    }
}

fn branch_seed_era(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    each(case, Era::Seed, |name, mut house, requests| {
        let [a, b, c] = &requests[..] else {
            panic!("three requests");
        };
        let of = |label: &str, field: &str| expect.get(label).get(field).number();
        let answer = a.run(check, &mut house, Era::Seed, None);
        check.same("A: remaining", answer.remaining, of("A", "remaining"));
        let all = [&a.inputs[..], &a.generated].concat();
        check.same("A: found", house.matched(&all), of("A", "findable"));
        // Full attention resumes within an edge; others are sealed at the branch.
        let full = !other_than_full(name);
        let more = full.then_some(5);
        let answer = b.run(check, &mut house, Era::Seed, more);
        let remaining = of("B", "remaining");
        check.same_or_instead("B: remaining", answer.remaining, more.map(|_| 3), remaining);
        let at = of("B", "snapshot_offset");
        let sealed = house.nodes().iter().any(|node| node.spelt.len() == at);
        assert!(sealed, "there is a node where B branches off");
        assert_eq!(answer.own_points.contains(&at), !full);
        let more = Some(resumed_in_a(name));
        let answer = c.run(check, &mut house, Era::Seed, more);
        assert!(answer.remaining < of("C", "remaining_lt"));
        house.check_no_leak();
    });
}

fn exact_match_seed_era(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect").get("B");
    each(case, Era::Seed, |_, mut house, requests| {
        let [a, b] = &requests[..] else {
            panic!("two requests");
        };
        a.run(check, &mut house, Era::Seed, None);
        let at = b.inputs.len() - 1;
        let answer = b.run(check, &mut house, Era::Seed, Some(at));
        let remaining = expect.get("remaining").number();
        check.theirs("B: remaining", b.inputs.len() - b.cached, remaining);
        check.instead("B: remaining", answer.remaining, 1, remaining);
        // The state that ollama takes with B was taken with A.
        check.same(
            "B: resumed at",
            answer.cached,
            expect.get("snapshot_offset").number(),
        );
        house.check_no_leak();
    });
}

fn restore_point_seed_era(check: &mut Check, case: &Fact<'_>) {
    let expect = case.get("expect");
    each(case, Era::Seed, |_, mut house, requests| {
        let at = expect.get("user_snapshot_at").number();
        check.same("restore point", requests[0].restore_points[0], at);
        for request in &requests {
            request.run(check, &mut house, Era::Seed, None);
            let kept = house.nodes().into_iter();
            let mut kept = kept.filter(|node| node.view.restore_point);
            assert!(kept.any(|node| node.spelt.len() == at), "it stays");
        }
        let live = expect.get("D_live_tokens").tokens();
        check.same("held", requests[3].live.clone(), live);
        house.check_no_leak();
    });
}

fn branch_switch(check: &mut Check, case: &Fact<'_>) {
    each(case, Era::Seed, |name, mut house, requests| {
        for request in &requests {
            let more = (request.label == "B" && name != "Recurrent").then_some(3);
            request.run(check, &mut house, Era::Seed, more);
        }
        let live = case.get("expect").get("C_live_tokens").tokens();
        check.same("held", requests[2].live.clone(), live);
        house.check_no_leak();
    });
}
