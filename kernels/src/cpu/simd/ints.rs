//! Products of integers and codes, beside [`Simd`].

use super::Simd;
use super::portable::Lanes;
#[cfg(target_arch = "x86_64")]
use super::x86;
use crate::cpu::runtime::isa::Isa;

/// A vector of f32 lanes, whose instruction set has integers of 32 bits in as many lanes.
///
/// Integers of up to 15 bits and a sign are multiplied by codes of 4 or 8 bits without one. How the integers of a chunk
/// lie is the instruction set's own: [`Ints::store_chunk`] writes what [`Ints::multiply`] reads.
pub(crate) trait Ints: Simd {
    /// As many integers as lanes.
    type Integers: Copy;
    /// Codes of a vector's columns: of each lane 32 bits.
    type Codes: Copy;
    /// Sums of products on the way.
    type Sums: Copy;

    /// Codes of `BITS` bits: four bytes a lane. Of four bits, the low halves of its bytes come first.
    ///
    /// # Safety
    /// `4 * N` bytes are readable.
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> Self::Codes;
    /// Codes of eight bits that four bits name: those of the low halves of bytes, and those of the high ones.
    ///
    /// # Safety
    /// `4 * N` bytes are readable.
    unsafe fn load_levels(from: *const u8, levels: &[u8; 16]) -> [Self::Codes; 2];
    /// Writes codes of eight bits, as [`Ints::load_codes`] reads them.
    ///
    /// # Safety
    /// `4 * N` bytes are writable.
    unsafe fn store_codes(codes: Self::Codes, to: *mut u8);
    /// Sums that begin with this in every lane.
    fn sums(begin: i32) -> Self::Sums;
    /// Adds to each lane the products of its `32 / BITS` codes and of as many integers from `k` on.
    ///
    /// # Safety
    /// `x` is a chunk of [`Ints::store_chunk`], and `k + 32 / BITS` at most `CHUNK`.
    unsafe fn multiply<const BITS: usize, const CHUNK: usize>(
        sums: Self::Sums,
        codes: Self::Codes,
        x: *const u8,
        k: usize,
    ) -> Self::Sums;
    /// The sums as integers.
    fn whole<const BITS: usize>(sums: Self::Sums) -> Self::Integers;
    /// Puts integers into their places of a chunk, the first at `k`, for codes of `BITS` bits. A chunk has two bytes
    /// for each.
    ///
    /// # Safety
    /// `to` has room for a chunk, and `k + N` is at most `CHUNK`.
    unsafe fn store_chunk<const BITS: usize, const CHUNK: usize>(integers: Self::Integers, to: *mut u8, k: usize);

    fn integer(value: i32) -> Self::Integers;
    /// # Safety
    /// `4 * N` bytes are readable.
    unsafe fn load_integers(from: *const u8) -> Self::Integers;
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
}

/// Bits of the second of two digits in which integers are that are multiplied by codes of `code_bits` bits; the first
/// has eight. Sixteen times a code of four bits is a byte as well, which lets one tile product take both digits.
pub(crate) const fn second_bits(code_bits: usize) -> u32 {
    if code_bits == 4 { 4 } else { 7 }
}

/// Two digits of eight bits that are an integer.
#[inline(always)]
pub(crate) fn digits<S: Ints, const BITS: usize>(integers: S::Integers) -> [S::Integers; 2] {
    let half = S::integer(1 << (second_bits(BITS) - 1));
    let first = match BITS {
        4 => S::shift_right::<{ second_bits(4) }>(S::plus(integers, half)),
        _ => S::shift_right::<{ second_bits(8) }>(S::plus(integers, half)),
    };
    [first, S::minus(integers, whole_digits::<S, BITS>([first, S::integer(0)]))]
}

/// The integer that two digits are.
#[inline(always)]
pub(crate) fn whole_digits<S: Ints, const BITS: usize>([first, second]: [S::Integers; 2]) -> S::Integers {
    match BITS {
        4 => S::plus(S::shift_left::<{ second_bits(4) }>(first), second),
        _ => S::plus(S::shift_left::<{ second_bits(8) }>(first), second),
    }
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

/// Portable: both digits of an integer, a byte each, as with [`x86::ints`]' VNNI.
impl<const L: usize> Ints for Lanes<L> {
    type Integers = [i32; L];
    type Codes = [[u8; 4]; L];
    type Sums = [[i32; L]; 2];

    #[inline(always)]
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> [[u8; 4]; L] {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[u8; 4]; L]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_levels(from: *const u8, levels: &[u8; 16]) -> [[[u8; 4]; L]; 2] {
        // SAFETY: the caller's promise.
        let bytes = unsafe { Self::load_codes::<4>(from) };
        let level = |half: u8| levels[usize::from(half)];
        [bytes.map(|four| four.map(|byte| level(byte & 15))), bytes.map(|four| four.map(|byte| level(byte >> 4)))]
    }
    #[inline(always)]
    unsafe fn store_codes(codes: [[u8; 4]; L], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[[u8; 4]; L]>().write_unaligned(codes) };
    }
    #[inline(always)]
    fn sums(begin: i32) -> [[i32; L]; 2] {
        [[0; L], [begin; L]]
    }
    #[inline(always)]
    unsafe fn multiply<const BITS: usize, const CHUNK: usize>(
        mut sums: [[i32; L]; 2],
        codes: [[u8; 4]; L],
        x: *const u8,
        k: usize,
    ) -> [[i32; L]; 2] {
        for (digit, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            let four = |k: usize| unsafe { x.add(digit * CHUNK + k).cast::<[i8; 4]>().read() };
            for (sum, codes) in sums.iter_mut().zip(codes) {
                *sum += match BITS {
                    4 => dot(codes.map(|code| code & 15), four(k)) + dot(codes.map(|code| code >> 4), four(k + 4)),
                    _ => dot(codes, four(k)),
                };
            }
        }
        sums
    }
    #[inline(always)]
    fn whole<const BITS: usize>(sums: [[i32; L]; 2]) -> [i32; L] {
        whole_digits::<Self, BITS>(sums)
    }
    #[inline(always)]
    unsafe fn store_chunk<const BITS: usize, const CHUNK: usize>(integers: [i32; L], to: *mut u8, k: usize) {
        for (digit, integers) in digits::<Self, BITS>(integers).into_iter().enumerate() {
            let bytes = integers.map(|integer| integer as u8);
            // SAFETY: the caller's promise.
            unsafe { to.add(digit * CHUNK + k).cast::<[u8; L]>().write_unaligned(bytes) };
        }
    }
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
}

fn dot(codes: [u8; 4], x: [i8; 4]) -> i32 {
    codes.into_iter().zip(x).map(|(code, x)| i32::from(code) * i32::from(x)).sum()
}
