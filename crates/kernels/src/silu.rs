//! The gated activation of Llama's feed-forward layer (SwiGLU, Shazeer 2020).

use super::pool::Pool;
use super::simd::{Job, Simd, dispatch};

/// Numbers that one thread takes at a time, enough that the cost of dispatching is negligible.
const CHUNK: usize = 16 << 10;

/// `silu(gate) * up` of each row. A row of `gate_up` is `gate | up`, each of `width` numbers,
/// and a row of `output` has `width`.
///
/// # Panics
///
/// When the lengths do not fit each other.
pub fn silu_mul(pool: &Pool, gate_up: &[f32], width: usize, output: &mut [f32]) {
    assert_eq!(gate_up.len(), 2 * output.len());
    assert_eq!(output.len() % width.max(1), 0);
    if output.is_empty() {
        return;
    }
    let rows = (CHUNK / width).max(1);
    pool.for_each_chunk([output], [rows * width], |index, [output]| {
        let gate_up = &gate_up[index * rows * 2 * width..][..2 * output.len()];
        dispatch(Rows {
            gate_up,
            width,
            output,
        });
    });
}

struct Rows<'a> {
    gate_up: &'a [f32],
    width: usize,
    output: &'a mut [f32],
}

impl Job for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.width;
        let rows = self.gate_up.chunks_exact(2 * width);
        for (gate_up, output) in rows.zip(self.output.chunks_exact_mut(width)) {
            let (gate, up) = gate_up.split_at(width);
            let parts = gate.chunks(S::LANES).zip(up.chunks(S::LANES));
            for ((gate, up), output) in parts.zip(output.chunks_mut(S::LANES)) {
                let (gate, up) = (simd.load_part(gate), simd.load_part(up));
                let one = simd.splat(1.0);
                let denominator = simd.add(one, simd.exp(simd.sub(simd.splat(0.0), gate)));
                simd.store_part(output, simd.div(simd.mul(gate, up), denominator));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simd::{InstructionSet, dispatch_on};
    use super::*;

    fn reference(gate_up: &[f32], width: usize) -> Vec<f64> {
        let row = |row: &[f32]| {
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let each = |i| silu(f64::from(row[i])) * f64::from(row[i + width]);
            (0..width).map(each).collect::<Vec<_>>()
        };
        gate_up.chunks(2 * width).flat_map(row).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn equals_the_reference(
            rows in 0_usize..5,
            width in 1_usize..70,
            seed in proptest::collection::vec(-30.0_f32..30.0, 64),
        ) {
            let gate_up: Vec<f32> = (0..2 * rows * width)
                .map(|i| seed[i % 64] * (0.3 + (i / 64) as f32).sin())
                .collect();
            let expected = reference(&gate_up, width);
            let mut output = vec![f32::NAN; rows * width];
            for &set in InstructionSet::available() {
                output.fill(f32::NAN);
                dispatch_on(set, Rows { gate_up: &gate_up, width, output: &mut output });
                for (y, expected) in output.iter().zip(&expected) {
                    let error = (f64::from(*y) - expected).abs();
                    prop_assert!(error <= 1e-6 * expected.abs(), "{set:?}: {y} for {expected}");
                }
            }
            let mut whole = vec![f32::NAN; rows * width];
            silu_mul(&Pool::new(1), &gate_up, width, &mut whole);
            dispatch(Rows { gate_up: &gate_up, width, output: &mut output });
            prop_assert_eq!(whole, output);
        }
    }

    #[test]
    fn large_inputs_saturate() {
        let gate_up = [1e4, -1e4, f32::MAX, -f32::MAX, 2.0, 2.0, 1.0, 1.0];
        let mut output = [0.0; 4];
        silu_mul(&Pool::new(1), &gate_up, 4, &mut output);
        assert_eq!(output[0], 2e4);
        assert_eq!(output[2], f32::MAX);
        assert!(output[1].abs() < 1e-33 && output[3].abs() < 4.1);
    }

    #[test]
    fn threads_share_the_rows() {
        let gate_up: Vec<f32> = (0..2 * 37 * 1000).map(|i| (i as f32).sin()).collect();
        let [mut one, mut three] = [vec![0.0; 37_000], vec![0.0; 37_000]];
        silu_mul(&Pool::new(1), &gate_up, 1000, &mut one);
        silu_mul(&Pool::new(3), &gate_up, 1000, &mut three);
        assert_eq!(one, three);
    }
}
