//! AVX2 and AVX-512 vectors.
//!
//! SAFETY of every block below: the intrinsics need only their instruction set, which is on in the functions at the end
//! of this file, into which all of this is inlined, and which are entered only after detection (see [`super::Simd`]);
//! pointers are the caller's promise.

pub(crate) mod ints;

use super::{Kernel, Simd};
use std::arch::x86_64::*;

/// Eight lanes of AVX2.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

/// Sixteen lanes of AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

const ROUND: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Wraps intrinsics in their block; the reason is the same for all and stands at the head of the file.
macro_rules! vector {
    ($e:expr) => {{
        // SAFETY: see the head of the file.
        Self(unsafe { $e })
    }};
}

impl Simd for Avx2 {
    const N: usize = 8;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        vector!(_mm256_set1_ps(value))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        vector!(_mm256_add_ps(self.0, other.0))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        vector!(_mm256_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        vector!(_mm256_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        vector!(_mm256_div_ps(self.0, other.0))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        vector!(_mm256_fmadd_ps(self.0, factor.0, addend.0))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        vector!(_mm256_max_ps(self.0, other.0))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        vector!(_mm256_min_ps(self.0, other.0))
    }
    #[inline(always)]
    fn round(self) -> Self {
        vector!(_mm256_round_ps::<ROUND>(self.0))
    }
    #[inline(always)]
    fn exp2_int(self) -> Self {
        vector!({
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        })
    }
    #[inline(always)]
    fn zero_where_less(self, probe: Self, limit: Self) -> Self {
        vector!(_mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(probe.0, limit.0), self.0))
    }
    #[inline(always)]
    fn replace_where_less(self, probe: Self, limit: Self, other: Self) -> Self {
        vector!(_mm256_blendv_ps(self.0, other.0, _mm256_cmp_ps::<_CMP_LT_OQ>(probe.0, limit.0)))
    }
    #[inline(always)]
    fn round_to_bf16(self) -> Self {
        vector!({
            let bits = _mm256_castps_si256(self.0);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(0xffff_0000_u32 as i32)))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; 8];
        // SAFETY: see the head of the file; the array has eight elements.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), self.0) };
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = [0.0; 8];
        // SAFETY: see the head of the file; the array has eight elements.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), self.0) };
        lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn prefetch(line: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[inline(always)]
    fn prefetch_near(line: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[inline(always)]
    fn prefetch_write(line: *const u8) {
        fetch_to_write(line);
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        vector!(_mm256_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the head of the file.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: see the head of the file.
        unsafe {
            let halves = _mm256_srli_epi32::<16>(_mm256_castps_si256(self.0));
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            _mm_storeu_si128(to.cast(), packed);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        vector!(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        vector!(_mm256_cvtph_ps(_mm_loadu_si128(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u16) -> (Self, Self) {
        // SAFETY: see the head of the file.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            let first = _mm256_slli_epi32::<16>(pairs);
            let second = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (Self(_mm256_castsi256_ps(first)), Self(_mm256_castsi256_ps(second)))
        }
    }
    #[inline(always)]
    unsafe fn load_e4m3_pairs(from: *const u8) -> (Self, Self) {
        // SAFETY: see the head of the file.
        unsafe {
            let pairs = _mm_loadu_si128(from.cast());
            // In each 16 bits the first code is the low one. The sign fills the bit below itself, which the mask
            // clears.
            let mask = _mm_set1_epi16(0xbf80_u16 as i16);
            let first = _mm_and_si128(_mm_srai_epi16::<1>(_mm_slli_epi16::<8>(pairs)), mask);
            let second = _mm_and_si128(_mm_srai_epi16::<1>(pairs), mask);
            (Self(_mm256_cvtph_ps(first)), Self(_mm256_cvtph_ps(second)))
        }
    }
    #[inline(always)]
    unsafe fn load_bits(from: *const u32, shift: u32, mask: u32) -> Self {
        vector!({
            let words = _mm256_srl_epi32(_mm256_loadu_si256(from.cast()), _mm_cvtsi32_si128(shift as i32));
            _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(mask as i32)))
        })
    }
}

impl Simd for Avx512 {
    const N: usize = 16;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        vector!(_mm512_set1_ps(value))
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        vector!(_mm512_add_ps(self.0, other.0))
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        vector!(_mm512_sub_ps(self.0, other.0))
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        vector!(_mm512_mul_ps(self.0, other.0))
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        vector!(_mm512_div_ps(self.0, other.0))
    }
    #[inline(always)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        vector!(_mm512_fmadd_ps(self.0, factor.0, addend.0))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        vector!(_mm512_max_ps(self.0, other.0))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        vector!(_mm512_min_ps(self.0, other.0))
    }
    #[inline(always)]
    fn round(self) -> Self {
        vector!(_mm512_roundscale_ps::<ROUND>(self.0))
    }
    #[inline(always)]
    fn exp2_int(self) -> Self {
        vector!({
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        })
    }
    #[inline(always)]
    fn mul_exp2(self, n: Self) -> Self {
        vector!(_mm512_scalef_ps(self.0, n.0))
    }
    #[inline(always)]
    fn zero_where_less(self, probe: Self, limit: Self) -> Self {
        vector!(_mm512_maskz_mov_ps(!_mm512_cmp_ps_mask::<_CMP_LT_OQ>(probe.0, limit.0), self.0))
    }
    #[inline(always)]
    fn replace_where_less(self, probe: Self, limit: Self, other: Self) -> Self {
        vector!(_mm512_mask_mov_ps(self.0, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(probe.0, limit.0), other.0))
    }
    #[inline(always)]
    fn round_to_bf16(self) -> Self {
        vector!({
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            _mm512_castsi512_ps(_mm512_and_si512(rounded, _mm512_set1_epi32(0xffff_0000_u32 as i32)))
        })
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see the head of the file.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: see the head of the file.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    fn prefetch(line: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[inline(always)]
    fn prefetch_near(line: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[inline(always)]
    fn prefetch_write(line: *const u8) {
        fetch_to_write(line);
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        vector!(_mm512_loadu_ps(from))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: see the head of the file.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut u16) {
        // SAFETY: see the head of the file.
        unsafe {
            let halves = _mm512_srli_epi32::<16>(_mm512_castps_si512(self.0));
            _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(halves));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        vector!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))))
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        vector!(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())))
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u16) -> (Self, Self) {
        // SAFETY: see the head of the file.
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let first = _mm512_slli_epi32::<16>(pairs);
            let second = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (Self(_mm512_castsi512_ps(first)), Self(_mm512_castsi512_ps(second)))
        }
    }
    #[inline(always)]
    unsafe fn load_some(from: *const f32, count: usize) -> Self {
        vector!(_mm512_maskz_loadu_ps((1_u16 << count) - 1, from))
    }
    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize) {
        // SAFETY: see the head of the file; masked lanes are not touched.
        unsafe { _mm512_mask_storeu_ps(to, (1_u16 << count) - 1, self.0) }
    }
    #[inline(always)]
    unsafe fn load_e4m3_pairs(from: *const u8) -> (Self, Self) {
        // SAFETY: see the head of the file.
        unsafe {
            let pairs = _mm256_loadu_si256(from.cast());
            // As for AVX2.
            let mask = _mm256_set1_epi16(0xbf80_u16 as i16);
            let first = _mm256_and_si256(_mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(pairs)), mask);
            let second = _mm256_and_si256(_mm256_srai_epi16::<1>(pairs), mask);
            (Self(_mm512_cvtph_ps(first)), Self(_mm512_cvtph_ps(second)))
        }
    }
    #[inline(always)]
    unsafe fn load_bits(from: *const u32, shift: u32, mask: u32) -> Self {
        vector!({
            let words = _mm512_srl_epi32(_mm512_loadu_si512(from.cast()), _mm_cvtsi32_si128(shift as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(mask as i32)))
        })
    }
}

/// The instruction is spelled out: `_mm_prefetch` fetches to read where the compiler was not told of it.
#[inline(always)]
fn fetch_to_write(line: *const u8) {
    // SAFETY: a prefetch never faults, and processors without this one do nothing.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, readonly, preserves_flags)) };
}

/// Runs a kernel with AVX2 vectors.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn with_avx2<K: Kernel>(kernel: K) {
    kernel.run::<Avx2>();
}

/// Runs a kernel with AVX-512 vectors.
///
/// # Safety
/// The processor has AVX-512 F, BW, VL and DQ beside AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn with_avx512<K: Kernel>(kernel: K) {
    kernel.run::<Avx512>();
}
