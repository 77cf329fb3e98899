//! Every order of a few messages, breadth first, each state once.
//!
//! A world is a core, or several, with as much of their environment as they can observe. From
//! each state, the explorer applies all possible events. A resulting state is new unless one
//! with the same fingerprint was seen before (explicit-state model
//! checking with hash compaction: Holzmann 1998; in a million states, two different ones
//! collide with a probability of about 10⁻⁷). A world checks itself after each event, and from
//! every new state all work must finish.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustc_hash::FxHashSet;

use fingerprint::fingerprint;

mod fingerprint;

/// A system in which events happen one after the other.
pub trait World: Sized {
    /// One possible event.
    type Act: Copy + Debug + PartialEq;
    /// The initial configuration of the world.
    type Setup: Copy + Debug;

    /// The world in its first state.
    fn new(setup: Self::Setup) -> Self;

    /// The events that may happen next.
    fn possible(&self) -> Vec<Self::Act>;

    /// Applies the event, and panics unless all invariants hold then.
    fn happen(&mut self, act: Self::Act);

    /// Writes the state as text: all of it that makes a difference.
    fn describe(&self, text: &mut String);

    /// Finishes all work in flight. Panics if anything is left over.
    fn come_to_rest(self);
}

/// Extent of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// Distinct states.
    pub states: usize,
    /// Events that were applied in one of them.
    pub steps: usize,
    /// All states within so many messages were seen, with all their possible events.
    pub depth: usize,
}

/// An order of messages that breaks an invariant.
#[derive(Debug)]
pub struct Violation {
    /// The events.
    pub order: String,
    /// The violation.
    pub what: String,
}

/// The event that led to a state, and its predecessor.
struct Reached<Act> {
    from: From,
    /// The event; `None` for a beginning.
    by: Option<Act>,
}

/// The predecessor of a state.
#[derive(Clone, Copy, Debug)]
enum From {
    /// The end of a beginning.
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

/// Explores all states that can follow these beginnings, until so many states were seen. Events
/// that are impossible in a beginning are left out of it.
///
/// # Errors
///
/// The first order that breaks an invariant, which is a shortest one.
pub fn explore<W: World>(
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

/// Applies this order of events, and finishes the work in flight.
pub fn replay<W: World>(setup: W::Setup, order: &[W::Act]) {
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

    /// Applies one event in a state, and queues the resulting state if it is new.
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

    /// All events on the way to a state.
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
    text.unwrap_or_else(|| "a panic without a message".into())
}
