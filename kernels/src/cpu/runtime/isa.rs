//! Which instruction sets this machine offers, found out at run time.

/// An instruction set the CPU backend has kernels for, weakest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// Plain Rust; what the compiler vectorises by itself (NEON on aarch64).
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
    /// AVX-512 with BF16 and VNNI, and the tile unit with products of bf16 and of bytes.
    Amx,
}

impl Isa {
    /// The strongest instruction set of this machine.
    pub fn detect() -> Self {
        *Self::available().last().expect("portable is always there")
    }

    /// All instruction sets of this machine, weakest first.
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx].into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => x86::has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => x86::has_avx512(),
            #[cfg(target_arch = "x86_64")]
            Self::Amx => x86::has_avx512() && x86::has_amx(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Lower-case name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    pub fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    }

    pub fn has_avx512() -> bool {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
    }

    /// The processor has tiles with both products, the kernel saves them, and it let this process use them.
    pub fn has_amx() -> bool {
        const AMX_BF16: u32 = 1 << 22;
        const AMX_TILE: u32 = 1 << 24;
        const AMX_INT8: u32 = 1 << 25;
        const ALL: u32 = AMX_BF16 | AMX_TILE | AMX_INT8;
        const TILE_STATE: u64 = 0b11 << 17;
        let has_vectors = is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vnni");
        if !has_vectors || __cpuid(0).eax < 7 || !is_x86_feature_detected!("xsave") {
            return false;
        }
        if __cpuid_count(7, 0).edx & ALL != ALL {
            return false;
        }
        // SAFETY: XSAVE is enabled by the operating system (checked above), so XGETBV exists and register 0 is valid.
        let saved = unsafe { enabled_state() };
        saved & TILE_STATE == TILE_STATE && ask_for_tiles()
    }

    #[target_feature(enable = "xsave")]
    fn enabled_state() -> u64 {
        // SAFETY: register 0 exists wherever XGETBV does.
        unsafe { _xgetbv(0) }
    }

    /// Linux hands out the 8 KB of tile state only to processes that ask.
    fn ask_for_tiles() -> bool {
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const TILE_DATA: libc::c_ulong = 18;
        // SAFETY: arch_prctl with this code takes one integer and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
    }
}
