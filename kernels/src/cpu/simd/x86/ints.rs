//! Dot products of bytes with AVX2, and with AVX-512 VNNI.
//!
//! SAFETY of every block below: as in [`super`]; VNNI is on where [`with_vnni`] was entered, which asks for it.

use super::{Avx2, Avx512};
use crate::cpu::simd::ints::{IntKernel, Ints};
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
    const UNSIGNED: bool = false;

    #[inline(always)]
    fn integer(value: i32) -> __m256i {
        block!(_mm256_set1_epi32(value))
    }
    #[inline(always)]
    unsafe fn load_integers(from: *const u8) -> __m256i {
        block!(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn broadcast(from: *const u8) -> __m256i {
        block!(_mm256_set1_epi32(from.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    fn low(bytes: __m256i) -> __m256i {
        block!(_mm256_and_si256(bytes, _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    fn high(bytes: __m256i) -> __m256i {
        block!(_mm256_and_si256(_mm256_srli_epi16::<4>(bytes), _mm256_set1_epi8(15)))
    }
    #[inline(always)]
    fn dot(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        block!({
            let pairs = _mm256_maddubs_epi16(codes, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }
    #[inline(always)]
    fn dot_bytes(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // With the sign of the one moved to the other, no sum of two products leaves 16 bits.
        block!({
            let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
            Self::dot(sum, _mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
        })
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
    #[inline(always)]
    unsafe fn store_bytes(integers: __m256i, to: *mut u8) {
        block!({
            // Each 128 bits hold their four bytes; no integer is beyond a byte, so nothing saturates.
            let words = _mm256_packs_epi32(integers, integers);
            let bytes = _mm256_packs_epi16(words, words);
            let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
            to.cast::<[i32; 2]>().write_unaligned(halves.map(|half| _mm_cvtsi128_si32(half)));
        });
    }
}

impl Ints for Avx512 {
    type Integers = __m512i;
    const UNSIGNED: bool = true;

    #[inline(always)]
    fn integer(value: i32) -> __m512i {
        block!(_mm512_set1_epi32(value))
    }
    #[inline(always)]
    unsafe fn load_integers(from: *const u8) -> __m512i {
        block!(_mm512_loadu_si512(from.cast()))
    }
    #[inline(always)]
    unsafe fn broadcast(from: *const u8) -> __m512i {
        block!(_mm512_set1_epi32(from.cast::<i32>().read_unaligned()))
    }
    #[inline(always)]
    fn low(bytes: __m512i) -> __m512i {
        block!(_mm512_and_si512(bytes, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn high(bytes: __m512i) -> __m512i {
        block!(_mm512_and_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn dot(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        block!(_mm512_dpbusd_epi32(sum, codes, x))
    }
    #[inline(always)]
    fn dot_bytes(sum: __m512i, codes: __m512i, x: __m512i) -> __m512i {
        Self::dot(sum, codes, x)
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
    #[inline(always)]
    unsafe fn store_bytes(integers: __m512i, to: *mut u8) {
        block!(_mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(integers)));
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
