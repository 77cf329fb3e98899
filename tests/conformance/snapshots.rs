//! Saved state of full attention, and returning to it.
//!
//! ollama's snapshot is a sealed segment, and a scheduled capture is a restore point. Each test
//! continues from the restored state, and compares the rows with those of a run without a
//! cache.

use std::rc::Rc;

use motet::TokenId;
use motet::model::LayerKind::Full;
use motet::model::Model;
use motet::model::oracle::OracleConfig;
use motet_model::{Packer, Segment};

use crate::cases::{Fact, NUMBER_MAX, number_in};
use crate::check::Check;
use crate::harness::CacheHarness;
use crate::segments::{NEXT, can_continue, oracle, packed, sealed};
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[Known {
    suite: "mlx.snapshots.kv",
    own_cases: 10,
    beside: &[],
    shapes: &[
        (&["fill", "snapshot_from", "then", "restore_to"], need_base),
        (
            &["fill", "snapshot_from", "restore_into_fresh_to"],
            data_survives,
        ),
        (
            &["fill", "split_at", "merge", "restore_to"],
            split_and_merge,
        ),
        (&["before", "draft", "rewind_to"], speculation),
        (&["fill", "snapshot", "rewind", "write"], overwritten),
        (&["fill", "snapshot", "free"], freed),
        (
            &["fill", "snapshot", "rewind", "restore_to"],
            restored_for_nothing,
        ),
        (&["before", "schedule", "write"], captured),
        (&["before", "schedule", "writes"], across_writes),
    ],
}];

pub(crate) fn ids(tokens: usize) -> Vec<TokenId> {
    assert!(
        tokens <= NUMBER_MAX,
        "the tokens of a case are at most {NUMBER_MAX}"
    );
    (0..tokens as TokenId).collect()
}

/// Returns to the first `at` tokens and continues with another. Returns how many were cached.
pub(crate) fn rewind_to(harness: &mut CacheHarness, tokens: &[TokenId], at: usize) -> usize {
    harness
        .converse(&[&tokens[..at], &[NEXT]].concat(), &[])
        .cached
}

/// Start and end of each node on the path of these tokens.
pub(crate) fn ranges(harness: &CacheHarness, tokens: &[TokenId]) -> Vec<Vec<usize>> {
    let nodes = harness.nodes().into_iter();
    let on_path = nodes.filter(|node| tokens.starts_with(&node.spelt));
    on_path.map(|node| node.range()).collect()
}

/// A segment without its predecessors is useless, and in the trie it is never alone.
fn need_base(check: &mut Check, case: &Fact<'_>) {
    let fill = case.get("fill").number();
    let to = case.get("restore_to").within(1..=fill);
    let from = case.get("snapshot_from").within(0..=to - 1);
    assert_eq!(case.get("then").text(), "free");
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let tokens = ids(fill);
    let segment = sealed(&mut oracle, &tokens, from..to);
    let restored = can_continue(&mut oracle, &config, &[segment], &tokens[..to], &[NEXT]);
    check.same("restored", restored, case.get("expect").flag());
    let mut harness = CacheHarness::new(&[Full]);
    harness.converse(&tokens, &[from]);
    harness.evict_one();
    assert_eq!(
        harness.matched(&tokens),
        from,
        "the last segment is evicted first"
    );
}

fn data_survives(check: &mut Check, case: &Fact<'_>) {
    let fill = case.get("fill").number();
    let to = case.get("restore_into_fresh_to").within(1..=fill);
    let from = case.get("snapshot_from").within(0..=to - 1);
    let config = OracleConfig::default();
    let mut first = oracle(&config);
    let tokens = ids(fill);
    let segment = sealed(&mut first, &tokens, from..to);
    let bytes = packed(&mut first, &segment);
    let mut fresh = oracle(&config);
    assert_eq!(fresh.packer().identity(), first.packer().identity());
    let detached_state = fresh.packer().unpack(segment.segment_size(), &bytes);
    let back = fresh.import(detached_state.expect("of the same shape"));
    let path = [Rc::new(back.expect("memory"))];
    let expect = case.get("expect");
    let end = from + path[0].tokens();
    check.same("offset", end, expect.get("offset").number());
    let held = path[0].bytes() / config.layer_bytes.token;
    check.same("tokens held", held, expect.get("state_len").number());
    let ok = can_continue(&mut fresh, &config, &path, &tokens[..to], &[NEXT]);
    check.same("restored", ok, expect.get("ok").flag());
}

