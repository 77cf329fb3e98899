//! The bridge itself: arrays changed in place, failures, and leaks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mlx_rs::{Array, Device, Stream, with_stream};
use motet_mlx::bridge::{self, Buffer, Kernel, View, ViewMut};
use motet_mlx::kernel_ops as kernels;

use super::{numbers, stream};

/// Adds 1 to every in-place number and outputs their sum from before. Counts live instances.
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
        if self.panics {
            // Without a call of the panic hook, which would print a stack for each.
            std::panic::resume_unwind(Box::new("injected panic".to_owned()));
        }
        outputs[0].data[0] = in_place.iter().flat_map(|view| view.data.iter()).sum();
        in_place
            .iter_mut()
            .flat_map(|view| view.data.iter_mut())
            .for_each(|x| *x += 1.0);
    }
}

fn address(buffer: &Buffer) -> *const f32 {
    read(buffer).as_ptr()
}

fn buffer(array: Array) -> Buffer {
    array.eval().unwrap();
    // SAFETY: the array is new, and is read after the last kernel was waited for.
    unsafe { Buffer::new(array) }
}

fn read(buffer: &Buffer) -> &[f32] {
    buffer.array().as_slice::<f32>()
}

#[test]
fn buffers_stay_where_they_are() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let buffers = [numbers(&[3, 64, 64], 0.0, 1), numbers(&[5], 0.0, 1)].map(buffer);
    let addresses = buffers.each_ref().map(address);
    for round in 0..1000 {
        let kernel = Increment::new(&living, false);
        let both = [&buffers[0], &buffers[1]];
        let outputs = bridge::apply_in_place(kernel, &[], &both, &[&[1]], &stream).unwrap();
        let sum = outputs[0].item_exact::<f32>();
        assert_eq!(sum, (round * (3 * 64 * 64 + 5)) as f32);
        drop(outputs);
        assert_eq!(buffers.each_ref().map(address), addresses, "round {round}");
        assert_eq!(living.load(Ordering::SeqCst), 0, "round {round}");
    }
    assert!(read(&buffers[1]).iter().all(|x| *x == 1000.0));
}

/// Kernels change a buffer one after another, even if several are in flight. Operations that
/// are evaluated between them see the results of the earlier ones.
#[test]
fn kernels_under_way_take_turns() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let buffer = buffer(numbers(&[3, 64, 64], 0.0, 1));
    let before = address(&buffer);
    let mut sums = Vec::new();
    let mut copies = Vec::new();
    for _ in 0..100 {
        let kernel = Increment::new(&living, false);
        let outputs = bridge::apply_in_place(kernel, &[], &[&buffer], &[&[1]], &stream).unwrap();
        let copy = with_stream(&stream, || buffer.array().add(Array::from_f32(0.0))).unwrap();
        mlx_rs::transforms::async_eval(&outputs).unwrap();
        mlx_rs::transforms::async_eval([&copy]).unwrap();
        sums.extend(outputs);
        copies.push(copy);
    }
    for (round, (sum, copy)) in sums.iter().zip(&copies).enumerate() {
        assert_eq!(sum.item_exact::<f32>(), (round * 3 * 64 * 64) as f32);
        let after = (round + 1) as f32;
        assert!(copy.as_slice::<f32>().iter().all(|x| *x == after));
    }
    assert_eq!(address(&buffer), before);
}

