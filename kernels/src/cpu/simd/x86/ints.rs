//! Products of integers and codes with AVX2, and with AVX-512 VNNI.
//!
//! ```text
//! VNNI   both digits of an integer, a byte each: a dot product of four bytes a lane for each digit
//!        chunk: [digit][CHUNK]
//! AVX2   the integer in 16 bits: products of 16 bits, of which two a lane are summed. No instruction sums four of
//!        bytes without rounding to 16 bits first, so digits would take more of them.
//!        chunk, 4 bits: eight at a time, 0 2 4 6 1 3 5 7; 8 bits: four at a time, 0 2 1 3. So the codes of a pair are
//!        half a byte, or a byte, of both 16-bit halves of a lane.
//! ```
//!
//! SAFETY of every block below: as in [`super`]; VNNI is on where [`with_vnni`] was entered, which asks for it.

use super::{Avx2, Avx512};
use crate::cpu::simd::ints::{IntKernel, Ints, digits, whole_digits};
use std::arch::x86_64::*;

/// The reason is the same for all and stands at the head of the file.
macro_rules! block {
    ($e:expr) => {{
        // SAFETY: see the head of the file.
        unsafe { $e }
    }};
}

impl Ints for Avx2 {
    type Integers = __m256i;
    /// The codes of each pair of k in 16 bits each; of eight bits there are two pairs.
    type Codes = [__m256i; 4];
    type Sums = __m256i;

    #[inline(always)]
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> [__m256i; 4] {
        block!({
            let codes = _mm256_loadu_si256(from.cast());
            let low = |codes| _mm256_and_si256(codes, _mm256_set1_epi16(15));
            if BITS == 4 {
                let [second, third] = [_mm256_srli_epi16::<4>(codes), _mm256_srli_epi16::<8>(codes)];
                [low(codes), low(second), low(third), _mm256_srli_epi16::<12>(codes)]
            } else {
                let first = _mm256_and_si256(codes, _mm256_set1_epi16(255));
                [first, _mm256_srli_epi16::<8>(codes), first, first]
            }
        })
    }
    #[inline(always)]
    unsafe fn load_levels(from: *const u8, levels: &[u8; 16]) -> [[__m256i; 4]; 2] {
        block!({
            let levels = _mm256_broadcastsi128_si256(_mm_loadu_si128(levels.as_ptr().cast()));
            let (bytes, halves) = (_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(15));
            let codes = |bytes| {
                let codes = _mm256_shuffle_epi8(levels, _mm256_and_si256(bytes, halves));
                let first = _mm256_and_si256(codes, _mm256_set1_epi16(255));
                [first, _mm256_srli_epi16::<8>(codes), first, first]
            };
            [codes(bytes), codes(_mm256_srli_epi16::<4>(bytes))]
        })
    }
    #[inline(always)]
    unsafe fn store_codes(codes: [__m256i; 4], to: *mut u8) {
        block!(_mm256_storeu_si256(to.cast(), _mm256_or_si256(codes[0], _mm256_slli_epi16::<8>(codes[1]))));
    }
    #[inline(always)]
    fn sums(begin: i32) -> __m256i {
        Self::integer(begin)
    }
    #[inline(always)]
    unsafe fn multiply<const BITS: usize, const CHUNK: usize>(
        mut sums: __m256i,
        codes: [__m256i; 4],
        x: *const u8,
        k: usize,
    ) -> __m256i {
        for (pair, codes) in codes.into_iter().take(16 / BITS).enumerate() {
            sums = block!({
                let x = x.add(2 * k + 4 * pair).cast::<i32>().read_unaligned();
                _mm256_add_epi32(sums, _mm256_madd_epi16(codes, _mm256_set1_epi32(x)))
            });
        }
        sums
    }
    #[inline(always)]
    fn whole<const BITS: usize>(sums: __m256i) -> __m256i {
        sums
    }
    #[inline(always)]
    unsafe fn store_chunk<const BITS: usize, const CHUNK: usize>(integers: __m256i, to: *mut u8, k: usize) {
        block!({
            // The low halves of 0, 2, 1 and 3 of each 128 bits.
            let order = _mm_set1_epi64x(0x0d0c_0504_0908_0100);
            let first = _mm_shuffle_epi8(_mm256_castsi256_si128(integers), order);
            let second = _mm_shuffle_epi8(_mm256_extracti128_si256::<1>(integers), order);
            let words = match BITS {
                4 => _mm_unpacklo_epi32(first, second),
                _ => _mm_unpacklo_epi64(first, second),
            };
            _mm_storeu_si128(to.add(2 * k).cast(), words);
        });
    }
    #[inline(always)]
    fn integer(value: i32) -> __m256i {
        block!(_mm256_set1_epi32(value))
    }
    #[inline(always)]
    unsafe fn load_integers(from: *const u8) -> __m256i {
        block!(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    fn number(integers: __m256i) -> Self {
        Self(block!(_mm256_cvtepi32_ps(integers)))
    }
    #[inline(always)]
    fn nearest(numbers: Self) -> __m256i {
        block!(_mm256_cvtps_epi32(numbers.0))
    }
    #[inline(always)]
    fn plus(a: __m256i, b: __m256i) -> __m256i {
        block!(_mm256_add_epi32(a, b))
    }
    #[inline(always)]
    fn minus(a: __m256i, b: __m256i) -> __m256i {
        block!(_mm256_sub_epi32(a, b))
    }
    #[inline(always)]
    fn shift_left<const BITS: u32>(integers: __m256i) -> __m256i {
        block!(_mm256_sll_epi32(integers, _mm_cvtsi32_si128(BITS as i32)))
    }
    #[inline(always)]
    fn shift_right<const BITS: u32>(integers: __m256i) -> __m256i {
        block!(_mm256_sra_epi32(integers, _mm_cvtsi32_si128(BITS as i32)))
    }
    #[inline(always)]
    fn total(integers: __m256i) -> i32 {
        block!({
            let halves = _mm_add_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256::<1>(integers));
            let pairs = _mm_hadd_epi32(halves, halves);
            _mm_cvtsi128_si32(_mm_hadd_epi32(pairs, pairs))
        })
    }
}

impl Ints for Avx512 {
    type Integers = __m512i;
    /// Those of four bits in a byte each, the first four of a lane and the last four; of eight bits all are the first.
    type Codes = [__m512i; 2];
    type Sums = [__m512i; 2];

