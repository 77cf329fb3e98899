//! Rust functions as operations of an MLX graph, on the CPU.
//!
//! MLX's CPU backend spends about 3 µs on each operation and computes
//! exponentials one at a time. [`apply`] puts a [`Kernel`], written in Rust, into
//! the graph as one operation: MLX schedules it among its own, allocates its
//! outputs and frees its inputs.
//!
//! The C++ half is `bridge/bridge.cpp`. On Linux `cargo xtask setup` builds it into libmlxc.
//! Where mlx-sys builds MLX itself, as on macOS, the build script builds it separately. A
//! libmlxc that was built in another way lacks the bridge; [`available`] returns whether it is
//! there. All arrays are `f32`.
//!
//! # In place
//!
//! MLX arrays are values. MLX's own operations change a buffer in place only where no other
//! array uses it, which MLX knows once everything that was evaluated before has run. With two
//! steps in flight that is too late. Here the code that makes a [`Buffer`] of an array promises
//! instead that in-place changes are harmless: kernels change the buffer as they run, one after
//! another, and other operations of the same stream see the result of what was evaluated before
//! them. MLX treats the buffer as an ordinary input, so nothing is ever copied.
//!
//! # Failure
//!
//! Kernels run on the thread of their MLX stream, after [`apply`] has returned.
//! A panic is caught there and passed to MLX as a C++ exception. MLX reports it to the first
//! thread that waits for the stream: `Array::eval` and similar calls return it as an error.
//! That caller may have evaluated something later; [`failures`] lets every other caller find
//! out. Buffers that a failed kernel was to change hold arbitrary numbers.

pub mod memory;
pub mod profile;
mod version;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use mlx_sys::{mlx_array, mlx_stream};
use smallvec::SmallVec;

pub use self::version::outdated;

/// A computation on `f32` arrays.
pub trait Kernel: Send + 'static {
    /// Reads `inputs`, changes `in_place` and fills `outputs`, which hold arbitrary numbers
    /// before. Runs on the thread of an MLX stream, once for each evaluation of the operation.
    ///
    /// # Panics
    ///
    /// May panic. The evaluation then fails with the panic's message.
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

/// An array to write, row-major. It starts on a cache line unless MLX allocated it.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// Size of each dimension.
    pub shape: SmallVec<[usize; 4]>,
    /// All numbers.
    pub data: &'a mut [f32],
}

/// An array that kernels change in place, one after another.
#[derive(Debug)]
pub struct Buffer(Array);

impl Buffer {
    /// Lets kernels change `array`.
    ///
    /// # Safety
    ///
    /// The array owns its memory, which is row-contiguous once the array is evaluated. From now
    /// on it is used only by operations that are evaluated on the kernels' stream, and by the
    /// host once it has waited for the last kernel. Every user of a view of it accepts that its
    /// numbers change. No operation gets an array over the same memory beside it, neither as an
    /// input nor as another buffer: a kernel has exclusive use of the buffers that it changes.
    #[must_use]
    pub unsafe fn new(array: Array) -> Self {
        Self(array)
    }

    /// The array with the changes of all kernels that are evaluated before it is used.
    #[must_use]
    pub fn array(&self) -> &Array {
        &self.0
    }

    /// The array with the changes of all kernels that are evaluated before it is used.
    #[must_use]
    pub fn into_array(self) -> Array {
        self.0
    }
}

/// The kernels that have failed on one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Number of failed kernels.
    pub count: u64,
    /// Message of the last failure.
    pub last: String,
}

/// Failures on `stream` up to now. A kernel's failure is certain to be included only if the
/// stream was waited for after the kernel.
///
/// # Errors
///
/// When `stream` is not one of MLX's streams.
pub fn failures(stream: &Stream) -> Result<Failures, Exception> {
    let failed = all_failures().get(&stream.get_index()?).cloned();
    Ok(failed.unwrap_or_default())
}

/// Waits until `stream` is idle and takes the error that MLX still holds for it, so that later
/// evaluations fail only for their own reasons.
pub fn drain(stream: &Stream) {
    // SAFETY: the stream is a valid handle. The call returns the error that MLX still held, and
    // that error is to be dropped.
    let _status = unsafe { mlx_sys::mlx_synchronize(stream.as_ptr()) };
}

/// Whether `array` can be read without waiting.
#[must_use]
pub fn is_available(array: &Array) -> bool {
    let mut available = false;
    // SAFETY: both are valid for the call.
    let status = unsafe { mlx_sys::_mlx_array_is_available(&mut available, array.as_ptr()) };
    status == 0 && available
}

/// The number of GPUs that MLX finds: none where it was built for the CPU, or where the driver
/// reports none.
///
/// # Errors
///
/// When MLX cannot ask the driver.
pub fn gpus() -> Result<usize, Exception> {
    let mut count = 0;
    // SAFETY: the pointer is valid for the call, which takes nothing else.
    let status =
        unsafe { mlx_sys::mlx_device_count(&mut count, mlx_sys::mlx_device_type__MLX_GPU) };
    match usize::try_from(count) {
        Ok(count) if status == 0 => Ok(count),
        _ => Err(Exception::custom(format!(
            "MLX cannot count the GPUs (status {status}, count {count})"
        ))),
    }
}

