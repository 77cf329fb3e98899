//! Saved state of window and recurrent layers, and returning to it: as in
//! [`snapshots`](crate::snapshots), but only at sealed offsets.

use motet::TokenId;
use motet::model::LayerKind::{Recurrent, Window};

use crate::cases::{Fact, number_in};
use crate::check::Check;
use crate::harness::CacheHarness;
use crate::segments::NEXT;
use crate::snapshots::{ids, ranges, rewind_to};
use crate::suites::{Known, holds};

/// The longest draft, which is sealed after each of its tokens.
const DRAFT_MAX: usize = 64;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "mlx.snapshots.rotating",
        own_cases: 6,
        beside: &[],
        shapes: &[
            (&["window", "fill", "rewind_to"], outside_window),
            (
                &["window", "fill", "snapshot", "fill_more"],
                window_retained,
            ),
            (&["cases", "draft", "accepted"], restored_by_reference),
            (&["cases", "draft"], each_token),
            (&["cases", "schedule"], single_token),
            (&["window", "schedule", "writes"], later_chunk),
        ],
    },
    Known {
        suite: "mlx.snapshots.recurrent",
        own_cases: 4,
        beside: &[],
        shapes: &[
            (&["advance", "snapshot", "advance_more"], exact_offset),
            (&["L", "real_len"], ragged),
            (&["before", "draft", "schedule"], segmented),
            (&["expect.conv_dtype", "expect.delta_dtype"], initial),
        ],
    },
];

/// Tokens, among the first `at`, whose state a window layer has there: held without a gap, up
/// to its window.
fn held(harness: &CacheHarness, window: usize, tokens: &[TokenId], at: usize) -> Vec<TokenId> {
    assert!(
        at <= tokens.len(),
        "{at} is among the {} tokens",
        tokens.len()
    );
    let mut path: Vec<_> = harness.nodes();
    path.retain(|node| tokens[..at].starts_with(&node.spelt));
    let mut held = 0;
    for node in path.iter().rev() {
        let of_node = node.view.bytes / harness.oracle.layer_bytes.token;
        held += of_node;
        if of_node < node.view.tokens.len() {
            break;
        }
    }
    tokens[at - held.min(window)..at].to_vec()
}

fn outside_window(check: &mut Check, case: &Fact<'_>) {
    let tokens = case.get("window").number();
    let mut harness = CacheHarness::new(&[Window { tokens }]);
    let tokens = ids(case.get("fill").number());
    // The case has no state before the last token.
    harness.converse(&tokens, &[tokens.len()]);
    let to = case.get("rewind_to").within(0..=tokens.len());
    check.same(
        "goes back",
        harness.can_resume(&tokens, to),
        case.get("expect").flag(),
    );
}

fn window_retained(check: &mut Check, case: &Fact<'_>) {
    let window = case.get("window").number();
    let [fill, more] = ["fill", "fill_more"].map(|field| case.get(field).number());
    let to = case.get("restore_to").within(0..=fill + more);
    assert!(case.get("snapshot").flag());
    let mut harness = CacheHarness::new(&[Window { tokens: window }]);
    let tokens = ids(fill + more);
    harness.converse(&tokens, &[fill]);
    let expect = case.get("expect");
    let state = held(&harness, window, &tokens, to).len();
    check.same("tokens held", state, expect.get("state_len").number());
    let offset = rewind_to(&mut harness, &tokens, to);
    check.same("offset", offset, expect.get("offset").number());
}

/// A model with a window, sealed after each token of a draft.
fn drafted(
    case: &Fact<'_>,
    draft: usize,
    mut inspect: impl FnMut(CacheHarness, &[TokenId], usize, usize),
) {
    for case in case.get("cases").items() {
        let [window, before] = ["window", "before"].map(|field| case.get(field).number());
        let tokens = ids(before + draft);
        let mut harness = CacheHarness::new(&[Window { tokens: window }]);
        let points: Vec<usize> = (before..=before + draft).collect();
        harness.converse(&tokens, &points);
        inspect(harness, &tokens, window, before);
    }
}

