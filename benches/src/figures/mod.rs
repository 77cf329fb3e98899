//! The figures: names, meaning, goals, and where each is measured. Each area has a table.

mod cache;
mod demo;
mod engines;
mod fleet;
mod kernels;
mod model;
mod pager;
mod recovery;
mod scheduler;
mod server;
mod speculation;
pub(crate) mod trace;
mod weights;

use anyhow::Result;

use crate::compare::workbench::Workbench;
use crate::measured::Measured;

/// A number by which the project is judged.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) goal: Goal,
    pub(crate) needs: Needs,
    pub(crate) measure: Measure,
    /// Baseline of the measurement.
    pub(crate) versus: &'static str,
}

/// How a figure is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// By a run of a program, which writes a record under the figure's name. A run may take several
    /// figures: it is asked for once.
    Run(Program, &'static str),
    /// By a comparison of programs and servers that take turns.
    Compare(fn(&mut Workbench) -> Result<Measured>),
}

/// A program with runs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    /// `benches/cache`: the cache's core, with kvbm-logical beside it.
    Cache,
    /// `programs/scheduler`: a virtual engine and whole engines.
    Scheduler,
    /// `programs/pager`: engines with little memory.
    Pager,
    /// `programs/pager/remote.rs`: engines that share a store.
    Remote,
    /// `programs/recovery`: engines whose device is killed.
    Recovery,
    /// `programs/speculation`: an engine whose model follows a script.
    Speculation,
    /// The same with a draft model.
    DraftModel,
    /// `benches/fleet`: caches behind Dynamo's router, on a virtual clock.
    Fleet,
    /// `peers/dynamo_peer.py`: Dynamo's own simulated fleet.
    Mocker,
}

/// Requirements of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// A real model on MLX.
    Mlx,
    /// A real model on MLX; `--quick` uses the oracle instead.
    Model,
    /// A trace of real requests, which is not part of the project.
    Trace,
    /// A real model on MLX, and recorded calls of agents, which are not part of the project.
    AgentTrace,
}

/// Direction in which a figure improves, and how far it should.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Higher,
    Lower,
}

impl Goal {
    pub(crate) fn value(self) -> Option<f64> {
        match self {
            Goal::AtLeast(value) | Goal::AtMost(value) => Some(value),
            Goal::Higher | Goal::Lower => None,
        }
    }

    /// The direction, as it is written to `bench.json`.
    pub(crate) fn better(self) -> &'static str {
        match self {
            Goal::AtLeast(_) | Goal::Higher => "higher",
            Goal::AtMost(_) | Goal::Lower => "lower",
        }
    }
}

const RATIO: &str = "ratio";
const PERCENT: &str = "%";

/// Returns every figure, in the order in which they are measured.
pub(crate) fn all() -> impl Iterator<Item = &'static Figure> {
    let areas = [
        model::FIGURES,
        kernels::FIGURES,
        weights::FIGURES,
        engines::FIGURES,
        cache::FIGURES,
        scheduler::FIGURES,
        pager::FIGURES,
        recovery::FIGURES,
        server::FIGURES,
        speculation::FIGURES,
        fleet::FIGURES,
        demo::FIGURES,
    ];
    areas.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_have_an_area() {
        let mut names: Vec<&str> = all().map(|figure| figure.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
        for name in names {
            let parts: Vec<&str> = name.split('.').collect();
            assert!(
                matches!(parts[..], [area, figure] if !area.is_empty() && !figure.is_empty()),
                "{name}"
            );
        }
    }
}
