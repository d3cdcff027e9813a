//! Matrices of integer codes in panels of sixteen output columns, and the scales of their groups.
//!
//! ```text
//! 8 bits  panel: [k / 4][16][4]   code (n, k) at (n / 16, k / 4, n % 16, k % 4)
//! 4 bits  panel: [k / 8][16][4]   a byte holds two: the low half of (n / 16, k / 8, n % 16, k % 4) where k % 8 < 4,
//!                                 else the high half
//! scales  [panel][group][16]      and offsets alike
//! ```
//! So 64 bytes are four or eight k of sixteen columns, as a dot product of four bytes a lane takes them.
//!
//! Where inputs may be rounded, products are of integers ([`super::dots`], [`super::byte_tiles`]) and scales are kept
//! as f16; else codes become f32 in registers, exactly the numbers that they stand for ([`super::lanes`]).

use half::f16;

use crate::cpu::gemm::digits::SPAN;
use crate::cpu::gemm::pack::PANEL;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::runtime::pool::Pool;
use crate::decode::{IntegerFormat, IntegerRow, Offsets};
use crate::ops::{ALL_COLUMNS, CodeBits, HostMatrix};

/// How codes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Four,
    Eight,
    /// In four bits, each of which stands for one of these codes of eight.
    Levels(&'static [u8; 16]),
}

impl Kept {
    /// How a matrix' codes are kept; products are of integers where `rounds`.
    pub(super) fn of(format: IntegerFormat, rounds: bool) -> Self {
        match (format.levels, format.bits) {
            (Some(levels), _) if rounds && block(format).is_some() => Self::Levels(levels),
            (_, CodeBits::Four) => Self::Four,
            (_, CodeBits::Eight) => Self::Eight,
        }
    }

    /// Bits that they take.
    pub(super) fn stored(self) -> CodeBits {
        if self == Self::Eight { CodeBits::Eight } else { CodeBits::Four }
    }

    /// Bits of the codes that are multiplied.
    pub(super) fn multiplied(self) -> CodeBits {
        if self == Self::Four { CodeBits::Four } else { CodeBits::Eight }
    }
}

/// What belongs to the codes of a matrix.
pub(crate) struct Integers {
    pub(crate) kept: Kept,
    /// k that share a scale.
    pub(crate) group: usize,
    /// Groups of a row.
    groups: usize,
    pub(crate) arithmetic: Arithmetic,
}

/// What products are made of.
pub(crate) enum Arithmetic {
    /// Numbers: a weight is `(code - before) * scale - after`.
    Exact { scales: Vec<f32>, before: Vec<f32>, after: Vec<f32> },
    /// Integers: a weight is `(code - middle) * scale + add`, and scale and add are kept times `1 / unit`.
    Rounded {
        /// k of an integer sum: 16, 32, 64 or 128.
        block: usize,
        unit: f32,
        scales: Vec<u16>,
        /// Empty where there is nothing to add.
        adds: Vec<u16>,
    },
}

/// Scales and offsets as f32 while a matrix is packed.
struct Loose {
    scales: Vec<f32>,
    offsets: Vec<f32>,
}

/// k of an integer sum, at least.
pub(super) const LEAST_BLOCK: usize = 16;

/// k of an integer sum for such groups; absent where they cannot be summed so.
fn block(format: IntegerFormat) -> Option<usize> {
    match format.group {
        ALL_COLUMNS => Some(SPAN),
        group => Some(1 << group.trailing_zeros().min(SPAN.ilog2())).filter(|block| *block >= LEAST_BLOCK),
    }
}

impl Integers {
    /// Bytes that all but the codes take.
    pub(super) fn bytes(&self) -> usize {
        match &self.arithmetic {
            Arithmetic::Exact { scales, before, after } => {
                size_of_val(&**scales) + size_of_val(&**before) + size_of_val(&**after)
            }
            Arithmetic::Rounded { scales, adds, .. } => size_of_val(&**scales) + size_of_val(&**adds),
        }
    }

