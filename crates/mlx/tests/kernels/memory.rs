//! Arrays over memory that Rust owns.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use mlx_rs::{Array, Dtype, Stream, with_stream};
use motet_mlx::bridge;
use motet_mlx::bridge::memory::{self, HEADER_BYTES};

use super::stream;

const SHAPE: [i32; 2] = [3, 40];
const NUMBERS: usize = 120;

/// An array over a vector, and a weak reference that shows whether the vector is alive.
fn wrapped() -> (Array, Weak<Vec<f32>>) {
    let header = HEADER_BYTES / size_of::<f32>();
    let before = std::iter::repeat_n(-1.0, header);
    let mut numbers: Vec<f32> = before.chain((0..NUMBERS).map(|i| i as f32)).collect();
    // Vectors of this size begin at an address that is aligned for every number.
    assert_eq!(numbers.as_ptr().addr() % HEADER_BYTES, 0);
    let data = NonNull::from(&mut numbers[header]);
    let owner = Arc::new(numbers);
    let alive = Arc::downgrade(&owner);
    // SAFETY: the vector holds the header and the numbers, and only its owner uses it.
    let array = unsafe { memory::wrap(data, &SHAPE, owner) };
    (array.unwrap(), alive)
}

/// The stream for these tests, if memory can be wrapped. It may hold an array for a moment
/// after its result is available.
fn wrapping_stream() -> Option<Stream> {
    stream().filter(|_| memory::can_wrap())
}

fn expected_numbers() -> Vec<f32> {
    (0..NUMBERS).map(|i| i as f32).collect()
}

#[test]
fn wrapped_memory_is_used_in_place_and_freed_once() {
    let Some(stream) = wrapping_stream() else {
        return;
    };
    let (array, alive) = wrapped();
    assert_eq!(array.shape(), SHAPE);
    assert_eq!(array.dtype(), Dtype::Float32);
    assert!(memory::is_row_contiguous(&array));
    let numbers = alive.upgrade().unwrap();
    assert_eq!(array.as_slice::<f32>(), expected_numbers());
    assert_eq!(array.as_slice::<f32>().as_ptr(), &raw const numbers[2]);
    drop(numbers);
    let sum = with_stream(&stream, || array.add(Array::from_f32(1.0))).unwrap();
    let other = array.clone();
    drop(array);
    sum.eval().unwrap();
    assert_eq!(sum.as_slice::<f32>()[119], 120.0);
    bridge::drain(&stream);
    assert_eq!(alive.strong_count(), 1, "a handle is left");
    std::thread::spawn(move || drop(other)).join().unwrap();
    assert_eq!(alive.strong_count(), 0, "nothing is left");
}

/// MLX may write a result to the memory of an input that nothing else holds.
#[test]
fn donated_memory_lives_as_long_as_the_result() {
    let Some(stream) = wrapping_stream() else {
        return;
    };
    for _ in 0..100 {
        let (array, alive) = wrapped();
        let start = alive.upgrade().unwrap()[2..].as_ptr();
        let result = with_stream(&stream, move || {
            let sum = array.add(Array::from_f32(1.0))?;
            sum.multiply(Array::from_f32(2.0))
        });
        let result = result.unwrap();
        result.eval().unwrap();
        let expected: Vec<f32> = expected_numbers().iter().map(|x| (x + 1.0) * 2.0).collect();
        assert_eq!(result.as_slice::<f32>(), expected);
        assert_eq!(result.as_slice::<f32>().as_ptr(), start, "in place");
        bridge::drain(&stream);
        assert_eq!(alive.strong_count(), 1);
        drop(result);
        assert_eq!(alive.strong_count(), 0);
    }
}

#[test]
fn bytes_are_copied_wherever_they_begin() {
    let bytes: Vec<u8> = (0..100).map(|i: u8| i.wrapping_mul(3)).collect();
    for start in 0..8 {
        let from = &bytes[start..][..48];
        for (dtype, shape) in [(Dtype::Float32, [3, 4]), (Dtype::Bfloat16, [3, 8])] {
            let array = memory::copied(from, &shape, dtype);
            assert_eq!((array.shape(), array.dtype()), (&shape[..], dtype));
            // SAFETY: the array is new, and nothing changes it.
            assert_eq!(unsafe { memory::bytes(&array) }, from);
        }
    }
    let odd = memory::copied(&bytes[1..7], &[3], Dtype::Bfloat16);
    // SAFETY: as above.
    assert_eq!(unsafe { memory::bytes(&odd) }, &bytes[1..7]);
}
