//! Figures of integer products with stored weights.

use super::Goal::{AtLeast, AtMost};
use super::Measure::Compare;
use super::Needs::Nothing;
use super::{Figure, RATIO};
use crate::compare::kernels::{many_rows_vs_ik, rows_vs_one};

const ONE_ROW: &str = "the time of the product with one row; 1,536 rows of 8,960 weights that are in no cache, all threads";
const IK: &str =
    "products a second of ik_llama.cpp with weights of the same format and shape, same threads";

#[rustfmt::skip] // a table
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "kernels.rows_2_vs_1", unit: RATIO, goal: AtMost(1.15), needs: Nothing,
        measure: Compare(|bench| rows_vs_one(bench, "Q4_K", 2)), versus: ONE_ROW },
    Figure { name: "kernels.rows_4_vs_1", unit: RATIO, goal: AtMost(1.5), needs: Nothing,
        measure: Compare(|bench| rows_vs_one(bench, "Q4_K", 4)), versus: ONE_ROW },
    Figure { name: "kernels.rows_8_vs_1", unit: RATIO, goal: AtMost(2.2), needs: Nothing,
        measure: Compare(|bench| rows_vs_one(bench, "Q4_K", 8)), versus: ONE_ROW },
    Figure { name: "kernels.q4_1_rows_2_vs_1", unit: RATIO, goal: AtMost(1.15), needs: Nothing,
        measure: Compare(|bench| rows_vs_one(bench, "Q4_1", 2)), versus: ONE_ROW },
    Figure { name: "kernels.q4_1_rows_4_vs_1", unit: RATIO, goal: AtMost(1.5), needs: Nothing,
        measure: Compare(|bench| rows_vs_one(bench, "Q4_1", 4)), versus: ONE_ROW },
    Figure { name: "kernels.q4_1_rows_8_vs_1", unit: RATIO, goal: AtMost(2.2), needs: Nothing,
        measure: Compare(|bench| rows_vs_one(bench, "Q4_1", 8)), versus: ONE_ROW },
    Figure { name: "kernels.rows_512_vs_ik", unit: RATIO, goal: AtLeast(0.95), needs: Nothing,
        measure: Compare(|bench| many_rows_vs_ik(bench, "Q4_K")), versus: IK },
    Figure { name: "kernels.q4_1_rows_512_vs_ik", unit: RATIO, goal: AtLeast(0.95), needs: Nothing,
        measure: Compare(|bench| many_rows_vs_ik(bench, "Q4_1")), versus: IK },
    Figure { name: "kernels.q6_k_rows_512_vs_ik", unit: RATIO, goal: AtLeast(0.95), needs: Nothing,
        measure: Compare(|bench| many_rows_vs_ik(bench, "Q6_K")), versus: IK },
    Figure { name: "kernels.q8_0_rows_512_vs_ik", unit: RATIO, goal: AtLeast(0.95), needs: Nothing,
        measure: Compare(|bench| many_rows_vs_ik(bench, "Q8_0")), versus: IK },
];
