//! Figures of recovery from a lost device.

use super::Goal::{AtLeast, AtMost, Higher, Lower};
use super::Measure::Run;
use super::Needs::Model;
use super::Program::Recovery;
use super::{Figure, RATIO};

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "recovery.pause_loaded", unit: RATIO, goal: AtMost(1.0), needs: Model,
        measure: Run(Recovery, "pause"),
        versus: "time to load the model and to compute the contexts of 16 live streams, with no other work; ours is their longest gap when the device thread is killed" },
    Figure { name: "recovery.pause_paged", unit: RATIO, goal: AtMost(0.2), needs: Model,
        measure: Run(Recovery, "pause"),
        versus: "the same gap without host memory; ours has copies of live sequences there" },
    Figure { name: "recovery.pause_paged_seconds", unit: "s", goal: Lower, needs: Model,
        measure: Run(Recovery, "pause"),
        versus: "the longest gap of 16 live streams that have copies in host memory" },
    Figure { name: "recovery.tokens_again", unit: "tokens", goal: Lower, needs: Model,
        measure: Run(Recovery, "pause"),
        versus: "tokens of 16 streams that are computed a second time in that gap, with copies in host memory" },
    Figure { name: "recovery.overhead", unit: RATIO, goal: AtLeast(0.99), needs: Model,
        measure: Run(Recovery, "overhead"),
        versus: "tokens/s of 16 streams whose histories are not kept, nor their state copied to host memory" },
    Figure { name: "recovery.overhead_processor", unit: RATIO, goal: Higher, needs: Model,
        measure: Run(Recovery, "overhead"),
        versus: "processor time of the same load with nothing kept; ours is the divisor, so that a busy machine does not disturb the ratio" },
    Figure { name: "recovery.tokens_wrong", unit: "streams", goal: AtMost(0.0), needs: Model,
        measure: Run(Recovery, "tokens"),
        versus: "streams of 16 whose tokens differ from undisturbed ones after 20 kills, with host memory and without" },
];
