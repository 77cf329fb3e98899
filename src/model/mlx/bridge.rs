//! Rust functions as operations of an MLX graph, on the CPU.
//!
//! MLX's CPU backend spends about 3 µs on each operation and computes
//! exponentials one at a time. [`apply`] puts a [`Kernel`], written in Rust, into
//! the graph as one operation: MLX schedules it among its own, allocates its
//! outputs and frees its inputs.
//!
//! The C++ half is `xtask/mlx/bridge.cpp`, which `cargo xtask setup` builds into
//! libmlxc. A libmlxc that was built elsewhere (mlx-sys' own on macOS) lacks it;
//! [`available`] tells. All arrays are `f32`.
//!
//! # In place
//!
//! MLX arrays are values; a buffer changes in place only where nobody else can
//! see it. MLX's own operations do that by donation, from an input to an output,
//! but an operation with many outputs pays for each pair of them. A kernel
//! therefore takes arrays to change by value ([`apply_in_place`]) and gives them
//! back, once it has run, through an [`InPlace`] that lies outside the graph. An
//! array that someone else still holds is copied first, so that a mistake costs
//! time and never a wrong number; [`InPlace::copied`] counts such copies.
//!
//! # Failure
//!
//! Kernels run on the thread of their MLX stream, after [`apply`] has returned.
//! A panic is caught there and handed to MLX as a C++ exception, which MLX
//! carries to whoever waits for the stream: `Array::eval` and its like return
//! it as an error. The in-place arrays of a kernel that failed are lost.

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use mlx_sys::{mlx_array, mlx_stream};
use smallvec::SmallVec;

/// A computation on `f32` arrays.
pub trait Kernel: Send + 'static {
    /// Reads `inputs`, changes `in_place` and fills `outputs`, which hold
    /// arbitrary numbers before. Runs on the thread of an MLX stream, once for
    /// each evaluation of the operation.
    ///
    /// # Panics
    ///
    /// May panic: the evaluation then fails with the panic's message.
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]);
}

/// An array to read, row-major.
#[derive(Debug)]
pub struct View<'a> {
    /// Size of each dimension.
    pub shape: SmallVec<[usize; 4]>,
    /// All numbers; a copy where the array was not row-contiguous.
    pub data: Cow<'a, [f32]>,
}

/// An array to write, row-major, on a cache line's boundary unless MLX allocated it.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// Size of each dimension.
    pub shape: SmallVec<[usize; 4]>,
    /// All numbers.
    pub data: &'a mut [f32],
}

/// The arrays that a kernel was given to change.
#[derive(Debug)]
pub struct InPlace {
    slot: Arc<Slot>,
}

impl InPlace {
    /// The changed arrays, in the order they were given.
    ///
    /// # Errors
    ///
    /// When the kernel has not run to its end: evaluate one of its outputs first.
    pub fn take(self) -> Result<Vec<Array>, Exception> {
        if !self.slot.done.load(Ordering::Acquire) {
            return Err(Exception::custom(
                "the kernel that changes these arrays has not run",
            ));
        }
        Ok(std::mem::take(&mut *self.slot.lock()))
    }

    /// How many of the arrays were copied, because somebody else held them or
    /// because they were not row-contiguous. 0 until the kernel was scheduled.
    #[must_use]
    pub fn copied(&self) -> usize {
        self.slot.copied.load(Ordering::Relaxed)
    }
}

/// Whether this process' libmlxc carries the bridge.
#[must_use]
pub fn available() -> bool {
    entry().is_some()
}

/// An operation that runs `kernel` on `inputs`; `outputs` are the shapes of the
/// arrays that it fills.
///
/// # Errors
///
/// When the bridge is not [`available`], `stream` is not a CPU stream, or an
/// input is not `f32`.
///
/// # Panics
///
/// When `outputs` is empty: an operation exists through its outputs.
pub fn apply(
    kernel: impl Kernel,
    inputs: &[&Array],
    outputs: &[&[i32]],
    stream: &Stream,
) -> Result<Vec<Array>, Exception> {
    Ok(apply_in_place(kernel, inputs, Vec::new(), outputs, stream)?.0)
}

