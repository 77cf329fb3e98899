//! The table of figures: names, meaning, goals. Each area has a file.

mod cache;
mod demo;
mod model;
mod pager;
mod recovery;
mod scheduler;
mod server;
mod weights;

use anyhow::Result;

use super::statistics::Measured;
use super::workbench::Workbench;

/// A number by which the project is judged.
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Baseline of the measurement.
    pub(super) versus: &'static str,
    pub(super) goal: Option<f64>,
    pub(super) better: Better,
    pub(super) needs: Needs,
    pub(super) measure: fn(&mut Workbench) -> Result<Measured>,
}

/// Requirements of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// A real model on MLX.
    Mlx,
    /// A real model on MLX; `--quick` uses the oracle instead.
    Model,
}

/// Direction in which a figure improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Higher,
    Lower,
}

impl Better {
    pub(super) fn name(self) -> &'static str {
        match self {
            Better::Higher => "higher",
            Better::Lower => "lower",
        }
    }
}

const RATIO: &str = "ratio";
const PERCENT: &str = "%";

/// Returns every figure, in the order in which they are measured.
pub(super) fn all() -> impl Iterator<Item = &'static Figure> {
    let areas = [
        model::FIGURES,
        weights::FIGURES,
        cache::FIGURES,
        scheduler::FIGURES,
        pager::FIGURES,
        recovery::FIGURES,
        server::FIGURES,
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
