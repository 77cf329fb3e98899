//! Bus errors of mapped files, survived: a file that is shortened while it is mapped has no bytes
//! behind its new end, and the system answers a read there with the signal `SIGBUS`, which ends the
//! process.
//!
//! The handler maps zeros in the place of the bytes that are gone, and marks the file as torn. The
//! read goes on, with a wrong result. Code that computes with the bytes must ask for the mark
//! afterwards and discard its results. This is sound for bytes that are read as plain numbers,
//! for which zero is as good as any other value: nothing unwinds and no code is skipped. Leaving the
//! handler by a jump would skip the destructors of all frames between, which Rust does not allow.
//!
//! A signal handler belongs to the whole process, so that one is installed only on request. It
//! handles faults in this crate's mappings, and passes all others to the handler before it.
#![expect(
    unsafe_code,
    reason = "signal handlers and fixed mappings have no safe interface"
)]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Files that are protected at a time. Models have up to two hundred.
const FILES_MAX: usize = 1024;
/// The start of an entry that is being written.
const CLAIMED: usize = 1;

/// A mapped range. A handler may read it at any moment, so that it consists of atomics.
struct Entry {
    /// Address of the first byte; 0 if the entry is free.
    start: AtomicUsize,
    /// Address behind the last byte.
    end: AtomicUsize,
    is_torn: AtomicBool,
}

static ENTRIES: [Entry; FILES_MAX] = [const {
    Entry {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_torn: AtomicBool::new(false),
    }
}; FILES_MAX];

/// Set before the handler is installed.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Lets this process survive that a mapped file of a model is shortened: a step that needed its
/// bytes fails, and the model can be used no more.
///
/// Installs a handler for the signal `SIGBUS`, for the whole process and for good. Errors outside
/// the mapped files go to the handler that was there before. Calls after the first do nothing.
///
/// # Errors
///
/// The system's error when the handler cannot be installed.
pub fn survive_shortened_files() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| install().map_err(|error| code(&error)));
    installed.map_err(io::Error::from_raw_os_error)
}

fn code(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EINVAL)
}

fn install() -> io::Result<()> {
    // SAFETY: the call has no preconditions.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page_bytes = usize::try_from(page_bytes).map_err(io::Error::other)?;
    PAGE_BYTES.store(page_bytes, Ordering::Relaxed);
    // SAFETY: all fields of the C struct are integers, for which zeros are valid.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: reads the present action into a struct of its type.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) } != 0 {
        return Err(io::Error::last_os_error());
    }
    BEFORE.get_or_init(|| before);
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO demands, and calls only what a signal
    // handler may call: atomics, `mmap`, `sigaction`, `raise`.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Handles the signal. Allocates nothing, takes no lock and does not panic.
extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid struct.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr().addr()) };
    if code == libc::BUS_ADRERR
        && let Some(entry) = ENTRIES.iter().find(|entry| entry.contains(address))
        && entry.tear(address)
    {
        return;
    }
    // SAFETY: these are the arguments of this call.
    unsafe { pass_on(signal, info, context, code) };
}

impl Entry {
    fn contains(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        let end = self.end.load(Ordering::Acquire);
        // An entry that changed meanwhile is not that of the thread that reads: its own lives.
        let is_whole = self.start.load(Ordering::Acquire) == start;
        is_whole && start > CLAIMED && (start..end).contains(&address)
    }

    /// Maps zeros from the page of `address` to the end. Returns whether that worked.
    fn tear(&self, address: usize) -> bool {
        let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
        let page = address - address % page_bytes;
        let length = self.end.load(Ordering::Acquire) - page;
        // Set first: no thread reads zeros before the mark is there.
        self.is_torn.store(true, Ordering::Release);
        // SAFETY: the range lies within a mapping that this crate owns, since the thread that was
        // interrupted is reading it. Its bytes are read as plain numbers only, which may be zero.
        // `mmap` is a system call alone, and leaves `errno` as it was where it succeeds.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::with_exposed_provenance_mut(page),
                length,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        mapped != libc::MAP_FAILED
    }
}

/// Does what would have been done without this handler.
///
/// # Safety
///
/// The arguments must be those of a handler's call.
unsafe fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    code: libc::c_int,
) {
    let Some(before) = BEFORE.get() else { return };
    if matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        // SAFETY: the struct was returned by `sigaction`. With it the fault ends the process when
        // the handler returns and the read is tried again; a signal that was sent is sent again.
        unsafe {
            libc::sigaction(signal, before, std::ptr::null_mut());
            if code <= 0 {
                libc::raise(signal);
            }
        }
    } else if before.sa_flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: with this flag the field is a function of this type.
        let handler: Handler = unsafe { std::mem::transmute(before.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: without the flag the field is a function of this type.
        let handler: extern "C" fn(libc::c_int) =
            unsafe { std::mem::transmute(before.sa_sigaction) };
        handler(signal);
    }
}

/// The entry of one mapping, which must live longer than this.
#[derive(Debug)]
pub(super) struct Protected(usize);

impl Protected {
    /// Enters a mapping. None if it is empty or the table is full: a bus error in it then ends the
    /// process.
    pub(super) fn new(bytes: &[u8]) -> Option<Self> {
        let range = bytes.as_ptr_range();
        if bytes.is_empty() {
            return None;
        }
        let claim = |entry: &Entry| {
            let claimed =
                entry
                    .start
                    .compare_exchange(0, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            claimed.is_ok()
        };
        let index = ENTRIES.iter().position(claim)?;
        let entry = &ENTRIES[index];
        entry.is_torn.store(false, Ordering::Release);
        entry
            .end
            .store(range.end.expose_provenance(), Ordering::Release);
        entry
            .start
            .store(range.start.expose_provenance(), Ordering::Release);
        Some(Self(index))
    }

    /// Whether zeros were read in the place of bytes that are gone.
    pub(super) fn is_torn(&self) -> bool {
        ENTRIES[self.0].is_torn.load(Ordering::Acquire)
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        ENTRIES[self.0].start.store(0, Ordering::Release);
    }
}