    #[inline(always)]
    unsafe fn load_codes<const BITS: usize>(from: *const u8) -> [__m512i; 2] {
        block!({
            let codes = _mm512_loadu_si512(from.cast());
            let low = |codes| _mm512_and_si512(codes, _mm512_set1_epi8(15));
            if BITS == 4 { [low(codes), low(_mm512_srli_epi16::<4>(codes))] } else { [codes; 2] }
        })
    }
    #[inline(always)]
    unsafe fn load_levels(from: *const u8, levels: &[u8; 16]) -> [[__m512i; 2]; 2] {
        block!({
            let levels = _mm512_broadcast_i32x4(_mm_loadu_si128(levels.as_ptr().cast()));
            let bytes = _mm512_loadu_si512(from.cast());
            let low = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(15));
            let level = |halves| [_mm512_shuffle_epi8(levels, low(halves)); 2];
            [level(bytes), level(_mm512_srli_epi16::<4>(bytes))]
        })
    }
    #[inline(always)]
    unsafe fn store_codes(codes: [__m512i; 2], to: *mut u8) {
        block!(_mm512_storeu_si512(to.cast(), codes[0]));
    }
    #[inline(always)]
    fn sums(begin: i32) -> [__m512i; 2] {
        [Self::integer(0), Self::integer(begin)]
    }
    #[inline(always)]
    unsafe fn multiply<const BITS: usize, const CHUNK: usize>(
        mut sums: [__m512i; 2],
        codes: [__m512i; 2],
        x: *const u8,
        k: usize,
    ) -> [__m512i; 2] {
        for (digit, sums) in sums.iter_mut().enumerate() {
            for (four, codes) in codes.into_iter().take(8 / BITS).enumerate() {
                *sums = block!({
                    let x = x.add(digit * CHUNK + k + 4 * four).cast::<i32>().read_unaligned();
                    _mm512_dpbusd_epi32(*sums, codes, _mm512_set1_epi32(x))
                });
            }
        }
        sums
    }
    #[inline(always)]
    fn whole<const BITS: usize>(sums: [__m512i; 2]) -> __m512i {
        whole_digits::<Self, BITS>(sums)
    }
    #[inline(always)]
    unsafe fn store_chunk<const BITS: usize, const CHUNK: usize>(integers: __m512i, to: *mut u8, k: usize) {
        for (digit, integers) in digits::<Self, BITS>(integers).into_iter().enumerate() {
            block!(_mm_storeu_si128(to.add(digit * CHUNK + k).cast(), _mm512_cvtepi32_epi8(integers)));
        }
    }
    #[inline(always)]
    fn integer(value: i32) -> __m512i {
        block!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    unsafe fn load_integers(from: *const u8) -> __m512i {
        block!(_mm512_loadu_si512(from.cast()))
    }
    #[inline(always)]
    fn number(integers: __m512i) -> Self {
        Self(block!(_mm512_cvtepi32_ps(integers)))
    }
    #[inline(always)]
    fn nearest(numbers: Self) -> __m512i {
        block!(_mm512_cvtps_epi32(numbers.0))
    }
    #[inline(always)]
    fn plus(a: __m512i, b: __m512i) -> __m512i {
        block!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn minus(a: __m512i, b: __m512i) -> __m512i {
        block!(_mm512_sub_epi32(a, b))
    }
    #[inline(always)]
    fn shift_left<const BITS: u32>(integers: __m512i) -> __m512i {
        block!(_mm512_slli_epi32::<BITS>(integers))
    }
    #[inline(always)]
    fn shift_right<const BITS: u32>(integers: __m512i) -> __m512i {
        block!(_mm512_srai_epi32::<BITS>(integers))
    }
    #[inline(always)]
    fn total(integers: __m512i) -> i32 {
        block!(_mm512_reduce_add_epi32(integers))
    }
}

/// Whether this machine's AVX-512 has dot products of bytes.
pub(crate) fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni")
}

/// Runs a kernel with AVX-512 vectors and VNNI.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL, DQ and VNNI beside AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(crate) unsafe fn with_vnni<K: IntKernel>(kernel: K) {
    kernel.run::<Avx512>();
}

/// Runs a kernel with AVX2 vectors.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn with_avx2<K: IntKernel>(kernel: K) {
    kernel.run::<Avx2>();
}
