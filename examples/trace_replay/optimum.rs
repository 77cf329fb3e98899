//! The most that any policy could have found: Bélády's rule for contiguous prefixes.
//!
//! What is used again last goes first. A token's state is of use only with all that
//! comes before, so only ends of prefixes go; since whoever uses a token uses what is
//! before it, the token that is used last of all is always such an end.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use crate::replay::Outcome;
use crate::trace::Trace;

/// The requests of a trace as paths in the trie of all their tokens.
#[derive(Debug)]
pub(crate) struct Paths {
    /// For each request, its nodes from the top, and how many of them it asks for.
    paths: Vec<(Vec<usize>, usize)>,
    /// For each request, when each of its nodes is used next.
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

    /// Tokens that the trace has, each prefix once.
    pub(crate) fn distinct_tokens(&self) -> usize {
        self.nodes - 1
    }

    /// What a cache without bounds would find.
    pub(crate) fn unbounded_hit_percent(&self) -> f64 {
        self.optimum(usize::MAX, || {}).hit_percent()
    }

    /// What one with so many tokens can find at most. `on_request` is called after each
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
                let (_, node) = order.pop_last().expect("more than some are cached");
                cached_until[node] = None;
            }
            on_request();
        }
        outcome.time = started.elapsed();
        outcome
    }
}