/// Like [`apply`], with arrays that the kernel changes in place.
///
/// They stay where they are when nothing else holds them by the time the
/// operation is scheduled: give them away, do not clone them.
///
/// # Errors
///
/// As for [`apply`]; the arrays in `in_place` are lost then.
///
/// # Panics
///
/// As for [`apply`].
pub fn apply_in_place(
    kernel: impl Kernel,
    inputs: &[&Array],
    in_place: Vec<Array>,
    outputs: &[&[i32]],
    stream: &Stream,
) -> Result<(Vec<Array>, InPlace), Exception> {
    assert!(!outputs.is_empty(), "an operation has at least one output");
    let entry = entry().ok_or_else(|| {
        Exception::custom("this libmlxc has no bridge to Rust kernels; run `cargo xtask setup`")
    })?;
    let slot = Arc::new(Slot::default());
    let context = Context {
        kernel: Box::new(kernel),
        slot: Arc::clone(&slot),
        counts: [inputs.len(), in_place.len(), outputs.len()],
    };
    let raw = RawKernel {
        context: Box::into_raw(Box::new(context)).cast(),
        run,
        keep,
        drop: drop_context,
    };
    let all: Vec<mlx_array> = inputs
        .iter()
        .copied()
        .chain(&in_place)
        .map(Array::as_ptr)
        .collect();
    let shapes: SmallVec<[RawShape; 4]> = outputs
        .iter()
        .map(|sizes| RawShape {
            sizes: sizes.as_ptr(),
            dims: sizes.len(),
        })
        .collect();
    // SAFETY: all it needs is an empty handle to write to.
    let mut made: Vec<mlx_array> = outputs
        .iter()
        .map(|_| unsafe { mlx_sys::mlx_array_new() })
        .collect();
    let mut error = [0; ERROR_LEN];
    // SAFETY: the signature is the one of this bridge version; every pointer is
    // valid for the call and for the length beside it, and `raw` hands the
    // context over with functions that fit it.
    let status = unsafe {
        entry(
            &raw,
            all.as_ptr(),
            all.len(),
            in_place.len(),
            shapes.as_ptr(),
            shapes.len(),
            stream.as_ptr(),
            made.as_mut_ptr(),
            error.as_mut_ptr(),
        )
    };
    if status != 0 {
        // SAFETY: the bridge wrote a string that ends within the buffer.
        let message = unsafe { CStr::from_ptr(error.as_ptr()) };
        return Err(Exception::custom(message.to_string_lossy()));
    }
    // SAFETY: on success each is a fresh handle that nobody else owns.
    let made = made
        .into_iter()
        .map(|array| unsafe { Array::from_ptr(array) })
        .collect();
    Ok((made, InPlace { slot }))
}

/// What a kernel's context and its [`InPlace`] share.
#[derive(Debug, Default)]
struct Slot {
    arrays: Mutex<Vec<Array>>,
    copied: AtomicUsize,
    /// The kernel ran to its end, so the arrays hold what it wrote.
    done: AtomicBool,
}

