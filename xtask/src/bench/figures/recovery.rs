//! Figures of recovery from a lost device.

use super::{Better, Figure, Needs, RATIO};
use crate::bench::recovery;

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "recovery.pause_loaded",
        unit: RATIO,
        versus: "time to load the model and to compute the contexts of 16 live streams, with no other work; ours is their longest gap when the device thread is killed",
        goal: Some(1.3),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "loaded"),
    },
    Figure {
        name: "recovery.pause_paged",
        unit: RATIO,
        versus: "the same gap without host memory; ours has copies of live sequences there",
        goal: Some(0.3),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "paged"),
    },
    Figure {
        name: "recovery.pause_paged_seconds",
        unit: "s",
        versus: "the longest gap of 16 live streams that have copies in host memory",
        goal: None,
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "seconds"),
    },
    Figure {
        name: "recovery.tokens_again",
        unit: "tokens",
        versus: "tokens of 16 streams that are computed a second time in that gap, with copies in host memory",
        goal: None,
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| recovery::pause(workbench, "again"),
    },
    Figure {
        name: "recovery.overhead",
        unit: RATIO,
        versus: "tokens/s of 16 streams whose histories are not kept, nor their state copied to host memory",
        goal: Some(0.99),
        better: Better::Higher,
        needs: Needs::Model,
        measure: |workbench| recovery::overhead(workbench, "overhead"),
    },
    Figure {
        name: "recovery.overhead_processor",
        unit: RATIO,
        versus: "processor time of the same load with nothing kept; ours is the divisor, so that a busy machine does not disturb the ratio",
        goal: None,
        better: Better::Higher,
        needs: Needs::Model,
        measure: |workbench| recovery::overhead(workbench, "overhead_processor"),
    },
    Figure {
        name: "recovery.tokens_wrong",
        unit: "streams",
        versus: "streams of 16 whose tokens differ from undisturbed ones after 20 kills, with host memory and without",
        goal: Some(0.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: recovery::tokens,
    },
];