fn split_and_merge(check: &mut Check, case: &Fact<'_>) {
    let fill = case.get("fill").number();
    let to = case.get("restore_to").within(2..=fill);
    let at = case.get("split_at").within(1..=to - 1);
    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let tokens = ids(fill);
    let whole = sealed(&mut oracle, &tokens, 0..to);
    let (upper, lower) = oracle.split(&whole, at).expect("inside");
    let mut path = vec![Rc::new(upper), Rc::new(lower)];
    assert!(can_continue(
        &mut oracle,
        &config,
        &path,
        &tokens[..to],
        &[NEXT]
    ));
    if case.get("merge").flag() {
        let merged = oracle
            .merge(&path[0], &path[1])
            .expect("they follow each other");
        path = vec![Rc::new(merged)];
    }
    assert!(can_continue(
        &mut oracle,
        &config,
        &path,
        &tokens[..to],
        &[NEXT]
    ));
    let offset: usize = path.iter().map(|segment| segment.tokens()).sum();
    check.same("offset", offset, case.get("expect").get("offset").number());
}

/// With full attention a draft is undone by truncating the tail: nothing needs to be saved
/// before.
fn speculation(check: &mut Check, case: &Fact<'_>) {
    let [before, draft] = ["before", "draft"].map(|field| case.get(field).number());
    let to = case.get("rewind_to").within(0..=before + draft);
    let mut harness = CacheHarness::new(&[Full]);
    let tokens = ids(before + draft);
    let live = harness.open_slot(&tokens, &[]).sequence;
    harness.evaluate(live, &tokens[..before]);
    harness.evaluate(live, &tokens[before..]);
    if to < tokens.len() {
        let removed = harness.remove(live, to..tokens.len());
        removed.expect("full attention is cut anywhere");
    }
    let counts = harness.oracle.counters.now();
    assert_eq!(counts.segments_alive, 0, "no segment was made");
    assert!(counts.bytes_alive - harness.tail_bytes(to) < harness.tail_bytes(1));
    harness.evaluate(live, &[NEXT]);
    harness.close(live);
    // No sequence gets the tokens that were undone.
    assert_eq!(harness.matched(&tokens), to);
    assert_eq!(rewind_to(&mut harness, &tokens, to), to);
    let words = "no snapshot owns memory; extra memory < one token";
    check.prose(&case.get("expect"), words);
}

/// Other sequences continue from the start of a segment; its own state stays the same.
fn overwritten(check: &mut Check, case: &Fact<'_>) {
    let range = case.get("snapshot").range();
    let (from, to) = (range.start, range.end);
    let mut harness = CacheHarness::new(&[Full]);
    let tokens = ids(case.get("fill").within(to..=NUMBER_MAX));
    harness.converse(&tokens, &[case.get("rewind").within(0..=tokens.len())]);
    let written = case.get("write").range();
    assert!(
        written.start <= tokens.len(),
        "{written:?} begins in the tokens"
    );
    let fresh: Vec<TokenId> = written.clone().map(|id| 100 + id as TokenId).collect();
    let other = harness.converse(&[&tokens[..written.start], &fresh].concat(), &[]);
    assert_eq!(other.cached, written.start);
    assert_eq!(rewind_to(&mut harness, &tokens, to), to);
    let expect = case.get("expect");
    let verb = if expect.text().starts_with("snapshot still holds ") {
        "holds original"
    } else {
        "reads original tokens"
    };
    let words = format!("snapshot still {verb} {from}..{}", to - 1);
    check.prose(&expect, &words);
}

fn freed(check: &mut Check, case: &Fact<'_>) {
    assert!(case.get("free").flag());
    let range = case.get("snapshot").range();
    let ends = [range.start, range.end];
    let mut harness = CacheHarness::new(&[Full]);
    let tokens = ids(case.get("fill").within(range.end..=NUMBER_MAX));
    harness.converse(&tokens, &ends);
    harness.check_no_leak();
    assert!(ranges(&harness, &tokens).contains(&ends.to_vec()));
    assert_eq!(rewind_to(&mut harness, &tokens, range.end), range.end);
    let words = format!("snapshot owns tokens {}..{}", range.start, range.end - 1);
    check.prose(&case.get("expect"), &words);
}

/// A slot on cached state costs nothing until it grows.
fn restored_for_nothing(check: &mut Check, case: &Fact<'_>) {
    let range = case.get("snapshot").range();
    let mut harness = CacheHarness::new(&[Full]);
    let tokens = ids(case.get("fill").within(range.end..=NUMBER_MAX));
    let inside = |field| case.get(field).within(0..=tokens.len());
    let [rewind, to] = ["rewind", "restore_to"].map(inside);
    harness.converse(&tokens, &[range.start, range.end, rewind, to]);
    harness.open_slot(&[&tokens[..rewind], &[NEXT]].concat(), &[]);
    let before = harness.oracle.counters.now();
    let restored = harness.open_slot(&[&tokens[..to], &[NEXT]].concat(), &[]);
    let after = harness.oracle.counters.now();
    let expect = case.get("expect");
    check.same("offset", restored.cached, expect.get("offset").number());
    let allocated = after.bytes_alive - before.bytes_alive;
    check.same("bytes", allocated, expect.get("bytes_allocated").number());
    let by_reference = after.segments_alive == before.segments_alive;
    check.same("no copy", by_reference, expect.get("still_lazy").flag());
    harness.evaluate(restored.sequence, &[NEXT]);
}