/// The tokens that a window must hold at an offset.
fn last(tokens: &[TokenId], window: usize, at: usize) -> Vec<TokenId> {
    assert!(
        at <= tokens.len(),
        "{at} is among the {} tokens",
        tokens.len()
    );
    tokens[at - at.min(window)..at].to_vec()
}

fn each_token(check: &mut Check, case: &Fact<'_>) {
    let draft = case.get("draft").within(1..=DRAFT_MAX);
    drafted(case, draft, |mut harness, tokens, window, before| {
        for at in before..=before + draft {
            assert_eq!(held(&harness, window, tokens, at), last(tokens, window, at));
            assert_eq!(rewind_to(&mut harness, tokens, at), at);
        }
        harness.check_no_leak();
    });
    let some = draft - 1;
    let words = format!(
        "for accepted 0..{some} restore(snapshot[accepted], before+accepted) ok and the window \
         holds the last min(offset,window) positions in order; accepted {draft}: offset \
         before+{draft}"
    );
    check.prose(&case.get("expect"), &words);
}

fn restored_by_reference(check: &mut Check, case: &Fact<'_>) {
    check.lacks("snapshots that are copied later");
    let draft = case.get("draft").within(1..=DRAFT_MAX);
    let accepted = case.get("accepted").within(0..=draft);
    drafted(case, draft, |mut harness, tokens, window, before| {
        let at = before + accepted;
        let prompt = [&tokens[..at], &[NEXT]].concat();
        let sealed = harness.oracle.counters.now();
        let live = harness.open_slot(&prompt, &[at]);
        assert_eq!(live.cached, at);
        harness.step(&[(live.sequence, &[NEXT])]);
        let now = harness.oracle.counters.now();
        assert_eq!(
            now.segments_alive, sealed.segments_alive,
            "no copy, then or later"
        );
        assert_eq!(now.bytes_alive - sealed.bytes_alive, harness.tail_bytes(1));
        assert_eq!(held(&harness, window, tokens, at), last(tokens, window, at));
    });
    let words = "restore does not copy; snapshot stays lazy; next write copies it out with the \
                 same window";
    check.prose(&case.get("expect"), words);
}

fn single_token(check: &mut Check, case: &Fact<'_>) {
    let schedule = case.get("schedule").text();
    let Some(after) = schedule.strip_prefix("before+") else {
        panic!("`{schedule}` is not of the form `before+N`");
    };
    let after = number_in(after, DRAFT_MAX);
    drafted(case, after, |mut harness, tokens, window, before| {
        let at = before + after;
        assert_eq!(held(&harness, window, tokens, at), last(tokens, window, at));
        assert_eq!(rewind_to(&mut harness, tokens, at), at);
    });
    let words = format!("restore gives the last min({schedule},window) positions");
    check.prose(&case.get("expect"), &words);
}

/// A chunk ends at an offset whose state is to be taken; the next chunk continues from there.
fn later_chunk(check: &mut Check, case: &Fact<'_>) {
    let window = case.get("window").number();
    let writes = case.get("writes").numbers();
    let tokens = ids(writes.iter().sum());
    let mut harness = CacheHarness::new(&[Window { tokens: window }]);
    let live = harness.open_slot(&tokens, &case.get("schedule").numbers());
    let mut rest = &tokens[..];
    for write in writes {
        let chunks = rest.split_at_checked(write);
        let (chunk, later) = chunks.expect("the tokens are those of all writes");
        harness.evaluate(live.sequence, chunk);
        rest = later;
    }
    harness.close(live.sequence);
    for (field, expected) in case.get("expect").fields() {
        let number = field
            .trim_start_matches("restore_")
            .trim_end_matches("_on_fresh");
        let at = number_in(number, tokens.len());
        let state = held(&harness, window, &tokens, at);
        check.same(field, state, expected.tokens());
        assert_eq!(rewind_to(&mut harness, &tokens, at), at);
    }
}

