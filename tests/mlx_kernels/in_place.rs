//! The bridge itself: arrays changed in place, failures, and what is left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_rs::{Array, ops};
use motet::model::mlx::bridge::{self, Kernel, View, ViewMut};
use motet::model::mlx::kernels;

use super::{numbers, stream};

/// Adds 1 to every in-place number; outputs their sum before. Counts how many live.
struct Increment {
    living: Arc<AtomicUsize>,
    panics: bool,
}

impl Increment {
    fn new(living: &Arc<AtomicUsize>, panics: bool) -> Increment {
        living.fetch_add(1, Ordering::SeqCst);
        Increment {
            living: Arc::clone(living),
            panics,
        }
    }
}

impl Drop for Increment {
    fn drop(&mut self) {
        self.living.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Kernel for Increment {
    fn run(&self, _: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        assert!(!self.panics, "planted panic");
        outputs[0].data[0] = in_place.iter().flat_map(|view| view.data.iter()).sum();
        in_place
            .iter_mut()
            .flat_map(|view| view.data.iter_mut())
            .for_each(|x| *x += 1.0);
    }
}

fn address(array: &Array) -> *const f32 {
    array.as_slice::<f32>().as_ptr()
}

#[test]
fn in_place_arrays_stay_where_they_are() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let mut arrays = vec![numbers(&[3, 64, 64], 0.0, 1), numbers(&[5], 0.0, 1)];
    let addresses: Vec<_> = arrays.iter().map(address).collect();
    for round in 0..1000 {
        let kernel = Increment::new(&living, false);
        let (outputs, in_place) =
            bridge::apply_in_place(kernel, &[], arrays, &[&[1]], &stream).unwrap();
        let sum = outputs[0].item_exact::<f32>();
        assert_eq!(sum, (round * (3 * 64 * 64 + 5)) as f32);
        drop(outputs);
        assert_eq!(in_place.copied(), 0, "round {round}");
        arrays = in_place.take().unwrap();
        assert_eq!(
            arrays.iter().map(address).collect::<Vec<_>>(),
            addresses,
            "round {round}"
        );
        assert_eq!(living.load(Ordering::SeqCst), 0, "round {round}");
    }
    assert!(arrays[1].as_slice::<f32>().iter().all(|x| *x == 1000.0));
}

#[test]
fn what_somebody_else_holds_is_copied() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let run = |array: Array| {
        let kernel = Increment::new(&living, false);
        let (outputs, in_place) =
            bridge::apply_in_place(kernel, &[], vec![array], &[&[1]], &stream).unwrap();
        outputs[0].eval().unwrap();
        let copied = in_place.copied();
        let array = in_place.take().unwrap().pop().unwrap();
        let numbers = array.as_slice::<f32>().to_vec();
        (copied, numbers)
    };
    let original = Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2]);
    assert_eq!(run(original.clone()), (1, vec![2.0, 3.0, 4.0, 5.0]));
    assert_eq!(original.as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    let transposed = original.transpose_axes(&[1, 0]).unwrap();
    assert_eq!(run(transposed), (1, vec![2.0, 4.0, 3.0, 5.0]));
    let view = original.reshape(&[4]).unwrap();
    assert_eq!(run(view), (1, vec![2.0, 3.0, 4.0, 5.0]));
    assert_eq!(original.as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
    let fresh = ops::zeros::<f32>(&[2]).unwrap();
    assert_eq!(run(fresh).1, vec![1.0, 1.0]);
}

#[test]
fn a_panic_becomes_an_error_and_the_stream_lives_on() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    for panics in [true, false, true, true, false] {
        let array = numbers(&[4], 0.0, 1);
        let kernel = Increment::new(&living, panics);
        let (outputs, in_place) =
            bridge::apply_in_place(kernel, &[], vec![array], &[&[1]], &stream).unwrap();
        // Behind an operation of MLX's own, as in a model.
        let after = &outputs[0] + Array::from_f32(1.0);
        match (panics, after.eval()) {
            (false, outcome) => {
                outcome.unwrap();
                assert_eq!(in_place.take().unwrap()[0].as_slice::<f32>(), [1.0; 4]);
            }
            (true, outcome) => {
                let message = outcome.unwrap_err().what().to_owned();
                assert!(message.contains("planted panic"), "{message}");
                assert!(in_place.take().is_err());
            }
        }
        drop((outputs, after));
        assert_eq!(living.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn nothing_leaks_when_nothing_is_evaluated() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let kernel = Increment::new(&living, false);
    let array = numbers(&[4], 0.0, 1);
    let (outputs, in_place) =
        bridge::apply_in_place(kernel, &[], vec![array], &[&[1], &[2], &[3]], &stream).unwrap();
    assert_eq!(living.load(Ordering::SeqCst), 1);
    drop(outputs);
    assert_eq!(living.load(Ordering::SeqCst), 0);
    assert!(in_place.take().unwrap_err().what().contains("has not run"));
    // Nor when the operation is refused.
    let whole = Array::from_slice(&[1_i32], &[1]);
    let kernel = Increment::new(&living, false);
    assert!(bridge::apply(kernel, &[&whole], &[&[1]], &stream).is_err());
    assert_eq!(living.load(Ordering::SeqCst), 0);
}

#[test]
fn memory_stays_flat_over_many_steps() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let mut tail = numbers(&[3, 256, 64], 0.0, 1);
    let gate_up = numbers(&[4, 64], 1.0, 1);
    let mut active = Vec::new();
    for round in 0..1000 {
        let kernel = Increment::new(&living, false);
        let (outputs, in_place) =
            bridge::apply_in_place(kernel, &[&gate_up], vec![tail], &[&[4, 64]], &stream).unwrap();
        let out = kernels::silu_mul(&outputs[0], &stream).unwrap();
        let (sum, normed) = kernels::add_rms_norm(&out, &out, None, 1e-5, &stream).unwrap();
        mlx_rs::transforms::eval([&sum, &normed]).unwrap();
        tail = in_place.take().unwrap().pop().unwrap();
        if round % 100 == 99 {
            drop((outputs, out, sum, normed));
            active.push(mlx_rs::memory::active_memory().unwrap());
        }
    }
    // Other tests of this process allocate at the same time, but nowhere near the
    // 196 KB that a copy of the tail would add each round.
    let grown = active.last().unwrap().saturating_sub(active[0]);
    assert!(grown < 16 << 20, "{active:?}");
}
