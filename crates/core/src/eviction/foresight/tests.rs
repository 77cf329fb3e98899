use super::*;
use crate::cache::trie::{NodeKey, Sealed, Trie};
use crate::cache::{PrefixKey, Salt};
use crate::eviction::Lru;
use motet_protocol::{SegmentId, TokenId};

/// Counts the tokens found with a budget of `budget` tokens. Each prompt is looked up and
/// published at once.
fn hits(policy: Box<dyn Eviction>, budget: usize, prompts: &[Vec<TokenId>]) -> usize {
    let mut trie = Trie::new(policy);
    let (mut hits, mut segments) = (0, 0);
    for prompt in prompts {
        let root = trie.root_or_new(&Salt::default());
        let found = trie.find(root, &PrefixKey::default(), prompt);
        let mut end = found.path.last().copied().unwrap_or(root);
        let mut sealed = |tokens| {
            segments += 1;
            Sealed {
                segment: SegmentId(segments),
                state_lag: 0,
                bytes: tokens,
            }
        };
        if let Some((node, at)) = found.partial {
            let whole = trie.node(node).edge().len();
            let parts = (sealed(at), sealed(whole - at));
            end = trie
                .split(node, at, parts.0, parts.1)
                .expect("the node is not leased outside the trie");
        }
        let cached = found.tokens_with_partial();
        hits += cached;
        trie.hold(end);
        let (class, sequence_mark) = trie.asked(&PrefixKey::default(), end, prompt);
        trie.use_path(end, class);
        let rest = &prompt[cached..];
        while trie.bytes() + rest.len() > budget && trie.evict().is_some() {}
        let mut last = end;
        if !rest.is_empty() && trie.bytes() + rest.len() <= budget {
            let sealed = sealed(rest.len());
            last = trie.insert(end, &PrefixKey::default(), rest, sealed, 0, class);
        }
        trie.hold(last);
        trie.release(end);
        trie.leave(sequence_mark, last);
        trie.check_integrity();
    }
    hits
}

/// Prompt number `id`, with `tokens` tokens that no other prompt has.
fn prompt(id: usize, tokens: usize) -> Vec<TokenId> {
    (0..tokens).map(|at| (id * 1000 + at) as TokenId).collect()
}

/// Percentage of all requested tokens that LRU finds, and that foresight finds.
fn percents(budget: usize, prompts: &[Vec<TokenId>]) -> (f64, f64) {
    let asked: usize = prompts.iter().map(Vec::len).sum();
    let percent = |hits: usize| 100.0 * hits as f64 / asked as f64;
    (
        percent(hits(Box::new(Lru), budget, prompts)),
        percent(hits(Box::<Foresight>::default(), budget, prompts)),
    )
}

#[track_caller]
fn check(budget: usize, prompts: &[Vec<TokenId>], gain_min: f64) {
    let (lru, ours) = percents(budget, prompts);
    assert!(
        ours >= lru + gain_min,
        "expected {gain_min} points over {lru:.1} %, found {ours:.1} %"
    );
}

/// Conversations that take turns in rotation; each turn adds two tokens.
fn chats(conversations: usize, turns: usize) -> Vec<Vec<TokenId>> {
    let turns = (0..turns).flat_map(|turn| {
        (0..conversations).map(move |conversation| prompt(conversation, 10 + 2 * turn))
    });
    turns.collect()
}

#[test]
fn part_of_a_loop_larger_than_the_budget_stays_cached() {
    let prompts: Vec<_> = (0..3000).map(|at| prompt(at % 50, 8)).collect();
    let (lru, ours) = percents(320, &prompts);
    assert_eq!(lru, 0.0);
    assert!(ours > 60.0, "40 of 50 prompts fit; found {ours:.1} %");
}

#[test]
fn scan_does_not_evict_a_live_chat() {
    // Between two turns of a conversation, prompts of about four times its length pass once.
    let mut prompts = Vec::new();
    for (at, turn) in chats(20, 30).into_iter().enumerate() {
        prompts.push(turn);
        prompts.extend((0..4).map(|job| prompt(100 + 4 * at + job, 60)));
    }
    check(2400, &prompts, 10.0);
}