    /// Packs the codes of a matrix in pieces into zeroed panels of `panel_bytes`; products are of integers where
    /// `rounds`.
    pub(super) fn pack(
        pieces: &[HostMatrix<'_>],
        format: IntegerFormat,
        rounds: bool,
        codes: &mut [u8],
        pool: &mut Pool,
    ) -> Self {
        let (rows, k) = (pieces.iter().map(|piece| piece.rows).sum::<usize>(), pieces[0].cols);
        let panels = rows.div_ceil(PANEL);
        let group = if format.group == ALL_COLUMNS { k.next_multiple_of(32).max(32) } else { format.group };
        let groups = k.div_ceil(group).max(1);
        let mut loose = Loose {
            scales: vec![0.0; panels * groups * PANEL],
            offsets: vec![0.0; if format.offsets == Offsets::Middle { 0 } else { panels * groups * PANEL }],
        };
        let panel_bytes = codes.len() / panels.max(1);
        let kept = Kept::of(format, rounds);
        let levels = if let Kept::Levels(levels) = kept { Some(numbers_of(levels)) } else { None };
        let (codes, scales, offsets) = (
            Shared::new(codes.as_mut_ptr()),
            Shared::new(loose.scales.as_mut_ptr()),
            Shared::new(loose.offsets.as_mut_ptr()),
        );
        let has_offsets = format.offsets != Offsets::Middle;
        pool.run(panels, &|panel, _| {
            // SAFETY: each task writes its own panel of the codes, the scales and, where there are any, the offsets.
            let (codes, scales, offsets) = unsafe {
                let count = groups * PANEL;
                let offsets = if has_offsets { offsets.at(panel * count) } else { offsets.at(0) };
                (
                    std::slice::from_raw_parts_mut(codes.at(panel * panel_bytes), panel_bytes),
                    std::slice::from_raw_parts_mut(scales.at(panel * count), count),
                    std::slice::from_raw_parts_mut(offsets, if has_offsets { count } else { 0 }),
                )
            };
            let mut unpacked = IntegerRow::default();
            for (lane, row) in (panel * PANEL..rows.min((panel + 1) * PANEL)).enumerate() {
                let (piece, row) = piece_of(pieces, row);
                unpacked.read(piece, row);
                if let Some(levels) = &levels {
                    unpacked.codes.iter_mut().for_each(|code| *code = levels[usize::from(*code)]);
                }
                place(&unpacked.codes, kept.stored(), lane, codes);
                let column = |values: &mut [f32], from: &[f32]| {
                    values.iter_mut().skip(lane).step_by(PANEL).zip(from).for_each(|(to, from)| *to = *from);
                };
                column(scales, &unpacked.scales);
                column(offsets, &unpacked.offsets);
            }
        });
        let arithmetic = match block(format).filter(|_| rounds) {
            Some(block) => loose.rounded(format, block),
            None => loose.exact(format),
        };
        Self { kept, group, groups, arithmetic }
    }

    /// The first place of a panel's scales at `k`.
    #[inline(always)]
    pub(super) fn place(&self, panel: usize, k: usize) -> usize {
        (panel * self.groups + k / self.group) * PANEL
    }

    /// The first k behind `k` with other scales.
    pub(super) fn end(&self, k: usize) -> usize {
        (k / self.group + 1) * self.group
    }

    /// The weights of a row, whose codes lie in this panel.
    pub(crate) fn row(&self, panel: &[u8], row: usize, k: usize) -> impl Iterator<Item = f32> {
        let lane = row % PANEL;
        (0..k).map(move |at| {
            let place = self.place(row / PANEL, at) + lane;
            let half = || panel[(at / 8 * PANEL + lane) * 4 + at % 4] >> (at % 8 / 4 * 4) & 15;
            let code = f32::from(match self.kept {
                Kept::Four => half(),
                Kept::Eight => panel[(at / 4 * PANEL + lane) * 4 + at % 4],
                Kept::Levels(levels) => levels[usize::from(half())],
            });
            match &self.arithmetic {
                Arithmetic::Exact { scales, before, after } => (code - before[place]) * scales[place] - after[place],
                Arithmetic::Rounded { unit, scales, adds, .. } => {
                    let number = |values: &[u16]| f16::from_bits(values[place]).to_f32() * unit;
                    let add = if adds.is_empty() { 0.0 } else { number(adds) };
                    (code - f32::from(self.kept.multiplied().middle())) * number(scales) + add
                }
            }
        })
    }
}

/// The piece that has a row of the whole, and the row in it.
fn piece_of<'a, 'b>(pieces: &'b [HostMatrix<'a>], mut row: usize) -> (&'b HostMatrix<'a>, usize) {
    for piece in pieces {
        if row < piece.rows {
            return (piece, row);
        }
        row -= piece.rows;
    }
    unreachable!("a row past the last piece")
}

/// Which of the levels each code is.
fn numbers_of(levels: &[u8; 16]) -> [u8; 256] {
    let mut numbers = [0; 256];
    (0..).zip(levels).for_each(|(number, level)| numbers[usize::from(*level)] = number);
    numbers
}

/// Writes the codes of a column of a panel, four bytes at a time.
fn place(codes: &[u8], bits: CodeBits, lane: usize, panel: &mut [u8]) {
    let places = panel.as_chunks_mut::<4>().0.iter_mut().skip(lane).step_by(PANEL);
    match bits {
        CodeBits::Four => places.zip(codes.chunks(8)).for_each(|(to, codes)| {
            let (low, high) = codes.split_at(codes.len().min(4));
            to[..low.len()].copy_from_slice(low);
            to.iter_mut().zip(high).for_each(|(to, code)| *to |= code << 4);
        }),
        CodeBits::Eight => {
            places.zip(codes.chunks(4)).for_each(|(to, codes)| to[..codes.len()].copy_from_slice(codes));
        }
    }
}

impl Loose {
    fn exact(self, format: IntegerFormat) -> Arithmetic {
        let count = self.scales.len();
        let (before, after) = match format.offsets {
            Offsets::Middle => (vec![f32::from(format.bits.middle()); count], vec![0.0; count]),
            Offsets::Before => (self.offsets, vec![0.0; count]),
            Offsets::After => (vec![f32::from(format.base()); count], self.offsets),
        };
        Arithmetic::Exact { scales: self.scales, before, after }
    }

    fn rounded(self, format: IntegerFormat, block: usize) -> Arithmetic {
        let middle = f32::from(format.bits.middle());
        let weight_of_middle = |(offset, scale): (&f32, &f32)| match format.offsets {
            Offsets::After => (middle - f32::from(format.base())) * scale - offset,
            _ => (middle - offset) * scale,
        };
        let adds: Vec<f32> = self.offsets.iter().zip(&self.scales).map(weight_of_middle).collect();
        // A power of two brings the largest near the top of f16's range, so that none is lost at its bottom.
        let largest = self.scales.iter().chain(&adds).fold(0.0_f32, |most, value| most.max(value.abs()));
        let power = if largest.is_normal() { largest.log2().floor().clamp(-100.0, 100.0) - 14.0 } else { 0.0 };
        let unit = power.exp2();
        let halves = |values: &[f32]| values.iter().map(|value| f16::from_f32(value / unit).to_bits()).collect();
        Arithmetic::Rounded { block, unit, scales: halves(&self.scales), adds: halves(&adds) }
    }
}
