//! Time of each operation in a step.
//!
//! [`record`] times the operations that a model runs. An operation that is one of this crate's
//! [kernels](motet_kernels) is timed inside, on the thread that computes it, so the step runs
//! as it always does. An operation that is composed of MLX's operations has no such place: it
//! is evaluated alone and waited for. That costs some microseconds each time and keeps the
//! device idle while the graph is built.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};

use super::{Kernel, View, ViewMut};

/// The operations of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Op {
    /// Rows of the embedding, one for each token.
    EmbeddingRows,
    /// Normalisation before the first layer.
    Norm,
    /// The product to queries, keys and values.
    PackedProduct,
    /// Rotary embedding, the append to the tails, and attention of all spans.
    Attention,
    /// The product after attention.
    OutputProduct,
    /// A block's output added to its input, and the sum normalised.
    AddNorm,
    /// The product to both halves of the MLP.
    GateUpProduct,
    /// The activation between the MLP's products, `silu(gate) * up` for most families.
    Activation,
    /// The product that ends the MLP.
    DownProduct,
    /// The product to logits.
    HeadProduct,
    /// Sampling tokens from logits.
    Sample,
    /// The gate of attention's output.
    OutputGate,
    /// A short convolution.
    ShortConv,
    /// A delta net; with its convolution and its norm where it is composed of MLX's operations.
    DeltaNet,
    /// Mamba 2; with its convolution and its norm where it is composed of MLX's operations.
    Mamba2,
    /// The norm and the gate behind a recurrence.
    GatedNorm,
    /// Copies of recurrent state that segments share, before it is changed.
    StateCopy,
    /// The products to the experts' scores.
    RouterProduct,
    /// The choice of experts, and the chosen experts.
    Experts,
    /// The bound on the logits.
    Softcap,
}

/// One timed operation of a step.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    /// The operation.
    pub op: Op,
    /// Start of its computation.
    pub started: Instant,
    /// End of its computation.
    pub ended: Instant,
    /// Its memory traffic and arithmetic.
    pub cost: Cost,
}

/// Memory traffic and arithmetic of an operation, for any implementation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights, cached state and activations that it must read, each once.
    pub read_bytes: usize,
    /// Floating-point operations, where it is a product; zero elsewhere.
    pub flops: usize,
}

/// Runs `work` and returns the operations that the models of this thread computed meanwhile, in
/// order. Steps should finish within `work`: operations that have not run by its end are
/// missing.
pub fn record<T>(work: impl FnOnce() -> T) -> (T, Vec<Timed>) {
    let recording = Recording::default();
    let log = Arc::clone(&recording.log);
    let outer = RECORDING.replace(Some(recording));
    let _restored = Restored(outer);
    let made = work();
    let timed = std::mem::take(&mut *lock(&log));
    (made, timed)
}

/// Whether the operations that this thread builds are recorded.
pub(crate) fn is_recording() -> bool {
    RECORDING.with_borrow(Option::is_some)
}

/// The arrays that an operation makes.
pub(crate) trait Made {
    fn arrays(&self) -> Vec<&Array>;
}

/// Builds one operation, which reads `inputs`, and times it if a recording is active.
pub(crate) fn op<T: Made>(
    op: Op,
    inputs: &[&Array],
    build: impl FnOnce() -> Result<T, Exception>,
) -> Result<T, Exception> {
    op_beside(op, inputs, Cost::default, build)
}

/// Like [`op`], for an operation with costs beyond reading its inputs.
pub(crate) fn op_beside<T: Made>(
    op: Op,
    inputs: &[&Array],
    beside: impl FnOnce() -> Cost,
    build: impl FnOnce() -> Result<T, Exception>,
) -> Result<T, Exception> {
    if !is_recording() {
        return build();
    }
    let mut cost = beside();
    cost.read_bytes += inputs.iter().map(|input| input.nbytes()).sum::<usize>();
    with_recording(|recording| recording.unclaimed = Some(recording.clock(op, cost)));
    let made = build();
    let unclaimed = with_recording(|recording| recording.unclaimed.take()).flatten();
    let made = made?;
    if let Some(clock) = unclaimed {
        transforms::eval(inputs.iter().copied())?;
        clock.time(|| transforms::eval(made.arrays()))?;
    }
    Ok(made)
}

/// Adds a clock to `kernel` if it belongs to an operation that is being recorded.
pub(crate) fn clocked(kernel: Box<dyn Kernel>) -> Box<dyn Kernel> {
    match with_recording(|recording| recording.unclaimed.take()).flatten() {
        Some(clock) => Box::new(Clocked { kernel, clock }),
        None => kernel,
    }
}

impl Made for Array {
    fn arrays(&self) -> Vec<&Array> {
        vec![self]
    }
}

impl Made for Vec<Array> {
    fn arrays(&self) -> Vec<&Array> {
        self.iter().collect()
    }
}

impl Made for (Array, Array) {
    fn arrays(&self) -> Vec<&Array> {
        vec![&self.0, &self.1]
    }
}

thread_local! {
    static RECORDING: RefCell<Option<Recording>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Recording {
    log: Arc<Mutex<Vec<Timed>>>,
    /// The clock of the operation that is being built, until a kernel takes it.
    unclaimed: Option<Clock>,
}

impl Recording {
    fn clock(&self, op: Op, cost: Cost) -> Clock {
        Clock {
            op,
            cost,
            log: Arc::clone(&self.log),
        }
    }
}

/// Restores the enclosing recording when it is dropped.
struct Restored(Option<Recording>);

impl Drop for Restored {
    fn drop(&mut self) {
        RECORDING.set(self.0.take());
    }
}

fn with_recording<T>(change: impl FnOnce(&mut Recording) -> T) -> Option<T> {
    RECORDING.with_borrow_mut(|recording| recording.as_mut().map(change))
}

struct Clock {
    op: Op,
    cost: Cost,
    log: Arc<Mutex<Vec<Timed>>>,
}

impl Clock {
    fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let made = work();
        let ended = Instant::now();
        lock(&self.log).push(Timed {
            op: self.op,
            started,
            ended,
            cost: self.cost,
        });
        made
    }
}

fn lock(log: &Mutex<Vec<Timed>>) -> MutexGuard<'_, Vec<Timed>> {
    // No code panics while the lock is held.
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A kernel with its own clock.
struct Clocked {
    kernel: Box<dyn Kernel>,
    clock: Clock,
}

impl Kernel for Clocked {
    fn run(&self, inputs: &[View<'_>], in_place: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        self.clock
            .time(|| self.kernel.run(inputs, in_place, outputs));
    }
}
