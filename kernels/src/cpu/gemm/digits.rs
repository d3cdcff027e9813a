//! Rows of products of integers: each number becomes an integer, in two digits of 8 bits or as instructions take it
//! ([`Ints::store_chunk`]), and 128 numbers share a scale.
//!
//! With codes of four bits an integer has 12 bits, with codes of eight bits 15, beside the largest of its span. One
//! digit, 8 bits, moved SmolLM2's log-probabilities by 0.3 and its perplexity by 1 %, which the bf16 that inputs may be
//! rounded to does not.
//!
//! ```text
//! row block   [chunk][row] of two bytes for each k; then what integer sums begin with and the sums of the integers,
//!             [block][row] each; then the scales, [span][row]
//! ```
//! A chunk is what one tile takes, a block shares a scale of the codes and gives one integer sum, and a span shares a
//! scale of the row. Spans are whole: behind a row's end are zeros.

use super::integers::{Arithmetic, Integers};
use super::product::Product;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::ints::{IntKernel, Ints, second_bits, vectorize_ints};
use crate::ops::CodeBits;
use std::ops::Range;

/// Digits of an integer.
pub(super) const DIGITS: usize = 2;
/// k of a span, and of a block at most.
pub(super) const SPAN: usize = 128;
/// Below this a span's largest number counts as zero: its reciprocal would be no number.
const SMALLEST: f32 = 1e-30;

/// How the rows of a product lie.
#[derive(Clone, Copy)]
pub(super) struct Digits {
    /// k of a chunk.
    pub(super) chunk: usize,
    /// Chunks of a block, and blocks of a span.
    pub(super) block_chunks: usize,
    pub(super) span_blocks: usize,
    /// Chunks of a row, blocks that hold some of it, and spans.
    pub(super) chunks: usize,
    pub(super) blocks: usize,
    pub(super) spans: usize,
    /// Rows of a row block.
    pub(super) rows: usize,
    /// Of a code that is multiplied.
    bits: usize,
    /// What is taken from every code, and the unit of the codes' scales.
    base: i32,
    unit: f32,
}

/// A packed row block.
#[derive(Clone, Copy)]
pub(super) struct RowBlock {
    pub(super) digits: *const u8,
    /// `[block][row]`.
    pub(super) begins: *const i32,
    pub(super) sums: *const f32,
    /// `[span][row]`.
    pub(super) scales: *const f32,
}

impl Digits {
    /// Absent where the codes are not multiplied by rounded rows.
    pub(super) fn new(codes: &Integers, k: usize, rows: usize) -> Option<Self> {
        let Arithmetic::Rounded { block, unit, .. } = codes.arithmetic else { return None };
        // A line of a tile is both digits beside codes of four bits, and one beside codes of eight.
        let bits = codes.kept.multiplied();
        let chunk = block.min(if bits == CodeBits::Four { 32 } else { 64 });
        Some(Self {
            chunk,
            block_chunks: block / chunk,
            span_blocks: SPAN / block,
            chunks: k.div_ceil(chunk),
            blocks: k.div_ceil(block),
            spans: k.div_ceil(SPAN),
            rows,
            bits: if bits == CodeBits::Four { 4 } else { 8 },
            base: i32::from(bits.middle()),
            unit,
        })
    }

    /// The chunks of a block that hold some of a row.
    #[inline(always)]
    pub(super) fn chunks_of(self, block: usize) -> Range<usize> {
        block * self.block_chunks..self.chunks.min((block + 1) * self.block_chunks)
    }

    /// The blocks of a span that hold some of a row.
    #[inline(always)]
    pub(super) fn blocks_of(self, span: usize) -> Range<usize> {
        span * self.span_blocks..self.blocks.min((span + 1) * self.span_blocks)
    }

    fn digit_bytes(self) -> usize {
        self.spans * SPAN * self.rows * DIGITS
    }

    /// Bytes of a row block.
    pub(super) fn bytes(self) -> usize {
        (self.digit_bytes() + (2 * self.span_blocks + 1) * self.spans * self.rows * 4).next_multiple_of(64)
    }

    /// A row block.
    ///
    /// # Safety
    /// So many row blocks are in `packed`.
    pub(super) unsafe fn row_block(self, packed: Shared<u8>, index: usize) -> RowBlock {
        // SAFETY: the caller's promise; the parts lie one after the other.
        unsafe {
            let digits = packed.at(index * self.bytes());
            let entries = self.spans * self.span_blocks * self.rows;
            let part = |part: usize| digits.add(self.digit_bytes() + part * entries * 4).cast_const();
            RowBlock { digits, begins: part(0).cast(), sums: part(1).cast(), scales: part(2).cast() }
        }
    }

