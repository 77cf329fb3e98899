//! Figures of the pager.

use super::{Better, Figure, Needs, RATIO};
use crate::bench::pager;

pub(super) const FIGURES: &[Figure] = &[
    Figure {
        name: "pager.copy_vs_memcpy",
        unit: RATIO,
        versus: "a plain copy of as many bytes, one thread; a segment of 2,048 tokens out or in, whichever is slower",
        goal: Some(0.7),
        better: Better::Higher,
        needs: Needs::Model,
        measure: pager::copy,
    },
    Figure {
        name: "pager.itl_beside_paging",
        unit: RATIO,
        versus: "p99 gap between tokens of four decoding sequences, beside the same short requests, while no segment moves",
        goal: Some(1.1),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::decode(workbench, "paging"),
    },
    Figure {
        name: "pager.itl_beside_copying",
        unit: RATIO,
        versus: "the same without short requests; ours is beside a thread that copies without a pause: the remaining contention",
        goal: None,
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::decode(workbench, "copying"),
    },
    Figure {
        name: "pager.ttft_host",
        unit: RATIO,
        versus: "time to first token of a prompt of 2,048 tokens that is computed; ours is in host memory, except for 8 more",
        goal: Some(0.1),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::first_token(workbench, "from_host"),
    },
    Figure {
        name: "pager.ttft_disk",
        unit: RATIO,
        versus: "the same; ours is on the disk, after a restart",
        goal: Some(0.25),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::first_token(workbench, "from_disk"),
    },
    Figure {
        name: "pager.oversubscribed_gain",
        unit: RATIO,
        versus: "requests/s without host memory; conversations take four times the device's bytes",
        goal: Some(2.0),
        better: Better::Higher,
        needs: Needs::Model,
        measure: |workbench| pager::oversubscribed(workbench, "gain"),
    },
    Figure {
        name: "pager.oversubscribed_changed",
        unit: "requests",
        versus: "requests whose tokens differ from those without host memory, on the same load",
        goal: Some(0.0),
        better: Better::Lower,
        needs: Needs::Model,
        measure: |workbench| pager::oversubscribed(workbench, "changed"),
    },
];
