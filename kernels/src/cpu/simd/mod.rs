//! Vectors of f32 as a trait, so that a kernel is written once and compiled for each instruction set.
//!
//! A kernel is a struct of arguments with an `#[inline(always)] fn run<S: Simd>`; [`vectorize`] calls it inside a
//! function that has the instruction set's features switched on, and everything is inlined into that function. (The
//! idea is from the `pulp` crate.)

pub(crate) mod ints;
pub(crate) mod math;
pub(crate) mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tile;
pub(crate) mod transpose;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use std::sync::LazyLock;

use crate::cpu::runtime::isa::Isa;
use crate::e4m3;
use crate::ops::{DType, KvDType};

/// A vector of `N` f32 lanes.
///
/// Values of an instruction set's type exist only inside functions that [`vectorize`] entered after the set was
/// detected; that is what makes the safe methods safe. Comparisons with NaN behave as x86 does: `a.max(b)` and
/// `a.min(b)` are `b` when either is NaN.
pub(crate) trait Simd: Copy {
    /// Lanes.
    const N: usize;

    fn splat(value: f32) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once where the machine can.
    fn fma(self, factor: Self, addend: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    /// Nearest integer, ties to even.
    fn round(self) -> Self;
    /// `2^self` for integers in `-126..=127`, 0 of -127.
    fn exp2_int(self) -> Self;
    /// `self * 2^n` for integers `n` up to 127; what would not be a normal number may become zero.
    #[inline(always)]
    fn mul_exp2(self, n: Self) -> Self {
        self.mul(Self::splat(-127.0).max(n).exp2_int())
    }
    /// Lanes where `probe < limit` become zero.
    fn zero_where_less(self, probe: Self, limit: Self) -> Self;
    /// Lanes where `probe < limit` become `other`'s.
    fn replace_where_less(self, probe: Self, limit: Self, other: Self) -> Self;
    /// Nearest bfloat16, ties to even.
    fn round_to_bf16(self) -> Self;
    /// Sum of the lanes, in a fixed order.
    fn sum(self) -> f32;
    /// Largest lane.
    fn largest(self) -> f32;

    /// Asks for a cache line in the second-level cache; any address will do.
    #[inline(always)]
    fn prefetch(_line: *const u8) {}
    /// Asks for a cache line in the first-level cache; any address will do.
    #[inline(always)]
    fn prefetch_near(_line: *const u8) {}
    /// Asks for a cache line that will be written to; any address will do.
    #[inline(always)]
    fn prefetch_write(_line: *const u8) {}

    /// # Safety
    /// `N` elements are readable.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `N` elements are writable.
    unsafe fn store(self, to: *mut f32);
    /// Stores lanes that are bfloat16 already as such.
    ///
    /// # Safety
    /// `N` elements are writable.
    unsafe fn store_bf16(self, to: *mut u16);
    /// # Safety
    /// `N` elements are readable.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// # Safety
    /// `N` elements are readable.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// `N` interleaved pairs of bf16: the first of each, the second of each.
    ///
    /// # Safety
    /// `2 * N` elements are readable.
    unsafe fn load_bf16_pairs(from: *const u16) -> (Self, Self);
    /// `N` interleaved pairs of [`e4m3`] codes, none NaN, each number divided by 256: the first of each, the second of
    /// each.
    ///
    /// As a 16-bit float whose exponent has the code's four bits and a leading zero, a code is its number divided by
    /// 256; widening that is one instruction, without a detour for subnormal numbers.
    ///
    /// # Safety
    /// `2 * N` codes are readable.
    unsafe fn load_e4m3_pairs(from: *const u8) -> (Self, Self);
    /// Of each of `N` words of four bytes, the bits of `mask` after a shift to the right: less than 256.
    ///
    /// # Safety
    /// `N` words are readable.
    unsafe fn load_bits(from: *const u32, shift: u32, mask: u32) -> Self;

    /// The first `count < N` elements, zero in the other lanes.
    ///
    /// # Safety
    /// `count` elements are readable.
    #[inline(always)]
    unsafe fn load_some(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0_f32; 16];
        // SAFETY: count < N <= 16 elements are readable, and the array has N.
        unsafe {
            std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
            Self::load(lanes.as_ptr())
        }
    }

    /// The first `count <= N` elements, zero in the other lanes.
    ///
    /// # Safety
    /// `count` elements are readable.
    #[inline(always)]
    unsafe fn load_up_to(from: *const f32, count: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { if count == Self::N { Self::load(from) } else { Self::load_some(from, count) } }
    }

    /// Stores the first `count <= N` lanes.
    ///
    /// # Safety
    /// `count` elements are writable.
    #[inline(always)]
    unsafe fn store_up_to(self, to: *mut f32, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { if count == Self::N { self.store(to) } else { self.store_some(to, count) } }
    }