#[test]
fn popular_prompts_outlast_unpopular_ones() {
    // Every other prompt is one of ten popular ones; the others repeat slowly.
    let prompts: Vec<_> = (0..4000)
        .map(|at| match at % 2 {
            0 => prompt(at / 2 * 7 % 10, 8),
            _ => prompt(10 + at / 2 % 400, 8),
        })
        .collect();
    check(80, &prompts, 20.0);
}

#[test]
fn foresight_is_not_far_below_lru_where_lru_is_right() {
    // Everything fits; then no prompt repeats; then each prompt repeats at once.
    check(10_000, &chats(20, 10), 0.0);
    let once: Vec<_> = (0..2000).map(|at| prompt(at, 8)).collect();
    check(100, &once, 0.0);
    let recent: Vec<_> = (0..3000).map(|at| prompt(at / 3, 8)).collect();
    check(64, &recent, -1.0);
    // The set of popular prompts changes abruptly.
    let sets: Vec<_> = (0..4000)
        .map(|at| prompt(at / 1000 * 20 + at * 7 % 20, 8))
        .collect();
    check(200, &sets, -1.0);
}

#[test]
fn oldest_is_evicted_before_anything_is_learned() {
    let prompts: Vec<_> = [1, 2, 3, 1, 4, 1, 2].map(|id| prompt(id, 8)).to_vec();
    let (lru, ours) = percents(24, &prompts);
    assert_eq!(lru, ours);
}

#[test]
fn demoted_node_has_score_zero() {
    let mut policy = Foresight::default();
    policy.learn(1000);
    let facts = Facts {
        tokens_before: 0,
        tokens: 8,
        bytes: 8,
        last_use: 0,
        class: 0,
    };
    assert_eq!(policy.score(&facts, 1000), 0);
}

#[test]
fn continued_prompt_is_recognized() {
    let mut policy = Foresight::default();
    let ask = |policy: &mut Foresight, tokens: &[TokenId], tick| {
        policy.asked(&Asked {
            key: 7,
            tokens,
            cached_tokens: 0,
            nodes: 1,
            tick,
        })
    };
    for (length, tick) in [(100, 1), (1000, 2), (9000, 3)] {
        let tokens: Vec<TokenId> = (0..length * 2).map(|at| at + 1000 * length).collect();
        let half = &tokens[..length as usize];
        let first = ask(&mut policy, half, tick);
        let node = NodeKey::default();
        policy.finished(first.sequence_mark, node, tick);
        // The last tokens differ from turn to turn.
        let other = [&half[..half.len() - 2], &[1, 2, 3]].concat();
        let then = ask(&mut policy, &other, tick + 10);
        assert_eq!(then.superseded.map(|(node, _)| node), Some(node));
        assert_ne!(then.class, first.class, "a second turn has another class");
        let stranger = ask(&mut policy, &tokens[1..], tick + 20);
        assert_eq!(stranger.superseded, None);
    }
}

#[test]
fn history_is_bounded() {
    let mut policy = Foresight::default();
    for id in 0..40_000 {
        let tokens = prompt(id, 4);
        policy.asked(&Asked {
            key: 0,
            tokens: &tokens,
            cached_tokens: 0,
            nodes: 0,
            tick: id as u64,
        });
    }
    assert_eq!(policy.history.entries().count(), 1 << 14);
}

#[test]
fn bin_bounds_match_their_widths() {
    let mut begin = 0;
    for bin in 0..hazards::BINS {
        assert_eq!(hazards::bin_of(begin), bin);
        assert!(bin == 0 || hazards::bin_of(begin - 1) == bin - 1);
        begin += hazards::width_of(bin) as u64;
    }
    assert_eq!(hazards::bin_of(u64::MAX), hazards::BINS - 1);
}
