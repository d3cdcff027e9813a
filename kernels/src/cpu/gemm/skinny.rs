//! Products of bf16 weights with a few rows: the tile unit's arithmetic done by vectors, bit for bit.
//!
//! One row's product is bound by reading weights, and vector loads read faster than tile loads. What `tdpbf16ps` does
//! is documented exactly: over the 32 k of a tile it keeps one chain of fused sums for even k and one for odd, adds the
//! two, and adds that to the sum; denormals count as zero. So a row gets the same bits here as among many.

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::{PANEL, TILE_K};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::{Bf16, Element, Kernel, Simd, vectorize};
use std::arch::asm;
use std::ops::Range;

/// More rows than this are left to tiles.
pub(super) const MAX_ROWS: usize = 2;
/// Panels a task.
const GROUP: usize = 8;

/// A product of at most [`MAX_ROWS`] rows.
pub(super) struct Job<'a> {
    product: Product<'a>,
    /// One or two.
    block_rows: usize,
}

impl<'a> Job<'a> {
    pub(super) fn new(product: Product<'a>) -> Self {
        Self { product, block_rows: product.rows.next_power_of_two() }
    }

    pub(super) fn needs(&self) -> Needs {
        let Product { rows, w, .. } = self.product;
        Needs {
            packed: self.block_rows * w.k_padded * size_of::<f32>(),
            sums: 0,
            pack_tasks: 1,
            pack_work: rows * w.k,
            tasks: w.panels().div_ceil(GROUP),
            work: rows * w.k * w.n / 8,
        }
    }

    /// `[k][block_rows]` of values rounded to bf16, zero where there is no row or column.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(&self, packed: Shared<u8>) {
        let Product { rows, w, .. } = self.product;
        // SAFETY: the memory is as large as was asked for.
        let packed =
            unsafe { std::slice::from_raw_parts_mut(packed.at(0).cast::<f32>(), self.block_rows * w.k_padded) };
        packed.fill(0.0);
        for row in 0..rows {
            // SAFETY: the row exists (the caller's promise).
            let x = unsafe { self.product.row(row) };
            for (to, &value) in packed[row..].iter_mut().step_by(self.block_rows).zip(x) {
                // The conversion to bf16 counts denormals as zero, too.
                *to = if value.is_subnormal() { 0.0 } else { Bf16::decode(Bf16::encode(value)) };
            }
        }
    }

    /// Computes a group of panels.
    ///
    /// # Safety
    /// As [`super::job::Job::run`], and AVX-512 was detected.
    pub(super) unsafe fn run(&self, group: usize, packed: Shared<u8>) {
        let w = self.product.w;
        let panels = group * GROUP..w.panels().min((group + 1) * GROUP);
        // SAFETY: the packed memory begins here.
        let x = Shared::new(unsafe { packed.at(0) }.cast::<f32>());
        let strip = Strip {
            weights: w.panel(panels.start),
            panels: panels.clone(),
            block_rows: self.block_rows,
            k: w.k_padded,
            x,
            product: &self.product,
        };
        let modes = flush_denormals();
        vectorize(Isa::Amx, strip);
        restore(modes);
        // SAFETY: the strip wrote these columns, and no other task does.
        unsafe { self.product.activate(Isa::Amx, 0..self.product.rows, panels) };
    }
}

/// Makes this thread's vector arithmetic count denormals as zero, like the tile unit's; returns the modes before.
fn flush_denormals() -> u32 {
    const FLUSH: u32 = 1 << 15 | 1 << 6;
    let mut modes = 0_u32;
    // SAFETY: only this thread's rounding of denormals changes, and `restore` follows after nothing but the sums of a
    // strip.
    unsafe {
        asm!("stmxcsr [{}]", in(reg) &mut modes, options(nostack, preserves_flags));
        asm!("ldmxcsr [{}]", in(reg) &(modes | FLUSH), options(nostack, readonly, preserves_flags));
    }
    modes
}

fn restore(modes: u32) {
    // SAFETY: puts back what `flush_denormals` found.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &modes, options(nostack, readonly, preserves_flags)) };
}

/// A task: all rows times a group of panels.
struct Strip<'a> {
    panels: Range<usize>,
    block_rows: usize,
    k: usize,
    x: Shared<f32>,
    weights: *const u8,
    product: &'a Product<'a>,
}

impl Kernel for Strip<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.block_rows {
            1 => self.group::<S, 1, 8>(),
            _ => self.group::<S, 2, 4>(),
        }
    }
}

impl Strip<'_> {
    /// All panels, `C` at a time.
    #[inline(always)]
    fn group<S: Simd, const R: usize, const C: usize>(&self) {
        let mut panel = self.panels.start;
        while panel < self.panels.end {
            if panel + C <= self.panels.end {
                self.tile::<S, R, C>(panel);
                panel += C;
            } else {
                self.tile::<S, R, 1>(panel);
                panel += 1;
            }
        }
    }

    /// `R` rows times `C` panels; a vector is a panel wide.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const C: usize>(&self, panel: usize) {
        let panel_elements = self.k * PANEL;
        let mut sums = [[S::splat(0.0); C]; R];
        let mut flat = [0.0_f32; GROUP * PANEL];
        // SAFETY: packed activations and panels have `k` entries, whole tiles of them; R * C is at most a group.
        unsafe {
            let weights = self.weights.cast::<u16>().add((panel - self.panels.start) * panel_elements);
            for start in (0..self.k).step_by(TILE_K) {
                let (mut even, mut odd) = ([[S::splat(0.0); C]; R], [[S::splat(0.0); C]; R]);
                for k in (start..start + TILE_K).step_by(2) {
                    let x = self.x.at(k * R).cast_const();
                    for c in 0..C {
                        let (first, second) = S::load_bf16_pairs(weights.add(c * panel_elements + k * PANEL));
                        for r in 0..R {
                            even[r][c] = S::splat(*x.add(r)).fma(first, even[r][c]);
                            odd[r][c] = S::splat(*x.add(R + r)).fma(second, odd[r][c]);
                        }
                    }
                }
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = sums[r][c].add(even[r][c].add(odd[r][c]));
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    sums[r][c].store(flat.as_mut_ptr().add((r * C + c) * PANEL));
                }
            }
            let tile = Tile {
                sums: &flat,
                stride: C * PANEL,
                row: 0,
                col: panel * PANEL,
                rows: self.product.rows,
                cols: C * PANEL,
            };
            self.product.write::<S>(&tile);
        }
    }
}
