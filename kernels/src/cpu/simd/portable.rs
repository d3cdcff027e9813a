//! Lanes as plain arrays: correct everywhere, and vectorised by the compiler where it can.

use super::{Bf16, E4m3, Element, F16, Simd};

/// `L` lanes.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<const L: usize>([f32; L]);

impl<const L: usize> Lanes<L> {
    /// These lanes.
    #[inline(always)]
    pub(super) fn of(lanes: [f32; L]) -> Self {
        Self(lanes)
    }

    /// The lanes.
    #[inline(always)]
    pub(super) fn lanes(self) -> [f32; L] {
        self.0
    }

    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut out = self;
        for lane in 0..L {
            out.0[lane] = f(self.0[lane], other.0[lane]);
        }
        out
    }
}

/// Fused only where that is one instruction; elsewhere it would be a library call.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) { a.mul_add(b, c) } else { a * b + c }
}

impl<const L: usize> Simd for Lanes<L> {
    const N: usize = L;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; L])
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        let mut out = addend;
        for lane in 0..L {
            out.0[lane] = multiply_add(self.0[lane], factor.0[lane], addend.0[lane]);
        }
        out
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self) -> Self {
        // Adding 1.5 * 2^23 leaves no fraction bits; good for |x| < 2^22, which is all that `exp` needs, and it
        // vectorises.
        const MAGIC: f32 = 12_582_912.0;
        Self(self.0.map(|a| (a + MAGIC) - MAGIC))
    }
    #[inline(always)]
    fn exp2_int(self) -> Self {
        Self(self.0.map(|a| f32::from_bits(((a as i32 + 127) as u32) << 23)))
    }
    #[inline(always)]
    fn zero_where_less(self, probe: Self, limit: Self) -> Self {
        self.replace_where_less(probe, limit, Self::splat(0.0))
    }
    #[inline(always)]
    fn replace_where_less(self, probe: Self, limit: Self, other: Self) -> Self {
        let mut out = self;
        for lane in 0..L {
            out.0[lane] = if probe.0[lane] < limit.0[lane] { other.0[lane] } else { self.0[lane] };
        }
        out
    }
    #[inline(always)]
    fn round_to_bf16(self) -> Self {
        Self(self.0.map(|a| Bf16::decode(Bf16::encode(a))))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        self.0.iter().fold(0.0, |a, b| a + b)
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |a, &b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: L elements are readable (the caller's promise); an array of f32 needs no more than their alignment.
        Self(unsafe { from.cast::<[f32; L]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: L elements are writable (the caller's promise).
        unsafe { to.cast::<[f32; L]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: L elements are writable (the caller's promise).
        unsafe { to.cast::<[u16; L]>().write_unaligned(self.0.map(|a| (a.to_bits() >> 16) as u16)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: L elements are readable (the caller's promise).
        Self(unsafe { from.cast::<[u16; L]>().read_unaligned() }.map(Bf16::decode))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        // SAFETY: L elements are readable (the caller's promise).
        Self(unsafe { from.cast::<[u16; L]>().read_unaligned() }.map(F16::decode))
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u16) -> (Self, Self) {
        // SAFETY: L pairs are readable (the caller's promise).
        let pairs = unsafe { from.cast::<[[u16; 2]; L]>().read_unaligned() };
        (Self(pairs.map(|pair| Bf16::decode(pair[0]))), Self(pairs.map(|pair| Bf16::decode(pair[1]))))
    }
    #[inline(always)]
    unsafe fn load_e4m3_pairs(from: *const u8) -> (Self, Self) {
        // SAFETY: L pairs are readable (the caller's promise).
        let pairs = unsafe { from.cast::<[[u8; 2]; L]>().read_unaligned() };
        let decode = |code| E4m3::decode(code) / 256.0;
        (Self(pairs.map(|pair| decode(pair[0]))), Self(pairs.map(|pair| decode(pair[1]))))
    }
    #[inline(always)]
    unsafe fn load_bits(from: *const u32, shift: u32, mask: u32) -> Self {
        // SAFETY: L words are readable (the caller's promise).
        Self(unsafe { from.cast::<[u32; L]>().read_unaligned() }.map(|word| (word >> shift & mask) as f32))
    }
}
