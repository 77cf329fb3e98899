//! Synthetic traces of conversations, alone and mixed with other loads.

use super::generator::{Generator, Timeline, Zipf};

type Requests = Vec<Vec<u32>>;

/// The parameters of a trace's conversations.
#[derive(Clone, Copy, Debug)]
struct Chats<'a> {
    conversations: usize,
    system: &'a [u32],
    /// Conversations begin between `from` and `from + span`.
    from: f64,
    span: f64,
    /// Mean time between two turns.
    think: f64,
    /// Mean number of turns.
    turns: f64,
    first_blocks: f64,
    more_blocks: f64,
    /// Whether the last block of each prompt is not full, so that the next turn has another one.
    partial: bool,
}

/// A long period of conversations in which a turn is equally likely at any time.
const STEADY: Chats<'static> = Chats {
    conversations: 3000,
    system: &[],
    from: 0.0,
    span: 12_000.0,
    think: 200.0,
    turns: 4.0,
    first_blocks: 10.0,
    more_blocks: 3.0,
    partial: false,
};

impl Chats<'_> {
    fn add_to(self, timeline: &mut Timeline, g: &mut Generator) {
        for _ in 0..self.conversations {
            let mut at = self.from + g.uniform() * self.span;
            let mut prompt = [self.system, &g.prompt(self.first_blocks)].concat();
            for _ in 0..g.geometric(self.turns) {
                let mut request = prompt.clone();
                request.extend(g.fresh(usize::from(self.partial)));
                timeline.add(at, request);
                at += g.exponential(self.think);
                prompt.extend(g.prompt(self.more_blocks));
            }
        }
    }
}

fn made(g: &mut Generator, add: impl FnOnce(&mut Timeline, &mut Generator)) -> Requests {
    let mut timeline = Timeline::default();
    add(&mut timeline, g);
    timeline.requests()
}

/// One system prompt, and users that ask once.
pub(super) fn one_shots(g: &mut Generator) -> Requests {
    let system = g.fresh(20);
    (0..10_000)
        .map(|_| [&system[..], &g.prompt(8.0)].concat())
        .collect()
}

pub(super) fn steady(g: &mut Generator, think: f64, turns: f64) -> Requests {
    let system = g.fresh(4);
    let chats = Chats {
        conversations: 4000,
        system: &system,
        think,
        turns,
        ..STEADY
    };
    made(g, |timeline, g| chats.add_to(timeline, g))
}

/// Each turn leaves a block that the next turn does not reuse.
pub(super) fn partial(g: &mut Generator) -> Requests {
    let chats = Chats {
        think: 300.0,
        first_blocks: 6.0,
        more_blocks: 2.0,
        partial: true,
        ..STEADY
    };
    made(g, |timeline, g| chats.add_to(timeline, g))
}

/// A batch job sends many requests, once, in the middle of the day.
pub(super) fn with_batch(g: &mut Generator) -> Requests {
    let system = g.fresh(4);
    let chats = Chats {
        system: &system,
        turns: 5.0,
        ..STEADY
    };
    made(g, |timeline, g| {
        chats.add_to(timeline, g);
        for job in 0..3000 {
            timeline.add(5000.0 + f64::from(job) / 2.0, g.fresh(12));
        }
    })
}

/// The mean time between turns changes in the middle of the trace.
pub(super) fn change(g: &mut Generator, think_first: f64, think_then: f64) -> Requests {
    let system = g.fresh(4);
    let first = Chats {
        system: &system,
        think: think_first,
        span: 7000.0,
        ..STEADY
    };
    let then = Chats {
        think: think_then,
        from: 9000.0,
        ..first
    };
    made(g, |timeline, g| {
        first.add_to(timeline, g);
        then.add_to(timeline, g);
    })
}

/// Users return to an earlier turn and continue differently from there.
pub(super) fn regenerate(g: &mut Generator) -> Requests {
    made(g, |timeline, g| {
        for _ in 0..3000 {
            let mut at = g.uniform() * 12_000.0;
            let mut prompt = g.prompt(10.0);
            let mut earlier = Vec::new();
            for _ in 0..g.geometric(5.0) {
                timeline.add(at, prompt.clone());
                earlier.push(prompt.clone());
                at += g.exponential(150.0);
                if g.uniform() < 0.4 {
                    prompt = earlier[g.below(earlier.len())].clone();
                }
                prompt.extend(g.prompt(3.0));
            }
        }
    })
}

/// Long shared descriptions of tools, with many short branches.
pub(super) fn agents(g: &mut Generator) -> Requests {
    let tools: Requests = (0..40).map(|_| g.fresh(60)).collect();
    let zipf = Zipf::new(tools.len(), 0.8);
    made(g, |timeline, g| {
        for _ in 0..3000 {
            let mut at = g.uniform() * 12_000.0;
            let tools = &tools[g.rank(&zipf)];
            let mut prompt = [&tools[..], &g.prompt(3.0)].concat();
            for _ in 0..g.geometric(4.0) {
                timeline.add(at, prompt.clone());
                at += g.exponential(10.0);
                if g.uniform() < 0.3 {
                    timeline.add(at, [&prompt[..], &g.fresh(2)].concat());
                }
                prompt.extend(g.prompt(2.0));
            }
        }
    })
}

/// A trunk grows, several branches follow from it at once, and none is used again.
pub(super) fn bursts(g: &mut Generator) -> Requests {
    let mut requests = Vec::new();
    for _ in 0..1500 {
        let trunk = g.prompt(20.0);
        for _ in 0..g.geometric(8.0) {
            let branch = [&trunk[..], &g.prompt(4.0)].concat();
            requests.push(branch.clone());
            if g.uniform() < 0.5 {
                requests.push([&branch[..], &g.prompt(3.0)].concat());
            }
        }
    }
    requests
}

/// Conversations, popular prompts, one-shots and a loop, all at once.
pub(super) fn mixture(g: &mut Generator) -> Requests {
    let system = g.fresh(10);
    let chats = Chats {
        conversations: 2500,
        system: &system,
        think: 300.0,
        ..STEADY
    };
    let popular = g.prompts(3000, 10.0);
    let zipf = Zipf::new(popular.len(), 0.9);
    let looped: Requests = (0..300).map(|_| g.fresh(10)).collect();
    made(g, |timeline, g| {
        chats.add_to(timeline, g);
        for _ in 0..8000 {
            let at = g.uniform() * 12_000.0;
            timeline.add(at, popular[g.rank(&zipf)].clone());
        }
        for _ in 0..4000 {
            let at = g.uniform() * 12_000.0;
            timeline.add(at, g.fresh(15));
        }
        for at in 0..3000 {
            timeline.add(4.0 * at as f64, looped[at % looped.len()].clone());
        }
    })
}
