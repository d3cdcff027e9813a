//! Dot products of bytes, beside [`Simd`].

use super::Simd;
use super::portable::Lanes;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::cpu::runtime::isa::Isa;

/// A vector of f32 lanes, whose instruction set has integers of 32 bits in as many lanes.
pub(crate) trait Ints: Simd {
    /// As many integers as lanes, or four bytes in the place of each.
    type Integers: Copy;
    /// Whether [`Ints::dot_bytes`] takes codes as they are, so that 128 times the sum of `x` is to be taken away.
    const UNSIGNED: bool;

    fn integer(value: i32) -> Self::Integers;
    /// # Safety
    /// `4 * N` bytes are readable.
    unsafe fn load_integers(from: *const u8) -> Self::Integers;
    /// Four bytes in every lane.
    ///
    /// # Safety
    /// Four bytes are readable.
    unsafe fn broadcast(from: *const u8) -> Self::Integers;
    /// The low halves of all bytes.
    fn low(bytes: Self::Integers) -> Self::Integers;
    /// The high halves of all bytes.
    fn high(bytes: Self::Integers) -> Self::Integers;
    /// To each lane the sum of the products of its four bytes: of `codes`, none above 15, and of `x`, with signs.
    fn dot(sum: Self::Integers, codes: Self::Integers, x: Self::Integers) -> Self::Integers;
    /// The same of `codes` of 8 bits; with 128 taken from each unless [`Ints::UNSIGNED`]. No byte of `x` is -128.
    fn dot_bytes(sum: Self::Integers, codes: Self::Integers, x: Self::Integers) -> Self::Integers;
    /// As f32, rounded to the nearest.
    fn number(integers: Self::Integers) -> Self;
    /// The nearest integers, ties to even, of numbers below 2^22.
    fn nearest(numbers: Self) -> Self::Integers;
    fn plus(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn minus(a: Self::Integers, b: Self::Integers) -> Self::Integers;
    fn shift_left<const BITS: u32>(integers: Self::Integers) -> Self::Integers;
    /// With the sign.
    fn shift_right<const BITS: u32>(integers: Self::Integers) -> Self::Integers;
    /// The sum of all lanes.
    fn total(integers: Self::Integers) -> i32;
    /// Stores the low byte of each lane.
    ///
    /// # Safety
    /// `N` bytes are writable.
    unsafe fn store_bytes(integers: Self::Integers, to: *mut u8);
}

/// A computation written for any [`Ints`], as [`super::Kernel`] is for any [`Simd`].
pub(crate) trait IntKernel {
    fn run<S: Ints>(self);
}

/// Runs a kernel with the instruction set's widest dot products: of AVX-512 with VNNI, else AVX2's.
pub(crate) fn vectorize_ints<K: IntKernel>(isa: Isa, kernel: K) {
    match isa {
        // SAFETY: `CpuBackend::new` refuses an instruction set that the machine lacks, and VNNI was looked for.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 if x86::ints::has_vnni() => unsafe { x86::ints::with_vnni(kernel) },
        // SAFETY: as above; whatever has AVX-512 has AVX2.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 | Isa::Avx2 => unsafe { x86::ints::with_avx2(kernel) },
        _ => kernel.run::<Lanes<8>>(),
    }
}

/// Four bytes a lane.
fn each<const L: usize>(sum: [i32; L], codes: [i32; L], x: [i32; L], code: impl Fn(u8) -> i32) -> [i32; L] {
    std::array::from_fn(|lane| {
        let products = codes[lane].to_le_bytes().into_iter().zip(x[lane].to_le_bytes());
        sum[lane] + products.map(|(byte, x)| code(byte) * i32::from(x as i8)).sum::<i32>()
    })
}

impl<const L: usize> Ints for Lanes<L> {
    type Integers = [i32; L];
    const UNSIGNED: bool = false;

    #[inline(always)]
    fn integer(value: i32) -> [i32; L] {
        [value; L]
    }
    #[inline(always)]
    unsafe fn load_integers(from: *const u8) -> [i32; L] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i32; L]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn broadcast(from: *const u8) -> [i32; L] {
        // SAFETY: the caller's promise.
        [unsafe { from.cast::<i32>().read_unaligned() }; L]
    }
    #[inline(always)]
    fn low(bytes: [i32; L]) -> [i32; L] {
        bytes.map(|four| four & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn high(bytes: [i32; L]) -> [i32; L] {
        bytes.map(|four| four >> 4 & 0x0f0f_0f0f)
    }
    #[inline(always)]
    fn dot(sum: [i32; L], codes: [i32; L], x: [i32; L]) -> [i32; L] {
        each(sum, codes, x, i32::from)
    }
    #[inline(always)]
    fn dot_bytes(sum: [i32; L], codes: [i32; L], x: [i32; L]) -> [i32; L] {
        each(sum, codes, x, |code| i32::from(code) - 128)
    }
    #[inline(always)]
    fn number(integers: [i32; L]) -> Self {
        Self::of(integers.map(|integer| integer as f32))
    }
    #[inline(always)]
    fn nearest(numbers: Self) -> [i32; L] {
        numbers.round().lanes().map(|number| number as i32)
    }
    #[inline(always)]
    fn plus(a: [i32; L], b: [i32; L]) -> [i32; L] {
        std::array::from_fn(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    fn minus(a: [i32; L], b: [i32; L]) -> [i32; L] {
        std::array::from_fn(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    fn shift_left<const BITS: u32>(integers: [i32; L]) -> [i32; L] {
        integers.map(|integer| integer << BITS)
    }
    #[inline(always)]
    fn shift_right<const BITS: u32>(integers: [i32; L]) -> [i32; L] {
        integers.map(|integer| integer >> BITS)
    }
    #[inline(always)]
    fn total(integers: [i32; L]) -> i32 {
        integers.iter().sum()
    }
    #[inline(always)]
    unsafe fn store_bytes(integers: [i32; L], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u8; L]>().write_unaligned(integers.map(|integer| integer as u8)) };
    }
}