    /// Stores the first `count < N` lanes.
    ///
    /// # Safety
    /// `count` elements are writable.
    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize) {
        let mut lanes = [0.0_f32; 16];
        // SAFETY: the array has N <= 16 elements, and count < N elements are writable.
        unsafe {
            self.store(lanes.as_mut_ptr());
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
        }
    }
}

/// How elements in memory become f32 lanes.
pub(crate) trait Element: Copy {
    const DTYPE: KvDType;
    /// What memory holds.
    type Bits: Copy + 'static;
    /// # Safety
    /// `S::N` elements are readable.
    unsafe fn load<S: Simd>(from: *const Self::Bits) -> S;
    fn encode(value: f32) -> Self::Bits;
    fn decode(bits: Self::Bits) -> f32;
}

/// [`Element`] of [`DType::F32`].
#[derive(Clone, Copy)]
pub(crate) struct F32;
/// [`Element`] of [`DType::Bf16`].
#[derive(Clone, Copy)]
pub(crate) struct Bf16;
/// [`Element`] of [`DType::F16`].
#[derive(Clone, Copy)]
pub(crate) struct F16;

/// [`Element`] of [`KvDType::E4m3`].
#[derive(Clone, Copy)]
pub(crate) struct E4m3;

impl Element for F32 {
    const DTYPE: KvDType = KvDType::Float(DType::F32);
    type Bits = f32;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const f32) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::load(from) }
    }
    #[inline(always)]
    fn encode(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn decode(bits: f32) -> f32 {
        bits
    }
}

impl Element for Bf16 {
    const DTYPE: KvDType = KvDType::Float(DType::Bf16);
    type Bits = u16;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u16) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16(from) }
    }
    #[inline(always)]
    fn encode(value: f32) -> u16 {
        round_to_bf16(value)
    }
    #[inline(always)]
    fn decode(bits: u16) -> f32 {
        f32::from_bits(u32::from(bits) << 16)
    }
}

impl Element for F16 {
    const DTYPE: KvDType = KvDType::Float(DType::F16);
    type Bits = u16;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u16) -> S {
        // SAFETY: the caller's promise.
        unsafe { S::load_f16(from) }
    }
    #[inline(always)]
    fn encode(value: f32) -> u16 {
        half::f16::from_f32(value).to_bits()
    }
    #[inline(always)]
    fn decode(bits: u16) -> f32 {
        half::f16::from_bits(bits).to_f32()
    }
}

/// Numbers of [`E4m3`] by code.
static E4M3_NUMBERS: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|code| e4m3::decode(code as u8)));

impl Element for E4m3 {
    const DTYPE: KvDType = KvDType::E4m3;
    type Bits = u8;
    #[inline(always)]
    unsafe fn load<S: Simd>(from: *const u8) -> S {
        let (numbers, mut lanes) = (&*E4M3_NUMBERS, [0.0_f32; 16]);
        for (lane, i) in lanes.iter_mut().zip(0..S::N) {
            // SAFETY: the caller's promise: S::N elements are readable.
            *lane = numbers[usize::from(unsafe { *from.add(i) })];
        }
        // SAFETY: N <= 16 lanes.
        unsafe { S::load(lanes.as_ptr()) }
    }
    #[inline(always)]
    fn encode(value: f32) -> u8 {
        e4m3::encode(value)
    }
    #[inline(always)]
    fn decode(bits: u8) -> f32 {
        E4M3_NUMBERS[usize::from(bits)]
    }
}

/// Nearest bfloat16, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn round_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    if value.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded }
}

/// A computation written for any [`Simd`]. `run` must be `#[inline(always)]`, and so must all it calls with vectors.
pub(crate) trait Kernel {
    fn run<S: Simd>(self);
}

/// Runs a kernel with the instruction set's full vectors.
pub(crate) fn vectorize<K: Kernel>(isa: Isa, kernel: K) {
    match isa {
        // SAFETY: `CpuBackend::new` refuses an instruction set that the machine lacks, and AMX implies AVX-512.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 => unsafe { x86::with_avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::with_avx2(kernel) },
        _ => kernel.run::<portable::Lanes<8>>(),
    }
}

/// Runs a kernel with the widest vectors whose lanes divide `length`.
pub(crate) fn vectorize_dividing<K: Kernel>(isa: Isa, length: usize, kernel: K) {
    match isa {
        _ if !length.is_multiple_of(8) => kernel.run::<portable::Lanes<1>>(),
        Isa::Amx | Isa::Avx512 if !length.is_multiple_of(16) => vectorize(Isa::Avx2, kernel),
        _ => vectorize(isa, kernel),
    }
}
