//! The instructions of this machine, and work that runs with them.

use motet_formats::simd::InstructionSet;
#[cfg(target_arch = "x86_64")]
use motet_formats::simd::{HAS_AVX_VNNI, HAS_AVX512};

use super::bytes::Work;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::x86;

/// Whether plain loops are compiled: see [`pays`](super::pays).
const HAS_PORTABLE: bool = cfg!(any(test, not(target_arch = "x86_64")));

/// Instructions that compute products of integers. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// AVX2, and `vpdpbusd` as AVX-512 has it, on vectors of 256 bits.
    Avx512Vnni,
    /// AVX2, and `vpdpbusd` as AVX has it.
    AvxVnni,
    /// AVX2.
    Avx2,
    /// Plain loops, as the compiler vectorises them: on x86-64 for tests only, since exact products
    /// are faster there.
    Portable,
}

impl Unit {
    /// The units of this machine that are compiled and belong to an instruction set, the fastest
    /// first.
    pub(super) fn available(set: InstructionSet) -> Vec<Unit> {
        let mut found = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if set != InstructionSet::Portable
            && InstructionSet::available().contains(&InstructionSet::Avx2)
        {
            let has_vnni = is_x86_feature_detected!("avx512vnni")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw");
            if HAS_AVX512 && set == InstructionSet::Avx512 && has_vnni {
                found.push(Unit::Avx512Vnni);
            }
            if HAS_AVX_VNNI && is_x86_feature_detected!("avxvnni") {
                found.push(Unit::AvxVnni);
            }
            found.push(Unit::Avx2);
        }
        let _ = set;
        if HAS_PORTABLE {
            found.push(Unit::Portable);
        }
        found
    }

    /// The fastest one of this machine that belongs to an instruction set.
    pub(super) fn best(set: InstructionSet) -> Unit {
        Unit::available(set)[0]
    }

    /// Runs `work` with these instructions.
    ///
    /// # Panics
    ///
    /// When this machine does not have them.
    pub(super) fn run(self, work: impl Work) {
        let available = Unit::available(InstructionSet::best());
        assert!(
            available.contains(&self),
            "this machine does not have {self:?}"
        );
        match self {
            // SAFETY: the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512Vnni if HAS_AVX512 => unsafe { x86::run_avx512_vnni(work) },
            // SAFETY: the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Unit::AvxVnni if HAS_AVX_VNNI => unsafe { x86::run_avx_vnni(work) },
            // SAFETY: the machine has the instructions.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => unsafe { x86::run_avx2(work) },
            _ if HAS_PORTABLE => portable::run(work),
            _ => unreachable!("no product needs plain loops here"),
        }
    }
}
