//! Figures of the demonstration.

use super::{Better, Figure, Needs, RATIO};
use crate::bench::demo;

pub(super) const FIGURES: &[Figure] = &[Figure {
    name: "demo.system_prompt_computed",
    unit: RATIO,
    versus: "length of a system prompt that 16 users share (engine on the oracle)",
    goal: Some(1.0),
    better: Better::Lower,
    needs: Needs::Nothing,
    measure: demo::system_prompt_computed,
}];
