//! The best hit rate of any policy: Bélády's rule for contiguous prefixes.
//!
//! The token whose next use is latest is evicted first. A token's state is useful only with
//! the state of all tokens before it, so only ends of prefixes may be evicted. A request that
//! uses a token also uses all tokens before it, so the token with the latest next use is
//! always such an end.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::replay::cache::Outcome;
use crate::replay::trace::Trace;

/// The requests of a trace as paths in the trie of all their tokens.
#[derive(Debug)]
pub(crate) struct Paths {
    /// For each request, its nodes from the root, and the number of them that it asks for.
    paths: Vec<(Vec<usize>, usize)>,
    /// For each request, the next use of each of its nodes.
    next_uses: Vec<Vec<usize>>,
    nodes: usize,
}

impl Paths {
    pub(crate) fn new(trace: &Trace) -> Self {
        let mut children = HashMap::new();
        let mut nodes = 1;
        let mut paths = Vec::new();
        for request in &trace.requests {
            let mut at = 0;
            let path = request.published().map(|token| {
                at = *children.entry((at, token)).or_insert_with(|| {
                    nodes += 1;
                    nodes - 1
                });
                at
            });
            paths.push((path.collect(), request.asked));
        }
        let mut next_use = vec![usize::MAX; nodes];
        let mut next_uses: Vec<Vec<usize>> = Vec::new();
        for (time, (path, asked)) in paths.iter().enumerate().rev() {
            let path: &Vec<usize> = path;
            next_uses.push(path.iter().map(|node| next_use[*node]).collect());
            for node in &path[..*asked] {
                next_use[*node] = time;
            }
        }
        next_uses.reverse();
        Self {
            paths,
            next_uses,
            nodes,
        }
    }

    /// Tokens of the trace, with each prefix counted once.
    pub(crate) fn distinct_tokens(&self) -> usize {
        self.nodes - 1
    }

    /// The hit rate of an unbounded cache.
    pub(crate) fn unbounded_hit_percent(&self) -> f64 {
        self.optimum(usize::MAX, || {}).hit_percent()
    }

    /// The best outcome of a cache with this capacity. `on_request` is called after each
    /// request.
    pub(crate) fn optimum(&self, capacity_tokens: usize, on_request: impl Fn()) -> Outcome {
        let started = Instant::now();
        let mut outcome = Outcome::default();
        let mut cached_until: Vec<Option<usize>> = vec![None; self.nodes];
        let mut order = BTreeSet::new();
        for ((path, asked), next_uses) in self.paths.iter().zip(&self.next_uses) {
            let selected = path[..*asked].iter();
            let hits = selected.take_while(|node| cached_until[**node].is_some());
            outcome.hit_tokens += hits.count();
            outcome.asked_tokens += asked;
            outcome.requests += 1;
            for (node, next_use) in path.iter().zip(next_uses) {
                if let Some(old) = cached_until[*node].replace(*next_use) {
                    order.remove(&(old, *node));
                }
                order.insert((*next_use, *node));
            }
            while order.len() > capacity_tokens {
                let (_, node) = order
                    .pop_last()
                    .expect("a cache over its capacity is not empty");
                cached_until[node] = None;
            }
            on_request();
        }
        outcome.time = started.elapsed();
        outcome
    }
}
