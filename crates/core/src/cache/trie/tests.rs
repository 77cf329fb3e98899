use super::*;
use crate::eviction::Lru;

fn sealed(segment: u64, tokens: usize) -> Sealed {
    Sealed {
        segment: SegmentId(segment),
        state_lag: 0,
        bytes: tokens,
    }
}

/// A trie of the given texts, one segment each, numbered from 1.
fn trie(texts: &[&[TokenId]]) -> Trie {
    let mut trie = Trie::new(Box::new(Lru));
    let root = trie.root_or_new(&Salt::default());
    for (i, text) in texts.iter().enumerate() {
        let found = trie.find(root, &PrefixKey::default(), text);
        let mut parent = found.path.last().copied().unwrap_or(root);
        let mut from = found.tokens;
        if let Some((node, at)) = found.partial {
            let id = 1000 + 2 * i as u64;
            let rest = trie.node(node).edge().len() - at;
            let halves = (sealed(id, at), sealed(id + 1, rest));
            parent = trie.split(node, at, halves.0, halves.1).unwrap();
            from += at;
        }
        if from < text.len() {
            let segment = sealed(i as u64 + 1, text.len() - from);
            let node = trie.insert(
                parent,
                &PrefixKey::default(),
                &text[from..],
                segment,
                0,
                Class::default(),
            );
            trie.touch(node);
        }
        trie.check_integrity();
    }
    trie
}

fn end(trie: &Trie, text: &[TokenId]) -> NodeKey {
    let found = trie.find(
        trie.root(&Salt::default()).unwrap(),
        &PrefixKey::default(),
        text,
    );
    assert_eq!(found.tokens, text.len(), "{text:?} is cached");
    *found.path.last().unwrap()
}

fn check(texts: &[&[TokenId]], query: &[TokenId], full: usize, with_partial: usize) {
    let trie = trie(texts);
    let found = trie.find(
        trie.root(&Salt::default()).unwrap(),
        &PrefixKey::default(),
        query,
    );
    assert_eq!(
        (found.tokens, found.tokens_with_partial()),
        (full, with_partial)
    );
}

#[test]
fn continuation_is_what_came_after_the_tokens_last() {
    let trie = trie(&[&[1, 2, 3], &[1, 2, 3, 4, 5], &[1, 2, 3, 4, 6, 7], &[9]]);
    let root = trie.root(&Salt::default()).unwrap();
    let check = |tokens: &[TokenId], tokens_max, expected: &[TokenId]| {
        let continuation = trie.continuation(root, &PrefixKey::default(), tokens, tokens_max);
        assert_eq!(*continuation, *expected);
    };
    check(&[1, 2], 9, &[3, 4, 6, 7]);
    check(&[1, 2], 2, &[3, 4]);
    check(&[1, 2, 3, 4, 5], 9, &[]);
    check(&[1, 2, 8], 9, &[]);
    check(&[8], 9, &[]);
}

#[test]
fn finds_full_edges_then_one_partial_edge() {
    check(&[], &[1, 2], 0, 0);
    check(&[&[1, 2, 3]], &[1, 2, 3, 4], 3, 3);
    check(&[&[1, 2, 3]], &[1, 2, 9], 0, 2);
    check(&[&[1, 2, 3], &[1, 2, 4]], &[1, 2, 4, 5], 3, 3);
    check(&[&[1, 2, 3], &[1, 2, 4, 5]], &[1, 2, 4, 6], 2, 3);
    check(&[&[1], &[1, 2], &[1, 2, 3]], &[1, 2, 3], 3, 3);
}

#[test]
fn common_prefixes_of_all_lengths() {
    let text: Vec<TokenId> = (0..100).collect();
    for at in 0..100 {
        let mut other = text.clone();
        other[at] ^= 1 << 20;
        assert_eq!(common_prefix(&text, &other), at);
        assert_eq!(common_prefix(&text[..at], &text), at);
    }
}

#[test]
fn many_children_are_found_and_removed() {
    let texts: Vec<Vec<TokenId>> = (0..40).map(|i| vec![7, i, i]).collect();
    let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
    let mut trie = trie(&texts);
    for text in &texts {
        end(&trie, text);
    }
    while trie.evict().is_some() {
        trie.check_integrity();
    }
    assert!(trie.is_empty());
}

#[test]
fn split_keeps_the_old_end_and_the_ref_counts() {
    let mut trie = trie(&[&[1, 2, 3, 4]]);
    let old = end(&trie, &[1, 2, 3, 4]);
    trie.hold(old);
    let above = trie.split(old, 1, sealed(7, 1), sealed(8, 3)).unwrap();
    trie.check_integrity();
    assert_eq!(trie.path(old).as_slice(), [above, old]);
    assert_eq!(trie.node(above).ref_count(), 1);
    trie.release(old);
    trie.check_integrity();
}

#[test]
fn split_fails_under_an_outside_lease() {
    let mut trie = trie(&[&[1, 2, 3, 4]]);
    let node = end(&trie, &[1, 2, 3, 4]);
    trie.hold(node);
    let lease = trie.node(node).lease_count().lease();
    assert_eq!(trie.split(node, 1, sealed(7, 1), sealed(8, 3)), None);
    trie.check_integrity();
    drop(lease);
    assert!(trie.split(node, 1, sealed(7, 1), sealed(8, 3)).is_some());
}

