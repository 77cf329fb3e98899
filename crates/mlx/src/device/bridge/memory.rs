//! Arrays as memory: the bytes of an array, and arrays over memory that Rust owns.

use std::borrow::Cow;
use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype};

use super::{ERROR_LEN, RawShape, entries};

/// Bytes before the numbers that [`wrap`] writes to.
pub const HEADER_BYTES: usize = size_of::<usize>();

/// Whether [`wrap`] can be used: the bridge is available, and MLX allocates for the CPU only.
#[must_use]
pub fn can_wrap() -> bool {
    // SAFETY: the signature is the one of this bridge version.
    entries().is_some_and(|entries| unsafe { (entries.can_wrap)() } != 0)
}

/// An `f32` array of the numbers at `data`, without a copy. `owner` is dropped, on any thread,
/// when no array uses the numbers any more, or at once on failure.
///
/// # Errors
///
/// When the bridge is not available.
///
/// # Safety
///
/// [`can_wrap`] holds. Until `owner` is dropped, the array alone uses the memory of its numbers
/// and the [`HEADER_BYTES`] before them. `data` is aligned to [`HEADER_BYTES`].
pub unsafe fn wrap<T: Send + 'static>(
    data: NonNull<f32>,
    shape: &[i32],
    owner: T,
) -> Result<Array, Exception> {
    let entries =
        entries().ok_or_else(|| Exception::custom("this libmlxc has no bridge to Rust kernels"))?;
    let shape = RawShape {
        sizes: shape.as_ptr(),
        dims: shape.len(),
    };
    let owner = Box::into_raw(Box::new(owner)).cast::<c_void>();
    let mut error = [0; ERROR_LEN];
    // SAFETY: takes nothing; the handle is empty until the call fills it.
    let mut wrapped = unsafe { mlx_sys::mlx_array_new() };
    // SAFETY: the signature is the one of this bridge version, every pointer is valid for the
    // call, and `drop_owner` fits `owner`. The rest is the caller's promise.
    let status = unsafe {
        (entries.wrap)(
            data.as_ptr(),
            &shape,
            owner,
            drop_owner::<T>,
            &mut wrapped,
            error.as_mut_ptr(),
        )
    };
    if status != 0 {
        // SAFETY: the bridge wrote a string that ends within the buffer.
        let message = unsafe { CStr::from_ptr(error.as_ptr()) };
        return Err(Exception::custom(message.to_string_lossy()));
    }
    // SAFETY: on success it is a new handle with no other owner.
    Ok(unsafe { Array::from_ptr(wrapped) })
}

/// An array of the numbers in `bytes`, copied to memory that MLX owns.
///
/// # Panics
///
/// When the number of bytes does not match this type and shape.
#[must_use]
pub fn copied(bytes: &[u8], shape: &[i32], dtype: Dtype) -> Array {
    let numbers: usize = shape.iter().map(|size| *size as usize).product();
    let expected = numbers * dtype_bytes(dtype);
    assert_eq!(bytes.len(), expected, "as many bytes as {shape:?} has");
    let aligned: Cow<'_, [u32]> = match bytemuck::try_cast_slice(bytes) {
        Ok(words) => Cow::Borrowed(words),
        Err(_) => bytes.chunks(4).map(word).collect(),
    };
    // SAFETY: there are as many numbers as the shape has, and they are aligned.
    unsafe { Array::from_raw_data(aligned.as_ptr().cast(), shape, dtype) }
}

/// The array's bytes, without a copy. Touches nothing that the array's own thread may change
/// meanwhile, unlike the methods of [`Array`], which evaluate it first.
///
/// # Safety
///
/// The array was evaluated and computed, it [`is_row_contiguous`], and nothing changes its
/// memory while the bytes are used.
#[must_use]
pub unsafe fn bytes(array: &Array) -> &[u8] {
    if array.nbytes() == 0 {
        return &[];
    }
    // SAFETY: the handle is valid. The call only computes where the data begin, which was set
    // when the array was evaluated.
    let start = unsafe { mlx_sys::mlx_array_data_uint8(array.as_ptr()) };
    // SAFETY: the caller's promise; the bytes live as long as the array's handle.
    unsafe { std::slice::from_raw_parts(start, array.nbytes()) }
}

/// Whether an evaluated array's numbers lie side by side, row-major.
#[must_use]
pub fn is_row_contiguous(array: &Array) -> bool {
    let mut contiguous = false;
    // SAFETY: both are valid for the call.
    let status = unsafe { mlx_sys::_mlx_array_is_row_contiguous(&mut contiguous, array.as_ptr()) };
    status == 0 && contiguous
}

/// Up to four bytes in memory order.
fn word(bytes: &[u8]) -> u32 {
    let mut word = [0; 4];
    word[..bytes.len()].copy_from_slice(bytes);
    u32::from_ne_bytes(word)
}

/// Bytes of a number.
fn dtype_bytes(dtype: Dtype) -> usize {
    match dtype {
        Dtype::Float32 => 4,
        _ => 2,
    }
}

/// Frees the owner of an array's memory; called by the C++ half, once.
///
/// # Safety
///
/// `owner` is a `T` that was boxed and is not used again.
unsafe extern "C" fn drop_owner<T>(owner: *mut c_void) {
    // SAFETY: the caller's promise.
    let owner = unsafe { Box::from_raw(owner.cast::<T>()) };
    // A panic must not unwind into C++, and no caller is left to report it to.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(owner))) {
        let _forgotten = ManuallyDrop::new(panic);
    }
}