impl Slot {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Array>> {
        // Nothing panics while the lock is held, and a list has no broken state.
        self.arrays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the C++ half owns of a kernel.
struct Context {
    kernel: Box<dyn Kernel>,
    slot: Arc<Slot>,
    /// Inputs, in-place arrays, outputs.
    counts: [usize; 3],
}

/// Bytes for an error message, its final zero included; as in the C++ half.
const ERROR_LEN: usize = 512;

/// `motet_view`.
#[repr(C)]
struct RawView {
    data: *mut f32,
    source: *const f32,
    shape: *const i64,
    strides: *const i64,
    dims: usize,
}

/// `motet_kernel`.
#[repr(C)]
struct RawKernel {
    context: *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, *const RawView, *mut c_char, usize) -> c_int,
    keep: unsafe extern "C" fn(*mut c_void, *const mlx_array, usize),
    drop: unsafe extern "C" fn(*mut c_void),
}

/// `motet_shape`.
#[repr(C)]
struct RawShape {
    sizes: *const i32,
    dims: usize,
}

/// `motet_bridge_apply`.
type Entry = unsafe extern "C" fn(
    *const RawKernel,
    *const mlx_array,
    usize,
    usize,
    *const RawShape,
    usize,
    mlx_stream,
    *mut mlx_array,
    *mut c_char,
) -> c_int;

/// The bridge's entry point, looked up once.
fn entry() -> Option<Entry> {
    static ENTRY: OnceLock<Option<Entry>> = OnceLock::new();
    *ENTRY.get_or_init(find_entry)
}

#[cfg(target_os = "linux")]
fn find_entry() -> Option<Entry> {
    const VERSION: c_int = 1;
    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    }
    // SAFETY: a null handle (RTLD_DEFAULT) searches what the program has loaded.
    let find = |name: &CStr| unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    let version = find(c"motet_bridge_version");
    let entry = find(c"motet_bridge_apply");
    if version.is_null() || entry.is_null() {
        return None;
    }
    // SAFETY: every version of the bridge has this function with this signature.
    let version: extern "C" fn() -> c_int = unsafe { std::mem::transmute(version) };
    // SAFETY: this version of the bridge has this function with this signature.
    (version() == VERSION).then(|| unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) })
}

#[cfg(not(target_os = "linux"))]
fn find_entry() -> Option<Entry> {
    None
}

/// Runs the kernel; called by the C++ half.
///
/// # Safety
///
/// `context` is a [`Context`] that no other thread uses now, `views` points to
/// as many valid views as it counts, `error` to `error_len > 0` writable bytes.
unsafe extern "C" fn run(
    context: *mut c_void,
    views: *const RawView,
    error: *mut c_char,
    error_len: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let context = unsafe { &*context.cast::<Context>() };
    // SAFETY: the caller's promise.
    let views = unsafe { std::slice::from_raw_parts(views, context.counts.iter().sum()) };
    // A kernel that panics leaves nothing behind that is used again: its in-place
    // arrays stay locked away and MLX fails the evaluation.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (inputs, rest) = views.split_at(context.counts[0]);
        let (in_place, outputs) = rest.split_at(context.counts[1]);
        // SAFETY: the C++ half gives every kernel valid inputs, and in-place
        // arrays and outputs that nobody else can reach.
        let (inputs, mut in_place, mut outputs) = unsafe {
            (
                inputs.iter().map(|view| view.read()).collect::<Vec<_>>(),
                in_place.iter().map(|view| view.write()).collect::<Vec<_>>(),
                outputs.iter().map(|view| view.write()).collect::<Vec<_>>(),
            )
        };
        context.kernel.run(&inputs, &mut in_place, &mut outputs);
    }));
    let Err(panic) = outcome else {
        context.slot.done.store(true, Ordering::Release);
        return 0;
    };
    let message = format!("a Rust kernel panicked: {}", panic_message(&*panic));
    let length = message.len().min(error_len - 1);
    // SAFETY: `length + 1` bytes fit into `error`.
    unsafe {
        std::ptr::copy_nonoverlapping(message.as_ptr().cast(), error, length);
        error.add(length).write(0);
    }
    // The payload's own drop might panic again.
    let _forgotten = ManuallyDrop::new(panic);
    1
}

