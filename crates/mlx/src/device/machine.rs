//! The machine's free memory, and whether it can really be used.

use std::fs;
use std::io;
use std::path::Path;

use memmap2::MmapMut;

/// Memory is probed in pieces of this many bytes.
const PIECE_BYTES: usize = 64 << 20;
/// Lower bound of the system's page size.
const PAGE_BYTES: usize = 4096;

/// Bytes of memory that this process can still get without taking them from another process:
/// the least of the machine's available memory and the rest of the process's control groups.
/// `None` where the system does not report it, as outside Linux.
pub fn free_bytes() -> Option<usize> {
    free_bytes_under(Path::new("/"))
}

/// Allocates this many bytes of new memory and frees them again. Returns how many bytes there are.
///
/// Where the system reports its free memory, nothing is written: writing 2 GB takes a second, and
/// what does not fit is rejected by the report. Linux would allocate it, and kill some process when
/// it is written to. Elsewhere each page is written to.
pub fn try_memory(bytes: usize) -> usize {
    match free_bytes() {
        Some(free) if free < bytes => free,
        Some(_) => probe_memory(bytes, false, MmapMut::map_anon),
        None => probe_memory(bytes, true, MmapMut::map_anon),
    }
}

/// Returns pages of the heap to the system that hold nothing. MLX's allocator on a CPU is the C
/// library's, and glibc keeps the buffers of a long prompt: some hundred megabytes.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: any thread may call it at any time; it touches no allocated memory.
        unsafe { malloc_trim(0) };
    }
}

fn probe_memory(
    bytes: usize,
    is_written: bool,
    mut take: impl FnMut(usize) -> io::Result<MmapMut>,
) -> usize {
    let mut pieces = Vec::new();
    let mut taken = 0;
    while taken < bytes {
        let size = PIECE_BYTES.min(bytes - taken);
        let Ok(mut piece) = take(size) else {
            break;
        };
        if is_written {
            for page in piece.chunks_mut(PAGE_BYTES) {
                page[0] = 1;
            }
        }
        taken += size;
        pieces.push(piece);
    }
    taken
}

/// [`free_bytes`] for the system whose files lie under `root`.
fn free_bytes_under(root: &Path) -> Option<usize> {
    let available = available(&read(&root.join("proc/meminfo"))?)?;
    let groups = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().filter_map(|line| free_in_group(root, line));
    Some(left.fold(available, usize::min))
}

fn available(meminfo: &str) -> Option<usize> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Free bytes by a line of `/proc/self/cgroup`: the least that the group or any group above it
/// has left. In a container the process's own group may be shown as the root, and not under its
/// name.
fn free_in_group(root: &Path, line: &str) -> Option<usize> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, name) = (fields.next()?, fields.next()?, fields.next()?);
    let (mount, files) = if controllers.is_empty() {
        ("sys/fs/cgroup", &V2)
    } else if controllers
        .split(',')
        .any(|controller| controller == "memory")
    {
        ("sys/fs/cgroup/memory", &V1)
    } else {
        return None;
    };
    let name = Path::new(name.trim_start_matches('/'));
    let groups = name.ancestors().map(|group| root.join(mount).join(group));
    groups
        .filter_map(|group| free_in_folder(&group, files))
        .min()
}

/// File names of a control group.
struct Files {
    limit: &'static str,
    usage: &'static str,
    /// The line of `memory.stat` that counts cached file pages that are not in use.
    cached: &'static str,
}

const V2: Files = Files {
    limit: "memory.max",
    usage: "memory.current",
    cached: "inactive_file",
};

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: "total_inactive_file",
};

fn free_in_folder(group: &Path, files: &Files) -> Option<usize> {
    let number = |name: &str| read(&group.join(name))?.trim().parse::<usize>().ok();
    // "max" is not a number and means no limit.
    let (limit, usage) = (number(files.limit)?, number(files.usage)?);
    let stat = read(&group.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        (name == files.cached).then(|| bytes.trim().parse::<usize>().ok())?
    });
    let in_use = usage.saturating_sub(cached.unwrap_or(0));
    Some(limit.saturating_sub(in_use))
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::device::machine::*;

    const MIB: usize = 1 << 20;

    /// A system with these files. Its folder is removed when it is dropped.
    struct System(PathBuf);

    impl System {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let process = std::process::id();
            let root = std::env::temp_dir().join(format!("motet-machine-{process}-{name}"));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                fs::write(path, text).expect("a file");
            }
            Self(root)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    const MEMINFO: (&str, &str) = (
        "proc/meminfo",
        "MemTotal:       16384000 kB\nMemFree:          100000 kB\nMemAvailable:    8388608 kB\n",
    );

    #[test]
    fn free_memory_is_the_least_of_all_limits() {
        let check = |name: &str, files: &[(&str, &str)], expected: Option<usize>| {
            let system = System::new(name, &[&[MEMINFO], files].concat());
            assert_eq!(free_bytes_under(&system.0), expected, "{name}");
        };
        check("no-groups", &[], Some(8 << 30));
        let unlimited = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.current", "5\n"),
        ];
        check("unlimited", &unlimited, Some(8 << 30));
        let nested = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/memory.max", "2097152000\n"),
            ("sys/fs/cgroup/a/memory.current", "1048576000\n"),
            (
                "sys/fs/cgroup/a/memory.stat",
                "anon 7\ninactive_file 1048576\n",
            ),
            ("sys/fs/cgroup/a/b/memory.max", "9000000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "0\n"),
        ];
        check("nested", &nested, Some(1001 * MIB));
        let container = [
            ("proc/self/cgroup", "0::/not/to/be/seen\n"),
            ("sys/fs/cgroup/memory.max", "1048576\n"),
            ("sys/fs/cgroup/memory.current", "2097152\n"),
        ];
        check("container", &container, Some(0));
        let older = [
            ("proc/self/cgroup", "3:cpu,cpuacct:/x\n2:memory:/y\n"),
            ("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "4194304\n"),
            ("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "1048576\n"),
            (
                "sys/fs/cgroup/memory/y/memory.stat",
                "total_inactive_file 1048576\n",
            ),
        ];
        check("older", &older, Some(4 * MIB));
        let nothing = System::new("nothing", &[("proc/meminfo", "MemFree: 1 kB\n")]);
        assert_eq!(free_bytes_under(&nothing.0), None);
    }

    #[test]
    fn granted_memory_is_counted() {
        let mut sizes = Vec::new();
        let bytes = 2 * PIECE_BYTES + 5;
        let taken = probe_memory(bytes, true, |size| {
            sizes.push(size);
            MmapMut::map_anon(size)
        });
        assert_eq!((taken, sizes), (bytes, vec![PIECE_BYTES, PIECE_BYTES, 5]));
        let mut left = 1;
        let taken = probe_memory(bytes, true, |size| match left {
            0 => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
            _ => {
                left -= 1;
                MmapMut::map_anon(size)
            }
        });
        assert_eq!(taken, PIECE_BYTES);
    }

    /// More memory than any machine has is rejected without being probed.
    #[cfg(target_os = "linux")]
    #[test]
    fn more_than_free_memory_is_not_probed() {
        let free = free_bytes().expect("Linux reports its free memory");
        let found = try_memory(1 << 60);
        assert!(free > 0 && found < 1 << 50, "{found}");
        assert_eq!(try_memory(MIB), MIB);
    }
}