/// Raises the number of tasks that MLX queues, in this whole process, before it blocks the
/// evaluating thread. Memory must then be bounded in another way. Does nothing without the
/// bridge.
pub fn queue_more(stream: &Stream) {
    static ONCE: Once = Once::new();
    if let Some(entries) = entries() {
        // SAFETY: the signature is the one of this bridge version; the stream is valid.
        ONCE.call_once(|| unsafe { (entries.queue_more)(stream.as_ptr(), MORE_QUEUED_TASKS) });
    }
}

/// In tasks of ten operations each: more than two forward passes of any model.
const MORE_QUEUED_TASKS: c_int = 10_000;

/// Whether this process' libmlxc carries the bridge.
#[must_use]
pub fn available() -> bool {
    entries().is_some()
}

/// Adds an operation to the graph that runs `kernel` on `inputs`. `outputs` are the shapes of
/// the arrays that the kernel fills.
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
    apply_in_place(kernel, inputs, &[], outputs, stream)
}

/// Like [`apply`], with arrays that the kernel changes in place.
///
/// # Errors
///
/// As for [`apply`].
///
/// # Panics
///
/// As for [`apply`].
pub fn apply_in_place(
    kernel: impl Kernel,
    inputs: &[&Array],
    in_place: &[&Buffer],
    outputs: &[&[i32]],
    stream: &Stream,
) -> Result<Vec<Array>, Exception> {
    assert!(!outputs.is_empty(), "an operation has at least one output");
    let entries = entries().ok_or_else(|| {
        Exception::custom("this libmlxc has no bridge to Rust kernels; run `cargo xtask setup`")
    })?;
    let context = Context {
        kernel: profile::clocked(Box::new(kernel)),
        stream: stream.get_index()?,
        counts: [inputs.len(), in_place.len(), outputs.len()],
    };
    let raw = RawKernel {
        context: Box::into_raw(Box::new(context)).cast(),
        run,
        drop: drop_context,
    };
    let all: Vec<mlx_array> = inputs
        .iter()
        .copied()
        .chain(in_place.iter().map(|buffer| &buffer.0))
        .map(Array::as_ptr)
        .collect();
    let shapes: SmallVec<[RawShape; 4]> = outputs
        .iter()
        .map(|sizes| RawShape {
            sizes: sizes.as_ptr(),
            dims: sizes.len(),
        })
        .collect();
    // SAFETY: the call needs only an empty handle to write to.
    let mut made: Vec<mlx_array> = outputs
        .iter()
        .map(|_| unsafe { mlx_sys::mlx_array_new() })
        .collect();
    let mut error = [0; ERROR_LEN];
    // SAFETY: the signature is the one of this bridge version; every pointer is
    // valid for the call and for the length beside it, and `raw` hands the
    // context over with functions that fit it.
    let status = unsafe {
        (entries.apply)(
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
    // SAFETY: on success each is a new handle with no other owner.
    let owned = |array| unsafe { Array::from_ptr(array) };
    Ok(made.into_iter().map(owned).collect())
}

/// Failures of each stream, by the stream's index.
fn all_failures() -> MutexGuard<'static, BTreeMap<c_int, Failures>> {
    static FAILURES: Mutex<BTreeMap<c_int, Failures>> = Mutex::new(BTreeMap::new());
    // Nothing panics while the lock is held, and counts have no broken state.
    FAILURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The part of a kernel that the C++ half owns.
struct Context {
    kernel: Box<dyn Kernel>,
    /// The index of its stream.
    stream: c_int,
    /// Inputs, in-place arrays, outputs.
    counts: [usize; 3],
}

/// Bytes of an error message's buffer, its final zero included; the C++ half has the same
/// number.
const ERROR_LEN: usize = 512;

/// `motet_view`.
#[repr(C)]
struct RawView {
    data: *mut f32,
    shape: *const i64,
    strides: *const i64,
    dims: usize,
}

/// `motet_kernel`.
#[repr(C)]
struct RawKernel {
    context: *mut c_void,
    run: unsafe extern "C" fn(*mut c_void, *const RawView, *mut c_char, usize) -> c_int,
    drop: unsafe extern "C" fn(*mut c_void),
}

/// `motet_shape`.
#[repr(C)]
struct RawShape {
    sizes: *const i32,
    dims: usize,
}

/// `motet_bridge_apply`.
type Apply = unsafe extern "C" fn(
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

/// `motet_bridge_can_adopt`.
type CanWrap = unsafe extern "C" fn() -> c_int;

/// `motet_bridge_adopt`.
type Wrap = unsafe extern "C" fn(
    *mut f32,
    *const RawShape,
    *mut c_void,
    unsafe extern "C" fn(*mut c_void),
    *mut mlx_array,
    *mut c_char,
) -> c_int;

/// `motet_bridge_queue_more`.
type QueueMore = unsafe extern "C" fn(mlx_stream, c_int);

/// The bridge's entry points.
#[derive(Clone, Copy)]
struct Entries {
    apply: Apply,
    queue_more: QueueMore,
    can_wrap: CanWrap,
    wrap: Wrap,
}

/// The bridge's entry points, looked up once.
fn entries() -> Option<Entries> {
    static ENTRIES: OnceLock<Option<Entries>> = OnceLock::new();
    *ENTRIES.get_or_init(find_entries)
}

/// The bridge's function of this name, which the build script has linked.
#[cfg(motet_bridge)]
fn find(name: &CStr) -> *mut c_void {
    // Declared for their addresses only; the types in `Entries` give the parameters and
    // results.
    unsafe extern "C" {
        fn motet_bridge_version();
        fn motet_bridge_mlx_sys();
        fn motet_bridge_apply();
        fn motet_bridge_queue_more();
        fn motet_bridge_can_adopt();
        fn motet_bridge_adopt();
    }
    let function: unsafe extern "C" fn() = match name.to_bytes() {
        b"motet_bridge_version" => motet_bridge_version,
        b"motet_bridge_mlx_sys" => motet_bridge_mlx_sys,
        b"motet_bridge_apply" => motet_bridge_apply,
        b"motet_bridge_queue_more" => motet_bridge_queue_more,
        b"motet_bridge_can_adopt" => motet_bridge_can_adopt,
        b"motet_bridge_adopt" => motet_bridge_adopt,
        _ => return std::ptr::null_mut(),
    };
    function as *mut c_void
}

/// The symbol of this name that the program has loaded, or null.
#[cfg(all(target_os = "linux", not(motet_bridge)))]
fn find(name: &CStr) -> *mut c_void {
    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    }
    // SAFETY: a null handle (RTLD_DEFAULT) searches the libraries that the program has loaded.
    unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) }
}

