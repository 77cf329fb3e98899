use super::super::super::trie::{NodeKey, Sealed, Trie};
use super::*;
use crate::cache::Salt;
use crate::cache::eviction::Lru;
use crate::{SegmentId, TokenId};

/// Tokens found, with so many tokens of room: each prompt is looked up and, at once,
/// published.
fn hits(policy: Box<dyn Eviction>, room: usize, prompts: &[Vec<TokenId>]) -> usize {
    let mut trie = Trie::new(policy);
    let (mut hits, mut segments) = (0, 0);
    for prompt in prompts {
        let root = trie.root_or_new(&Salt::default());
        let found = trie.find(root, prompt);
        let mut end = found.path.last().copied().unwrap_or(root);
        let mut sealed = |tokens| {
            segments += 1;
            Sealed {
                segment: SegmentId(segments),
                beyond: 0,
                bytes: tokens,
            }
        };
        if let Some((node, at)) = found.partial {
            let whole = trie.node(node).edge().len();
            let parts = (sealed(at), sealed(whole - at));
            end = trie
                .split(node, at, parts.0, parts.1)
                .expect("nobody holds it");
        }
        let cached = found.tokens_with_partial();
        hits += cached;
        trie.hold(end);
        let (class, ticket) = trie.asked(&Salt::default(), end, prompt);
        trie.use_path(end, class);
        let rest = &prompt[cached..];
        while trie.bytes() + rest.len() > room && trie.evict().is_some() {}
        let mut last = end;
        if !rest.is_empty() && trie.bytes() + rest.len() <= room {
            last = trie.insert(end, rest, sealed(rest.len()), 0, class);
        }
        trie.hold(last);
        trie.release(end);
        trie.leave(ticket, last);
        trie.check_integrity();
    }
    hits
}

/// Prompt number `id`, of so many tokens that no other prompt has.
fn prompt(id: usize, tokens: usize) -> Vec<TokenId> {
    (0..tokens).map(|at| (id * 1000 + at) as TokenId).collect()
}

/// Of all tokens asked for, in percent: what LRU finds, and what foresight does.
fn percents(room: usize, prompts: &[Vec<TokenId>]) -> (f64, f64) {
    let asked: usize = prompts.iter().map(Vec::len).sum();
    let percent = |hits: usize| 100.0 * hits as f64 / asked as f64;
    (
        percent(hits(Box::new(Lru), room, prompts)),
        percent(hits(Box::<Foresight>::default(), room, prompts)),
    )
}

#[track_caller]
fn check(room: usize, prompts: &[Vec<TokenId>], gain_min: f64) {
    let (lru, ours) = percents(room, prompts);
    assert!(
        ours >= lru + gain_min,
        "expected {gain_min} points over {lru:.1} %, found {ours:.1} %"
    );
}

/// Conversations that take turns after one another, each growing by two tokens.
fn chats(conversations: usize, turns: usize) -> Vec<Vec<TokenId>> {
    let turns = (0..turns).flat_map(|turn| {
        (0..conversations).map(move |conversation| prompt(conversation, 10 + 2 * turn))
    });
    turns.collect()
}

#[test]
fn a_loop_that_does_not_fit_is_kept_in_part() {
    let prompts: Vec<_> = (0..3000).map(|at| prompt(at % 50, 8)).collect();
    let (lru, ours) = percents(320, &prompts);
    assert_eq!(lru, 0.0);
    assert!(ours > 60.0, "40 of 50 prompts fit; found {ours:.1} %");
}

#[test]
fn a_scan_does_not_push_out_a_live_chat() {
    // Between two turns of a conversation, four times its length goes by once.
    let mut prompts = Vec::new();
    for (at, turn) in chats(20, 30).into_iter().enumerate() {
        prompts.push(turn);
        prompts.extend((0..4).map(|job| prompt(100 + 4 * at + job, 60)));
    }
    check(2400, &prompts, 10.0);
}

#[test]
fn popular_prompts_outlast_unpopular_ones() {
    // Every other prompt is one of ten; the others come round slowly.
    let prompts: Vec<_> = (0..4000)
        .map(|at| match at % 2 {
            0 => prompt(at / 2 * 7 % 10, 8),
            _ => prompt(10 + at / 2 % 400, 8),
        })
        .collect();
    check(80, &prompts, 20.0);
}

#[test]
fn is_never_far_below_recency_where_recency_is_right() {
    // All fits; nothing comes back; what comes back was there a moment ago.
    check(10_000, &chats(20, 10), 0.0);
    let once: Vec<_> = (0..2000).map(|at| prompt(at, 8)).collect();
    check(100, &once, 0.0);
    let recent: Vec<_> = (0..3000).map(|at| prompt(at / 3, 8)).collect();
    check(64, &recent, -1.0);
    // What is popular changes at once.
    let sets: Vec<_> = (0..4000)
        .map(|at| prompt(at / 1000 * 20 + at * 7 % 20, 8))
        .collect();
    check(200, &sets, -1.0);
}

#[test]
fn before_anything_is_learned_the_oldest_goes() {
    let prompts: Vec<_> = [1, 2, 3, 1, 4, 1, 2].map(|id| prompt(id, 8)).to_vec();
    let (lru, ours) = percents(24, &prompts);
    assert_eq!(lru, ours);
}

#[test]
fn what_was_given_up_is_worth_nothing() {
    let mut policy = Foresight::default();
    policy.learn(1000);
    let facts = Facts {
        tokens_before: 0,
        tokens: 8,
        bytes: 8,
        last_use: 0,
        class: 0,
    };
    assert_eq!(policy.worth(&facts, 1000), 0);
}

#[test]
fn a_prompt_that_goes_on_is_known_again() {
    let mut policy = Foresight::default();
    let ask = |policy: &mut Foresight, tokens: &[TokenId], tick| {
        policy.asked(&Asked {
            salt: 7,
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
        policy.left(first.ticket, node, tick);
        // The last words differ from turn to turn.
        let other = [&half[..half.len() - 2], &[1, 2, 3]].concat();
        let then = ask(&mut policy, &other, tick + 10);
        assert_eq!(then.superseded.map(|(node, _)| node), Some(node));
        assert_ne!(then.class, first.class, "a second turn is another class");
        let stranger = ask(&mut policy, &tokens[1..], tick + 20);
        assert_eq!(stranger.superseded, None);
    }
}

#[test]
fn the_history_keeps_to_its_bound() {
    let mut policy = Foresight::default();
    for id in 0..40_000 {
        let tokens = prompt(id, 4);
        policy.asked(&Asked {
            salt: 0,
            tokens: &tokens,
            cached_tokens: 0,
            nodes: 0,
            tick: id as u64,
        });
    }
    assert_eq!(policy.history.entries().count(), 1 << 14);
}

#[test]
fn bins_are_as_wide_as_they_say() {
    let mut begin = 0;
    for bin in 0..hazards::BINS {
        assert_eq!(hazards::bin_of(begin), bin);
        assert!(bin == 0 || hazards::bin_of(begin - 1) == bin - 1);
        begin += hazards::width_of(bin) as u64;
    }
    assert_eq!(hazards::bin_of(u64::MAX), hazards::BINS - 1);
}