#[test]
fn merging_keeps_the_lower_end() {
    let mut trie = trie(&[&[1, 2, 3], &[1, 2, 3, 4, 5]]);
    let (upper, lower) = (end(&trie, &[1, 2, 3]), end(&trie, &[1, 2, 3, 4, 5]));
    assert_eq!(trie.merges(upper), Some(lower));
    trie.hold(upper);
    assert_eq!(trie.merges(upper), None, "a held node stays");
    trie.release(upper);
    let gone = trie.merge(upper, sealed(9, 5));
    assert_eq!(gone, (SegmentId(1), SegmentId(2)));
    assert!(!trie.contains(upper));
    assert_eq!(trie.node(lower).edge(), [1, 2, 3, 4, 5]);
    trie.check_integrity();
    trie.evict();
    assert!(trie.is_empty());
}

#[test]
fn restore_points_and_forks_are_not_merged() {
    let mut trie = trie(&[&[1, 2], &[1, 2, 3], &[1, 2, 4], &[9], &[9, 9]]);
    assert_eq!(trie.merges(end(&trie, &[1, 2])), None, "two children");
    let restorable = end(&trie, &[9]);
    trie.keep_restorable(restorable);
    assert_eq!(trie.merges(restorable), None);
}

#[test]
fn evicts_oldest_leaves_first_and_never_held_ones() {
    let mut trie = trie(&[&[1, 2], &[1, 2, 3], &[1, 2, 4], &[5]]);
    trie.use_path(end(&trie, &[1, 2, 3]), Class::default());
    let held = end(&trie, &[5]);
    trie.hold(held);
    let mut evicted = Vec::new();
    while let Some(gone) = trie.evict() {
        evicted.push(gone.segment.0);
        trie.check_integrity();
    }
    assert_eq!(evicted, [3, 2, 1]);
    assert_eq!(trie.protected_bytes(), trie.bytes());
    trie.release(held);
    assert_eq!(trie.evict().unwrap().segment, SegmentId(4));
    assert!(trie.is_empty());
    assert_eq!((trie.tokens(), trie.bytes()), (0, 0));
}

#[test]
fn lowest_retention_is_evicted_first() {
    let mut trie = trie(&[&[1], &[2], &[3]]);
    trie.raise_retention(end(&trie, &[1]), 2);
    trie.raise_retention(end(&trie, &[2]), 1);
    let order = std::iter::from_fn(|| trie.evict()).map(|gone| gone.segment.0);
    assert_eq!(order.collect::<Vec<_>>(), [3, 2, 1]);
}

#[test]
fn salts_share_nothing() {
    let mut trie = trie(&[&[1, 2, 3]]);
    let tenant = PrefixKey::of(Salt::new("tenant"));
    let other = trie.root_or_new(&tenant.salt);
    assert_eq!(trie.find(other, &tenant, &[1, 2, 3]), Match::default());
    let node = trie.insert(
        other,
        &tenant,
        &[1, 2, 3],
        sealed(9, 3),
        0,
        Class::default(),
    );
    assert_ne!(node, end(&trie, &[1, 2, 3]));
    let numbers = (
        Salt::default().fingerprint(),
        Salt::new("tenant").fingerprint(),
    );
    assert_ne!(numbers.0, numbers.1);
    trie.check_integrity();
    trie.clear(other);
    assert_eq!(
        trie.root(&Salt::new("tenant")),
        None,
        "an empty root is removed"
    );
    assert_eq!(trie.tokens(), 3);
}

#[test]
fn adapters_share_what_is_before_their_first_token() {
    let mut trie = trie(&[&[1, 2, 3, 4, 5]]);
    let root = trie.root(&Salt::default()).unwrap();
    let key = |content, from| PrefixKey {
        salt: Salt::default(),
        adapter: Some(ActiveAdapter {
            key: AdapterKey {
                digest: [content; 32],
                scale: 0,
            },
            from,
        }),
    };
    let (whole, activated) = (key(1, 0), key(1, 3));
    assert_eq!(trie.find(root, &whole, &[1, 2, 3, 4]), Match::default());
    let found = trie.find(root, &activated, &[1, 2, 3, 4]);
    assert_eq!(found.tokens_with_partial(), 3, "up to its first token");
    let (node, at) = found.partial.expect("the base goes on");
    let base = trie
        .split(node, at, sealed(10, 3), sealed(11, 2))
        .expect("no one leases it");
    let own = trie.insert(
        base,
        &activated,
        &[4, 5],
        sealed(12, 2),
        0,
        Class::default(),
    );
    trie.insert(root, &whole, &[1, 2], sealed(13, 2), 0, Class::default());
    trie.check_integrity();
    assert_eq!(trie.key_above(own), activated);
    assert_eq!(trie.key_above(base), PrefixKey::default());
    let tokens = |key: &PrefixKey| trie.find(root, key, &[1, 2, 3, 4, 5]).tokens_with_partial();
    assert_eq!(tokens(&PrefixKey::default()), 5);
    assert_eq!(tokens(&activated), 5);
    assert_eq!(tokens(&whole), 2);
    assert_eq!(tokens(&key(1, 2)), 2, "it begins elsewhere");
    assert_eq!(tokens(&key(2, 3)), 3, "another adapter");
    assert_eq!(trie.merges(base), None);
}