fn exact_offset(check: &mut Check, case: &Fact<'_>) {
    let [advance, more] = ["advance", "advance_more"].map(|field| case.get(field).number());
    assert!(case.get("snapshot").flag());
    let mut harness = CacheHarness::new(&[Recurrent]);
    let tokens = ids(advance + more + 1);
    let live = harness.open_slot(&tokens, &[advance]);
    harness.evaluate(live.sequence, &tokens[..advance + more]);
    for (field, expected) in case.get("expect").fields() {
        if let Some(at) = field.strip_prefix("restore_") {
            let at = number_in(at, tokens.len());
            check.same(field, harness.can_resume(&tokens, at), expected.flag());
        } else {
            assert_eq!(field, "offset_after", "an unknown field");
            let cached = rewind_to(&mut harness, &tokens, advance);
            check.same(field, cached, expected.number());
        }
    }
}

/// Recurrent layers run on the oracle; the content of their state is the model's own matter.
/// The cache only knows that it does not grow.
fn initial(check: &mut Check, case: &Fact<'_>) {
    check.lacks("types of recurrent state");
    let mut harness = CacheHarness::new(&[Recurrent]);
    let live = harness.open_slot(&[1], &[]).sequence;
    let expect = case.get("expect");
    let offset = harness.tokens(live).len();
    check.same("offset", offset, expect.get("offset").number());
    assert_eq!(harness.tail_bytes(1), harness.tail_bytes(100));
    check.prose(&expect.get("conv_dtype"), "activation dtype");
    check.prose(&expect.get("delta_dtype"), "f32");
}

/// Batches are ragged: a short span beside a long one is not padded.
fn ragged(check: &mut Check, case: &Fact<'_>) {
    let long = case.get("L").number();
    let short = case.get("real_len").within(1..=long);
    let mut harness = CacheHarness::new(&[Recurrent]);
    let tokens = ids(long);
    let other: Vec<TokenId> = tokens.iter().map(|token| 100 + token).collect();
    let [a, b] =
        [&tokens[..], &other[..short]].map(|prompt| harness.open_slot(prompt, &[]).sequence);
    harness.step(&[(a, &tokens), (b, &other[..short])]);
    let expect = case.get("expect");
    check.same(
        "offset",
        harness.tokens(b).len(),
        expect.get("offset").number(),
    );
    // The harness compares every row with that of a reference run.
    let matches_reference = holds(|| harness.step(&[(b, &[NEXT])]));
    let expected = expect.get("state_equals_unpadded").flag();
    check.same("state", matches_reference, expected);
}

fn segmented(check: &mut Check, case: &Fact<'_>) {
    let before = case.get("before").number();
    let draft = case.get("draft").within(1..=DRAFT_MAX);
    let schedule = case.get("schedule").numbers();
    let all: Vec<usize> = (before..before + draft).collect();
    assert_eq!(schedule, all, "before each token of the draft");
    let tokens = ids(before + draft);
    let mut harness = CacheHarness::new(&[Recurrent]);
    let live = harness.open_slot(&tokens, &schedule).sequence;
    harness.evaluate(live, &tokens[..before]);
    let expect = case.get("expect");
    let inside = harness.checkpoints(live).into_iter().map(|at| at - before);
    let expected = expect.get("interior_splits_relative").numbers();
    check.same("cuts", inside.collect(), expected);
    harness.evaluate(live, &tokens[before..]);
    let offset = harness.tokens(live).len();
    check.same("offset", offset, expect.get("offset_after").number());
    let captures = ranges(&harness, &tokens).len();
    check.same("captures", captures, expect.get("captures_count").number());
    harness.close(live);
    for at in before..=before + draft {
        assert_eq!(rewind_to(&mut harness, &tokens, at), at);
    }
    check.prose(
        &expect.get("full_accept_state"),
        &format!("boundary {draft}"),
    );
    let some = draft - 1;
    let words = format!("state of boundary k at offset {before}+k for k=0..{some}");
    check.prose(&expect.get("restore_accepted_k"), &words);
}
