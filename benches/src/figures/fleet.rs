//! Figures of fleets: of a store that machines share, and of simulated workers.

use super::Goal::{AtLeast, AtMost, Higher, Lower};
use super::Measure::Run;
use super::Needs::{Model, Trace};
use super::Program::{Fleet, Mocker, Remote};
use super::{Figure, PERCENT, RATIO};

const REUSE: &str = "prompt tokens of the Mooncake conversation trace that no worker computes, behind Dynamo's router; a \
     worker holds 1,000 blocks of 512 tokens, and arrivals are sped up with the fleet";
const MOCKER: &str = "the same, of Dynamo's own simulated workers behind the same router";
const REMOTE: &str =
    "the same, with a shared tier that gets all of a sequence when it ends, as by default";
const GAP: &str =
    "the part that an endless cache reuses, less that of the fleet with its shared tier";
const AGAIN: &str =
    "tokens computed again for the sequences of one lost worker, mean; they go on elsewhere";
const AGAIN_REMOTE: &str = "the same, with a shared tier that gets all of a sequence when it ends";
const AGAIN_HANDED: &str =
    "the same, where a worker hands over what its sequences have computed, before it ends";

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "fleet.ttft_remote", unit: RATIO, goal: AtMost(0.15), needs: Model,
        measure: Run(Remote, "from_remote"),
        versus: "time to first token of a prompt of 2,048 tokens that is computed; ours was computed by another engine, and \
                 comes from a redis-server on loopback" },
    Figure { name: "fleet.itl_beside_remote", unit: RATIO, goal: AtMost(1.1), needs: Model,
        measure: Run(Remote, "beside_remote"),
        versus: "p99 gap between tokens of four decoding sequences, beside prompts of 288 tokens, without a store; ours has a \
                 store that does not answer, is full, or is killed: the worst of the three" },
    Figure { name: "fleet.mocker_reuse_8", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Mocker, "reuse_8"),
        versus: MOCKER },
    Figure { name: "fleet.sim_reuse_8", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Fleet, "reuse_8"),
        versus: REUSE },
    Figure { name: "fleet.sim_reuse_8_remote", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Fleet, "remote_8"),
        versus: REMOTE },
    Figure { name: "fleet.mocker_reuse_100", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Mocker, "reuse_100"),
        versus: MOCKER },
    Figure { name: "fleet.sim_reuse_100", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Fleet, "reuse_100"),
        versus: REUSE },
    Figure { name: "fleet.sim_reuse_100_remote", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Fleet, "remote_100"),
        versus: REMOTE },
    Figure { name: "fleet.mocker_reuse_1000", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Mocker, "reuse_1000"),
        versus: MOCKER },
    Figure { name: "fleet.sim_reuse_1000", unit: PERCENT, goal: AtLeast(33.0), needs: Trace,
        measure: Run(Fleet, "reuse_1000"),
        versus: REUSE },
    Figure { name: "fleet.sim_reuse_1000_remote", unit: PERCENT, goal: Higher, needs: Trace,
        measure: Run(Fleet, "remote_1000"),
        versus: REMOTE },
    Figure { name: "fleet.sim_gap_1000_remote", unit: "points", goal: AtMost(2.0), needs: Trace,
        measure: Run(Fleet, "remote_1000"),
        versus: GAP },
    Figure { name: "fleet.sim_lost_machine_8", unit: "tokens", goal: Lower, needs: Trace,
        measure: Run(Fleet, "lost_8"),
        versus: AGAIN },
    Figure { name: "fleet.sim_lost_machine_8_remote", unit: "tokens", goal: Lower, needs: Trace,
        measure: Run(Fleet, "lost_8"),
        versus: AGAIN_REMOTE },
    Figure { name: "fleet.sim_lost_machine_8_remote_hand_over", unit: "tokens", goal: Lower, needs: Trace,
        measure: Run(Fleet, "lost_8"),
        versus: AGAIN_HANDED },
    Figure { name: "fleet.sim_lost_machine_100", unit: "tokens", goal: Lower, needs: Trace,
        measure: Run(Fleet, "lost_100"),
        versus: AGAIN },
    Figure { name: "fleet.sim_lost_machine_100_remote", unit: "tokens", goal: Lower, needs: Trace,
        measure: Run(Fleet, "lost_100"),
        versus: AGAIN_REMOTE },
    Figure { name: "fleet.sim_lost_machine_100_remote_hand_over", unit: "tokens", goal: Lower, needs: Trace,
        measure: Run(Fleet, "lost_100"),
        versus: AGAIN_HANDED },
];