/// Takes over the in-place arrays; called by the C++ half.
///
/// # Safety
///
/// `context` is a [`Context`]; `arrays` points to as many fresh handles as it
/// counts in-place arrays.
unsafe extern "C" fn keep(context: *mut c_void, arrays: *const mlx_array, copied: usize) {
    // SAFETY: the caller's promise.
    let context = unsafe { &*context.cast::<Context>() };
    // SAFETY: the caller's promise.
    let arrays = unsafe { std::slice::from_raw_parts(arrays, context.counts[1]) };
    // SAFETY: each handle is fresh, so it becomes the array's own.
    let arrays = arrays
        .iter()
        .map(|array| unsafe { Array::from_ptr(*array) })
        .collect();
    context.slot.copied.store(copied, Ordering::Relaxed);
    *context.slot.lock() = arrays;
}

/// Frees the context; called by the C++ half, once.
///
/// # Safety
///
/// `context` is a [`Context`] that was boxed and is not used again.
unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: the caller's promise.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    // A panic must not unwind into C++; there is nobody left to tell about it.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(context))) {
        let _forgotten = ManuallyDrop::new(panic);
    }
}

impl RawView {
    /// # Safety
    ///
    /// The view is valid for reads for `'a`, with its strides.
    unsafe fn read<'a>(&self) -> View<'a> {
        let shape = self.shape();
        let count = shape.iter().product();
        let data = if count == 0 {
            Cow::Borrowed(&[][..])
        } else if self.row_contiguous(&shape) {
            // SAFETY: row-contiguous, so its numbers lie side by side.
            Cow::Borrowed(unsafe { std::slice::from_raw_parts(self.data, count) })
        } else {
            let mut packed = vec![0.0; count];
            // SAFETY: the caller's promise.
            unsafe { self.pack(self.data, &shape, &mut packed) };
            Cow::Owned(packed)
        };
        View { shape, data }
    }

    /// # Safety
    ///
    /// The view is valid for writes for `'a` and nobody else uses it; its source,
    /// if any, is valid for reads.
    unsafe fn write<'a>(&self) -> ViewMut<'a> {
        let shape = self.shape();
        let count = shape.iter().product();
        if count == 0 {
            return ViewMut {
                shape,
                data: &mut [],
            };
        }
        // SAFETY: what is written to is always row-contiguous. Fresh memory comes
        // from MLX's allocator, out of the compiler's sight: numbers, if arbitrary.
        let data = unsafe { std::slice::from_raw_parts_mut(self.data, count) };
        if !self.source.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.pack(self.source, &shape, data) };
        }
        ViewMut { shape, data }
    }

    fn shape(&self) -> SmallVec<[usize; 4]> {
        if self.dims == 0 {
            return SmallVec::new();
        }
        // SAFETY: the C++ half gives `dims` sizes, none of them negative.
        let sizes = unsafe { std::slice::from_raw_parts(self.shape, self.dims) };
        sizes.iter().map(|&size| size as usize).collect()
    }

    fn strides(&self) -> &[i64] {
        if self.dims == 0 {
            return &[];
        }
        // SAFETY: the C++ half gives `dims` strides.
        unsafe { std::slice::from_raw_parts(self.strides, self.dims) }
    }

    fn row_contiguous(&self, shape: &[usize]) -> bool {
        let mut expected = 1;
        self.strides()
            .iter()
            .zip(shape)
            .rev()
            .all(|(&stride, &size)| {
                let fits = size == 1 || stride == expected;
                expected *= size as i64;
                fits
            })
    }

    /// Copies the strided numbers at `from` to `to`, row-major.
    ///
    /// # Safety
    ///
    /// `from` is readable wherever the strides lead.
    unsafe fn pack(&self, from: *const f32, shape: &[usize], to: &mut [f32]) {
        let strides = self.strides();
        let mut at = SmallVec::<[usize; 4]>::from_elem(0, shape.len());
        let mut offset = 0_i64;
        for number in to {
            // SAFETY: `at` lies within the shape; the rest is the caller's promise.
            *number = unsafe { *from.offset(offset as isize) };
            for axis in (0..shape.len()).rev() {
                at[axis] += 1;
                offset += strides[axis];
                if at[axis] < shape[axis] {
                    break;
                }
                offset -= strides[axis] * shape[axis] as i64;
                at[axis] = 0;
            }
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
