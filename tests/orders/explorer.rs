//! Every order of a few messages, breadth first, each state once.
//!
//! A world is a core, or several, and as much of their surroundings as they can tell. From
//! each state that was found, all that can happen happens; what that leads to is a new state
//! unless one with the same [fingerprint](crate::fingerprint) was seen before (explicit-state
//! model checking with hash compaction: Holzmann 1998; two different states of a million are
//! taken for one with a chance of about 10⁻⁷). Worlds check themselves after each thing that
//! happens, and from every new state all must come to rest.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashSet;

use crate::fingerprint::fingerprint;

/// Something in which things happen, one after the other.
pub(crate) trait World: Sized {
    /// One thing that may happen.
    type Act: Copy + Debug + PartialEq;
    /// What the world is like at first.
    type Setup: Copy + Debug;

    fn new(setup: Self::Setup) -> Self;

    /// What may happen next.
    fn possible(&self) -> Vec<Self::Act>;

    /// Lets it happen, and panics unless all that must be true then is.
    fn happen(&mut self, act: Self::Act);

    /// The state, as text: all of it that makes a difference.
    fn describe(&self, text: &mut String);

    /// Whatever is under way ends, and nothing is left over, or this panics.
    fn come_to_rest(self);
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Explored {
    /// Distinct states.
    pub(crate) states: usize,
    /// Times that something has happened in one of them.
    pub(crate) steps: usize,
    /// All states within so many messages were seen, and all that can happen in them.
    pub(crate) depth: usize,
}

/// An order of messages that is not survived.
#[derive(Debug)]
pub(crate) struct Violation {
    /// What has happened.
    pub(crate) order: String,
    /// What was found wrong.
    pub(crate) what: String,
}

/// How a state was reached.
struct Reached<Act> {
    from: From,
    /// By what; nothing for a beginning.
    by: Option<Act>,
}

/// From where a state was reached.
#[derive(Clone, Copy, Debug)]
enum From {
    /// It is what a beginning leads to.
    Beginning(u32),
    /// Another state.
    State(u32),
}

struct Explorer<W: World> {
    setup: W::Setup,
    beginnings: Vec<Vec<W::Act>>,
    reached: Vec<Reached<W::Act>>,
    seen: FxHashSet<u64>,
    text: String,
}

/// Explores all that can follow these beginnings, until so many states were seen. What
/// cannot happen in a beginning is left out of it.
pub(crate) fn explore<W: World>(
    setup: W::Setup,
    beginnings: &[&[W::Act]],
    states_max: usize,
) -> Result<Explored, Violation> {
    let mut explorer = Explorer::<W> {
        setup,
        beginnings: Vec::new(),
        reached: Vec::new(),
        seen: FxHashSet::default(),
        text: String::new(),
    };
    for beginning in beginnings {
        let mut order = Vec::new();
        for act in *beginning {
            let possible = || world_after::<W>(setup, &order).possible();
            if explorer.guarded(&order, possible)?.contains(act) {
                order.push(*act);
            }
        }
        explorer.beginnings.push(order);
    }
    explorer.run(states_max)
}

/// Lets this order happen, and what is under way then come to rest.
pub(crate) fn replay<W: World>(setup: W::Setup, order: &[W::Act]) {
    world_after::<W>(setup, order).come_to_rest();
}

fn world_after<W: World>(setup: W::Setup, order: &[W::Act]) -> W {
    let mut world = W::new(setup);
    for act in order {
        world.happen(*act);
    }
    world
}

impl<W: World> Explorer<W> {
    fn run(mut self, states_max: usize) -> Result<Explored, Violation> {
        let mut explored = Explored::default();
        for beginning in 0..self.beginnings.len() {
            self.arrive(From::Beginning(beginning as u32), None)?;
        }
        let mut level = 0..self.reached.len();
        while !level.is_empty() {
            for from in level.clone() {
                let order = self.order(From::State(from as u32));
                let possible = || world_after::<W>(self.setup, &order).possible();
                for act in self.guarded(&order, possible)? {
                    self.arrive(From::State(from as u32), Some(act))?;
                    explored.steps += 1;
                }
                if self.reached.len() >= states_max {
                    explored.states = self.reached.len();
                    return Ok(explored);
                }
            }
            explored.depth += 1;
            level = level.end..self.reached.len();
        }
        explored.states = self.reached.len();
        Ok(explored)
    }

    /// Lets one thing happen in a state, and looks whether what follows is a new one.
    fn arrive(&mut self, from: From, by: Option<W::Act>) -> Result<(), Violation> {
        let mut order = self.order(from);
        order.extend(by);
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        let setup = self.setup;
        let (world, state) = self.guarded(&order, || {
            let world = world_after::<W>(setup, &order);
            world.describe(&mut text);
            (world, fingerprint(&text))
        })?;
        self.text = text;
        if self.seen.insert(state) {
            self.reached.push(Reached { from, by });
            self.guarded(&order, || world.come_to_rest())?;
        }
        Ok(())
    }

    /// All that has happened on the way to a state.
    fn order(&self, mut from: From) -> Vec<W::Act> {
        let mut order = Vec::new();
        loop {
            match from {
                From::State(state) => {
                    let reached = &self.reached[state as usize];
                    order.extend(reached.by);
                    from = reached.from;
                }
                From::Beginning(beginning) => {
                    order.extend(self.beginnings[beginning as usize].iter().rev());
                    order.reverse();
                    return order;
                }
            }
        }
    }

    fn guarded<T>(&self, order: &[W::Act], run: impl FnOnce() -> T) -> Result<T, Violation> {
        catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Violation {
            order: format!("{:?} {order:?}", self.setup),
            what: text_of(&*panic),
        })
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a panic without a word".into())
}