#[cfg(not(any(target_os = "linux", motet_bridge)))]
fn find(_name: &CStr) -> *mut c_void {
    std::ptr::null_mut()
}

fn find_entries() -> Option<Entries> {
    if version::found() != Some(version::VERSION) {
        return None;
    }
    let found = [
        c"motet_bridge_apply",
        c"motet_bridge_queue_more",
        c"motet_bridge_can_adopt",
        c"motet_bridge_adopt",
    ];
    let [apply, queue_more, can_wrap, wrap] = found.map(find);
    if [apply, queue_more, can_wrap, wrap].contains(&std::ptr::null_mut()) {
        return None;
    }
    // SAFETY: this version of the bridge has these functions with these signatures.
    Some(unsafe {
        Entries {
            apply: std::mem::transmute::<*mut c_void, Apply>(apply),
            queue_more: std::mem::transmute::<*mut c_void, QueueMore>(queue_more),
            can_wrap: std::mem::transmute::<*mut c_void, CanWrap>(can_wrap),
            wrap: std::mem::transmute::<*mut c_void, Wrap>(wrap),
        }
    })
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
    // A kernel that panics leaves numbers behind, even if wrong ones, and MLX fails the
    // evaluation.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let (inputs, rest) = views.split_at(context.counts[0]);
        let (in_place, outputs) = rest.split_at(context.counts[1]);
        assert_apart(inputs, in_place);
        // SAFETY: the C++ half gives every kernel valid inputs and new outputs. `Buffer::new`
        // requires that nothing else uses the in-place arrays now.
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
        return 0;
    };
    let message = format!("a Rust kernel panicked: {}", panic_message(&*panic));
    let mut failures = all_failures();
    let failures = failures.entry(context.stream).or_default();
    failures.count += 1;
    failures.last.clone_from(&message);
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

/// # Panics
///
/// When the memory of an in-place array is also that of another one, or of an input.
fn assert_apart(inputs: &[RawView], in_place: &[RawView]) {
    let with_memory = in_place.iter().filter(|view| !view.is_empty());
    let mut changed: SmallVec<[*mut f32; 16]> = with_memory.map(|view| view.data).collect();
    changed.sort_unstable();
    let is_twice = changed.windows(2).any(|pair| pair[0] == pair[1]);
    let is_input = |view: &RawView| changed.binary_search(&view.data).is_ok();
    assert!(
        !is_twice && !inputs.iter().any(is_input),
        "an array that a kernel changes is also another one of its arrays"
    );
}

/// Frees the context; called by the C++ half, once.
///
/// # Safety
///
/// `context` is a [`Context`] that was boxed and is not used again.
unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: the caller's promise.
    let context = unsafe { Box::from_raw(context.cast::<Context>()) };
    // A panic must not unwind into C++, and no caller is left to report it to.
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
    /// The view is valid for writes for `'a`, and nothing else uses it.
    unsafe fn write<'a>(&self) -> ViewMut<'a> {
        let shape = self.shape();
        let count = shape.iter().product();
        if count == 0 {
            return ViewMut {
                shape,
                data: &mut [],
            };
        }
        // SAFETY: an array to write is always row-contiguous. New memory comes from MLX's
        // allocator, which the compiler cannot see into, so it holds arbitrary but valid
        // numbers.
        let data = unsafe { std::slice::from_raw_parts_mut(self.data, count) };
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

    fn is_empty(&self) -> bool {
        self.shape().contains(&0)
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
