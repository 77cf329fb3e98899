//! Figures of the demonstration.

use super::Goal::AtMost;
use super::Measure::Run;
use super::Needs::Nothing;
use super::Program::Scheduler;
use super::{Figure, RATIO};

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "demo.system_prompt_computed", unit: RATIO, goal: AtMost(1.0), needs: Nothing,
        measure: Run(Scheduler, "system_prompt"),
        versus: "length of a system prompt that 16 users share (engine on the oracle)" },
];