#[test]
fn array_that_is_not_row_contiguous_is_rejected() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let original = Array::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], &[2, 2]);
    let transposed = buffer(original.transpose_axes(&[1, 0]).unwrap());
    let kernel = Increment::new(&living, false);
    let outputs = bridge::apply_in_place(kernel, &[], &[&transposed], &[&[1]], &stream).unwrap();
    let error = outputs[0].eval().unwrap_err();
    assert!(error.what().contains("not row-contiguous"), "{error}");
    assert_eq!(original.as_slice::<f32>(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn a_panic_becomes_an_error_and_the_stream_lives_on() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    for panics in [true, false, true, true, false] {
        let buffer = buffer(numbers(&[4], 0.0, 1));
        let kernel = Increment::new(&living, panics);
        let outputs = bridge::apply_in_place(kernel, &[], &[&buffer], &[&[1]], &stream).unwrap();
        // After an operation of MLX's own, as in a model.
        let after = &outputs[0] + Array::from_f32(1.0);
        match (panics, after.eval()) {
            (false, outcome) => {
                outcome.unwrap();
                assert_eq!(read(&buffer), [1.0; 4]);
            }
            (true, outcome) => {
                let message = outcome.unwrap_err().what().to_owned();
                assert!(message.contains("injected panic"), "{message}");
            }
        }
        drop((outputs, after));
        assert_eq!(living.load(Ordering::SeqCst), 0);
    }
}

/// The first thread that waits may receive the panic of another evaluation's kernel; the
/// failure count shows it to all.
#[test]
fn failures_under_way_are_counted_and_drained() {
    let Some(_) = stream() else { return };
    let stream = Stream::new_with_device(&Device::cpu());
    let living = Arc::new(AtomicUsize::new(0));
    let run = |panics| {
        let kernel = Increment::new(&living, panics);
        let buffer = buffer(numbers(&[4], 0.0, 1));
        let outputs = bridge::apply_in_place(kernel, &[], &[&buffer], &[&[1]], &stream).unwrap();
        // The error may already report that an earlier kernel has failed.
        let _result = mlx_rs::transforms::async_eval(&outputs);
        outputs
    };
    let before = bridge::failures(&stream).unwrap();
    let under_way = [run(true), run(false), run(true)];
    bridge::drain(&stream);
    let after = bridge::failures(&stream).unwrap();
    assert_eq!(after.count, before.count + 2);
    assert!(after.last.contains("injected panic"), "{after:?}");
    drop(under_way);
    for _ in 0..10 {
        run(false)[0]
            .eval()
            .expect("the earlier failure is cleared");
    }
    assert_eq!(bridge::failures(&stream).unwrap(), after);
}

#[test]
fn nothing_leaks_when_nothing_is_evaluated() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let kernel = Increment::new(&living, false);
    let array = buffer(numbers(&[4], 0.0, 1));
    let shapes: &[&[i32]] = &[&[1], &[2], &[3]];
    let outputs = bridge::apply_in_place(kernel, &[], &[&array], shapes, &stream).unwrap();
    assert_eq!(living.load(Ordering::SeqCst), 1);
    drop(outputs);
    assert_eq!(living.load(Ordering::SeqCst), 0);
    assert_eq!(read(&array), [0.0; 4]);
    // The kernel is dropped as well when the operation is rejected.
    let whole = Array::from_slice(&[1_i32], &[1]);
    let kernel = Increment::new(&living, false);
    assert!(bridge::apply(kernel, &[&whole], &[&[1]], &stream).is_err());
    assert_eq!(living.load(Ordering::SeqCst), 0);
}

#[test]
fn memory_stays_flat_across_many_steps() {
    let Some(stream) = stream() else { return };
    let living = Arc::new(AtomicUsize::new(0));
    let tail = buffer(numbers(&[3, 256, 64], 0.0, 1));
    let gate_up = numbers(&[4, 64], 1.0, 1);
    let mut active = Vec::new();
    for round in 0..1000 {
        let kernel = Increment::new(&living, false);
        let outputs =
            bridge::apply_in_place(kernel, &[&gate_up], &[&tail], &[&[4, 64]], &stream).unwrap();
        let out = kernels::silu_mul(&outputs[0], &stream).unwrap();
        let (sum, normed) = kernels::add_rms_norm(&out, &out, None, 1e-5, &stream).unwrap();
        mlx_rs::transforms::eval([&sum, &normed]).unwrap();
        if round % 100 == 99 {
            drop((outputs, out, sum, normed));
            active.push(mlx_rs::memory::active_memory().unwrap());
        }
    }
    // Other tests of this process allocate at the same time, but far less than the 196 KB that
    // a copy of the tail would add each round.
    let grown = active.last().unwrap().saturating_sub(active[0]);
    assert!(grown < 16 << 20, "{active:?}");
}

#[test]
fn an_array_that_is_changed_twice_or_read_is_an_error() {
    let Some(stream) = stream() else { return };
    let shared = buffer(numbers(&[4], 1.0, 1));
    // SAFETY: the kernel does not run on it.
    let again = unsafe { Buffer::new(shared.array().clone()) };
    let living = Arc::new(AtomicUsize::new(0));
    let run = |inputs: &[&Array], in_place: &[&Buffer]| {
        let kernel = Increment::new(&living, false);
        let made = bridge::apply_in_place(kernel, inputs, in_place, &[&[1]], &stream).unwrap();
        made[0].eval()
    };
    run(&[], &[&shared]).unwrap();
    for result in [
        run(&[], &[&shared, &again]),
        run(&[shared.array()], &[&shared]),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("is also another one of its arrays"),
            "{error}"
        );
    }
}