fn captured(check: &mut Check, case: &Fact<'_>) {
    let [before, write] = ["before", "write"].map(|f| case.get(f).within(1..=NUMBER_MAX));
    let schedule = case.get("schedule").numbers();
    let tokens = ids(before + write);
    let mut harness = CacheHarness::new(&[Full]);
    let live = harness
        .open_slot(&tokens, &[&[before], &schedule[..]].concat())
        .sequence;
    harness.evaluate(live, &tokens);
    let expect = case.get("expect");
    let lists = |field: &str| -> Vec<Vec<usize>> {
        let lists = expect.get(field).items();
        lists.iter().map(Fact::numbers).collect()
    };
    let mut captures = ranges(&harness, &tokens);
    captures.retain(|range| range[0] >= before);
    check.same("captures", captures.clone(), lists("captures"));

    let config = OracleConfig::default();
    let mut oracle = oracle(&config);
    let base = sealed(&mut oracle, &tokens, 0..before);
    let captured = captures.iter().map(|range| {
        let range = range[0]..range[1];
        sealed(&mut oracle, &tokens, range)
    });
    let captured: Vec<_> = captured.collect();
    let mut captured = captured.into_iter();
    let first = captured.next().expect("something was captured");
    let merged = captured.fold(first, |upper, lower| {
        let merged = oracle.merge(&upper, &lower);
        Rc::new(merged.expect("they follow each other"))
    });
    let end = before + merged.tokens();
    check.same("merged", vec![before, end], expect.get("merged").numbers());
    let split_at = expect
        .names()
        .into_iter()
        .find_map(|name| -> Option<usize> { name.strip_prefix("split_at_")?.parse().ok() });
    let split_at = split_at.filter(|at| (before + 1..end).contains(at));
    let split_at =
        split_at.unwrap_or_else(|| panic!("there is no split between {before} and {end}"));
    let at = split_at - before;
    let (upper, lower) = oracle.split(&merged, at).expect("inside");
    let split = [
        [before, before + upper.tokens()],
        [end - lower.tokens(), end],
    ];
    let split: Vec<Vec<usize>> = split.iter().map(|range| range.to_vec()).collect();
    check.same("split", split, lists(&format!("split_at_{split_at}")));
    for rest in [vec![merged], vec![Rc::new(upper), Rc::new(lower)]] {
        let path = [vec![Rc::clone(&base)], rest].concat();
        assert!(can_continue(
            &mut oracle,
            &config,
            &path,
            &tokens[..end],
            &[NEXT]
        ));
    }
}

/// Restore points do not depend on the chunks in which a prompt is computed.
fn across_writes(check: &mut Check, case: &Fact<'_>) {
    let before = case.get("before").number();
    let writes = case.get("writes").numbers();
    let schedule = case.get("schedule").numbers();
    let tokens = ids(before + writes.iter().sum::<usize>());
    let mut harness = CacheHarness::new(&[Full]);
    harness.converse(&tokens[..before], &[]);
    let live = harness.open_slot(&tokens, &schedule);
    let mut at = live.cached;
    for write in writes {
        assert!(at + write <= tokens.len(), "the writes are in the tokens");
        harness.step(&[(live.sequence, &tokens[at..at + write])]);
        harness.reach(live.sequence);
        at += write;
    }
    let captures = ranges(&harness, &tokens);
    let ends_at = |at: &usize| captures.iter().find(|range| range[1] == *at);
    let captures = schedule.iter().map(ends_at);
    let captures = captures.map(|range| range.filter(|range| range[0] >= before).cloned());
    let expect = case.get("expect");
    let expected = expect.get("captures").items();
    let expected = expected
        .iter()
        .map(|range| (!range.is_null()).then(|| range.numbers()));
    check.same("captures", captures.collect::<Vec<_>>(), expected.collect());
    for name in expect.names() {
        if let Some(at) = name.strip_prefix("restore_first_to_") {
            let at = number_in(at, tokens.len());
            let back =
                harness.can_resume(&tokens, at) && rewind_to(&mut harness, &tokens, at) == at;
            check.same("restored", back, expect.get(name).flag());
        }
    }
}
