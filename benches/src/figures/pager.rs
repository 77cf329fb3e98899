//! Figures of the pager.

use super::Goal::{AtLeast, AtMost, Lower};
use super::Measure::Run;
use super::Needs::Model;
use super::Program::Pager;
use super::{Figure, RATIO};

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "pager.copy_vs_memcpy", unit: RATIO, goal: AtLeast(0.7), needs: Model,
        measure: Run(Pager, "copy"),
        versus: "a plain copy of as many bytes, one thread; a segment of 2,048 tokens out or in, whichever is slower" },
    Figure { name: "pager.itl_beside_paging", unit: RATIO, goal: AtMost(1.1), needs: Model,
        measure: Run(Pager, "decode"),
        versus: "p99 gap between tokens of four decoding sequences, beside the same short requests, while no segment moves" },
    Figure { name: "pager.itl_beside_copying", unit: RATIO, goal: Lower, needs: Model,
        measure: Run(Pager, "decode"),
        versus: "the same without short requests; ours is beside a thread that copies without a pause: the remaining contention" },
    Figure { name: "pager.ttft_host", unit: RATIO, goal: AtMost(0.03), needs: Model,
        measure: Run(Pager, "from_host"),
        versus: "time to first token of a prompt of 2,048 tokens that is computed; ours is in host memory, except for 8 more" },
    Figure { name: "pager.ttft_disk", unit: RATIO, goal: AtMost(0.06), needs: Model,
        measure: Run(Pager, "from_disk"),
        versus: "the same; ours is on the disk, after a restart" },
    Figure { name: "pager.oversubscribed_gain", unit: RATIO, goal: AtLeast(2.0), needs: Model,
        measure: Run(Pager, "oversubscribed"),
        versus: "requests/s without host memory; conversations take four times the device's bytes" },
    Figure { name: "pager.oversubscribed_changed", unit: "requests", goal: AtMost(0.0), needs: Model,
        measure: Run(Pager, "oversubscribed"),
        versus: "requests whose tokens differ from those without host memory, on the same load" },
];