    /// Rounds the rows of a row block.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(self, isa: Isa, product: &Product<'_>, index: usize, packed: Shared<u8>) {
        // SAFETY: the caller's promise.
        let to = unsafe { self.row_block(packed, index) };
        for row in 0..self.rows {
            let place = index * self.rows + row;
            // SAFETY: the row exists, and is only read (the caller's promise).
            let x = if place < product.rows { unsafe { product.row(place) } } else { &[] };
            vectorize_ints(isa, Round { digits: self, x, row, to });
        }
    }
}

/// Rounds one row.
struct Round<'a> {
    digits: Digits,
    x: &'a [f32],
    row: usize,
    to: RowBlock,
}

impl IntKernel for Round<'_> {
    #[inline(always)]
    fn run<S: Ints>(self) {
        match (self.digits.bits, self.digits.chunk) {
            (4, 32) => self.row::<S, 4, 32>(),
            (4, _) => self.row::<S, 4, 16>(),
            (_, 64) => self.row::<S, 8, 64>(),
            (_, 32) => self.row::<S, 8, 32>(),
            (_, _) => self.row::<S, 8, 16>(),
        }
    }
}

impl Round<'_> {
    #[inline(always)]
    fn row<S: Ints, const BITS: usize, const CHUNK: usize>(&self) {
        for span in 0..self.digits.spans {
            let rest = self.x.get(span * SPAN..).unwrap_or_default();
            if let Some(x) = rest.first_chunk() {
                self.span::<S, BITS, CHUNK>(x, span);
            } else {
                let mut padded = [0.0; SPAN];
                padded[..rest.len()].copy_from_slice(rest);
                self.span::<S, BITS, CHUNK>(&padded, span);
            }
        }
    }

    /// Rounds the numbers of a span.
    #[inline(always)]
    fn span<S: Ints, const BITS: usize, const CHUNK: usize>(&self, x: &[f32; SPAN], span: usize) {
        let Digits { block_chunks, span_blocks, rows, base, unit, .. } = self.digits;
        let (factor, scale) = scale::<S, BITS>(x);
        // SAFETY: there is a scale for each row of each span.
        unsafe { *self.to.scales.cast_mut().add(span * rows + self.row) = scale * unit };
        for block in span * span_blocks..(span + 1) * span_blocks {
            let mut total = S::integer(0);
            for chunk in block * block_chunks..(block + 1) * block_chunks {
                let sum = self.chunk::<S, BITS, CHUNK>(&x[chunk * CHUNK % SPAN..][..CHUNK], factor, chunk);
                total = S::plus(total, sum);
            }
            let (total, entry) = (S::total(total), block * rows + self.row);
            // SAFETY: there is an entry for each row of each block.
            unsafe {
                *self.to.begins.cast_mut().add(entry) = -base * total;
                *self.to.sums.cast_mut().add(entry) = total as f32;
            }
        }
    }

    /// Rounds the numbers of a chunk; the sums of the integers.
    #[inline(always)]
    fn chunk<S: Ints, const BITS: usize, const CHUNK: usize>(
        &self,
        x: &[f32],
        factor: f32,
        chunk: usize,
    ) -> S::Integers {
        let mut total = S::integer(0);
        for at in (0..CHUNK).step_by(S::N) {
            // SAFETY: the chunk is whole, and the row block has room for its digits.
            unsafe {
                let x = S::load(x.as_ptr().add(at)).mul(S::splat(factor));
                // What is no finite number has no factor, and times zero it may be no number: zero then.
                let integers = if factor == 0.0 { S::integer(0) } else { S::nearest(x) };
                total = S::plus(total, integers);
                let to = self.to.digits.cast_mut().add((chunk * self.digits.rows + self.row) * DIGITS * CHUNK);
                S::store_chunk::<BITS, CHUNK>(integers, to, at);
            }
        }
        total
    }
}

