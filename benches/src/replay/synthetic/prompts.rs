//! Synthetic traces of prompts that are repeated unchanged.

use super::generator::{Generator, Zipf};

type Requests = Vec<Vec<u32>>;

/// One prompt after another, over and over: a loop of this share of all blocks, with
/// prompts in between that never come again. An LRU cache that is slightly too small for
/// the loop finds nothing of it.
pub(super) fn looping(g: &mut Generator, share: f64) -> Requests {
    let (requests, distinct) = (20_000, 5_000);
    let looped: Requests = (0..(distinct as f64 * share) as usize)
        .map(|_| g.fresh(8))
        .collect();
    let others = distinct - looped.len();
    let mut next = looped.iter().cycle();
    (0..requests)
        .map(|at| {
            if at * others / requests == (at + 1) * others / requests {
                next.next().expect("a loop has no end").clone()
            } else {
                g.fresh(8)
            }
        })
        .collect()
}

/// Prompts with a popularity by Zipf's law that does not change over time.
pub(super) fn zipf(g: &mut Generator, exponent: f64) -> Requests {
    let prompts = g.prompts(10_000, 10.0);
    let zipf = Zipf::new(prompts.len(), exponent);
    (0..30_000)
        .map(|_| prompts[g.rank(&zipf)].clone())
        .collect()
}

/// A few system prompts, each with the same short questions again and again.
pub(super) fn questions(g: &mut Generator) -> Requests {
    let systems: Requests = (0..20).map(|_| g.fresh(20)).collect();
    let questions: Vec<Requests> = systems
        .iter()
        .map(|_| (0..1500).map(|_| g.fresh(1)).collect())
        .collect();
    let (system, question) = (Zipf::new(20, 0.5), Zipf::new(1500, 0.9));
    (0..20_000)
        .map(|_| {
            let system = g.rank(&system);
            let question = &questions[system][g.rank(&question)];
            [&systems[system][..], question].concat()
        })
        .collect()
}

/// The set of popular prompts changes all at once.
pub(super) fn working_sets(g: &mut Generator) -> Requests {
    let zipf = Zipf::new(1500, 0.9);
    let sets: Vec<Requests> = (0..6).map(|_| g.prompts(1500, 8.0)).collect();
    let requests = sets.iter().flat_map(|set| std::iter::repeat_n(set, 4000));
    requests.map(|set| set[g.rank(&zipf)].clone()).collect()
}

/// Prompts that come back once, after more blocks than an LRU cache would keep.
pub(super) fn late_return(g: &mut Generator) -> Requests {
    let mut requests: Requests = Vec::new();
    for at in 0..12_000 {
        let request = if at > 4000 && g.uniform() < 0.4 {
            requests[at - 3500 - g.below(400)].clone()
        } else {
            g.prompt(10.0)
        };
        requests.push(request);
    }
    requests
}

/// Half of all prompts repeat recent ones, the best case for LRU.
pub(super) fn recent(g: &mut Generator) -> Requests {
    let mut requests: Requests = Vec::new();
    for at in 0..15_000_usize {
        let request = if at > 0 && g.uniform() < 0.5 {
            requests[at.saturating_sub(1 + g.exponential(40.0) as usize)].clone()
        } else {
            g.prompt(10.0)
        };
        requests.push(request);
    }
    requests
}

/// Prompts that come back after heavy-tailed times.
pub(super) fn heavy_tail(g: &mut Generator) -> Requests {
    let mut requests: Requests = Vec::new();
    for at in 0..20_000_usize {
        let request = if at > 10 && g.uniform() < 0.6 {
            requests[at
                .saturating_sub(g.uniform().powf(-1.2).max(1.0) as usize)
                .min(at - 1)]
            .clone()
        } else {
            g.prompt(10.0)
        };
        requests.push(request);
    }
    requests
}

/// The set of popular prompts changes slowly.
pub(super) fn drift(g: &mut Generator) -> Requests {
    let (requests, prompts) = (30_000, g.prompts(20_000, 8.0));
    (0..requests)
        .map(|at| {
            let newest = at * prompts.len() / requests;
            let prompt = newest + g.exponential(300.0) as usize;
            prompts[prompt.min(prompts.len() - 1)].clone()
        })
        .collect()
}

/// Each prompt comes twice, and then never again.
pub(super) fn twice(g: &mut Generator) -> Requests {
    let mut timeline = super::generator::Timeline::default();
    for at in 0..8000 {
        let prompt = g.prompt(10.0);
        timeline.add(f64::from(at), prompt.clone());
        timeline.add(f64::from(at) + g.exponential(400.0), prompt);
    }
    timeline.requests()
}

/// A loop, popular prompts, a scan, and again.
pub(super) fn phases(g: &mut Generator) -> Requests {
    let looped: Requests = (0..800).map(|_| g.fresh(10)).collect();
    let popular = g.prompts(4000, 10.0);
    let zipf = Zipf::new(popular.len(), 0.8);
    (0..20_000)
        .map(|at| match at / 2000 % 3 {
            0 => looped[at % looped.len()].clone(),
            1 => popular[g.rank(&zipf)].clone(),
            _ => g.fresh(10),
        })
        .collect()
}