/// What numbers are multiplied by to become integers, and what these stand for: zero of nothing but zeros; of numbers
/// that are not finite, zero and no number, which makes whole sums no number.
#[inline(always)]
fn scale<S: Ints, const BITS: usize>(x: &[f32; SPAN]) -> (f32, f32) {
    let shift = second_bits(BITS);
    let most = ((127 << shift) + (1 << (shift - 1)) - 1) as f32;
    let (mut largest, mut not_finite) = (S::splat(0.0), S::splat(0.0));
    for at in (0..SPAN).step_by(S::N) {
        // SAFETY: a span is whole vectors.
        let x = unsafe { S::load(x.as_ptr().add(at)) };
        largest = x.max(S::splat(0.0).sub(x)).max(largest);
        // Zero, or NaN of what is no finite number.
        not_finite = not_finite.add(x.sub(x));
    }
    let size = largest.largest();
    match not_finite.sum() != 0.0 {
        true => (0.0, f32::NAN),
        false if size < SMALLEST => (0.0, 0.0),
        false => (most / size, size / most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The integers of a row of one span in chunks of 32: what each is times a code of one.
    struct Read<'a> {
        bits: usize,
        digits: *const u8,
        integers: &'a mut Vec<i32>,
    }

    impl IntKernel for Read<'_> {
        fn run<S: Ints>(self) {
            match self.bits {
                4 => self.all::<S, 4>(),
                _ => self.all::<S, 8>(),
            }
        }
    }

    impl Read<'_> {
        fn all<S: Ints, const BITS: usize>(self) {
            for at in 0..SPAN {
                let (step, mut codes) = (32 / BITS, [0_u8; 64]);
                let (byte, half) = (at % 4, at % step / 4);
                codes[..S::N * 4].chunks_mut(4).for_each(|lane| lane[byte] = 1 << (4 * half));
                // SAFETY: the codes are a vector's, and the chunk is one of four.
                let sums = unsafe {
                    let (codes, x) = (S::load_codes::<BITS>(codes.as_ptr()), self.digits.add(at / 32 * 64));
                    S::multiply::<BITS, 32>(S::sums(0), codes, x, at % 32 / step * step)
                };
                let total = S::total(S::whole::<BITS>(sums));
                assert_eq!(total % S::N as i32, 0, "lanes differ");
                self.integers.push(total / S::N as i32);
            }
        }
    }

    /// The integers, begins, sums and scale of a span of one row, in two blocks of two chunks.
    fn rounded(isa: Isa, bits: usize, x: &[f32]) -> (Vec<i32>, [i32; 2], [f32; 2], f32) {
        let (block_chunks, span_blocks) = (2, 2);
        let (chunks, blocks, spans) = (4, 2, 1);
        let digits =
            Digits { chunk: 32, block_chunks, span_blocks, chunks, blocks, spans, rows: 1, bits, base: 8, unit: 2.0 };
        let mut room = vec![0_u64; digits.bytes() / 8];
        // SAFETY: the room is that of a row block.
        let to = unsafe { digits.row_block(Shared::new(room.as_mut_ptr().cast()), 0) };
        vectorize_ints(isa, Round { digits, x, row: 0, to });
        let mut integers = Vec::new();
        vectorize_ints(isa, Read { bits, digits: to.digits, integers: &mut integers });
        // SAFETY: there are two blocks and one span.
        unsafe { (integers, *to.begins.cast(), *to.sums.cast(), *to.scales) }
    }

    #[test]
    fn numbers_become_the_nearest_integers() {
        let x: Vec<f32> = (0..126).map(|at| (at as f32 - 41.3) * 0.37).collect();
        let largest = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        for isa in Isa::available() {
            for (bits, most) in [(4, 2039.0), (8, 16_319.0)] {
                let (integers, begins, sums, scale) = rounded(isa, bits, &x);
                let totals = [&integers[..64], &integers[64..]].map(|block| block.iter().sum::<i32>());
                assert_eq!((begins, sums), (totals.map(|total| -8 * total), totals.map(|total| total as f32)));
                assert_eq!(scale, largest / most * 2.0, "{isa:?}");
                for (x, integer) in x.iter().zip(&integers) {
                    assert!((*integer as f32 - x / largest * most).abs() < 0.501, "{isa:?} {x}: {integer}");
                }
                assert_eq!(integers[126..], [0, 0], "{isa:?}: behind the end of a row");
            }
        }
    }

    #[test]
    fn what_has_no_scale_is_zero_or_no_number() {
        for isa in Isa::available() {
            for x in [[0.0; SPAN], [1e-38; SPAN]] {
                assert_eq!(rounded(isa, 4, &x), (vec![0; SPAN], [0; 2], [0.0; 2], 0.0), "{isa:?}");
            }
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; SPAN];
                x[9] = bad;
                let (integers, begins, _, scale) = rounded(isa, 8, &x);
                assert!(scale.is_nan() && begins == [0; 2] && integers == [0; SPAN], "{isa:?} {bad}");
            }
        }
    }
}
