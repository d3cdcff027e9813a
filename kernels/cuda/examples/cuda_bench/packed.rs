//! Products with weights of 4 and 8 bits.

use kernels::ops::*;

use super::layer::Layer;
use super::{Bench, CALLS, LEADS, MOST_ROWS, Model, ROTATION, Work};

/// Rows whose products are timed.
const ROWS: [usize; 13] = [1, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024, 2048, 8192];

/// What is stored.
#[derive(Clone, Copy)]
pub(super) enum Stored {
    Bf16,
    Grouped(GroupedFormat),
    /// 8-bit floats with a scale a row.
    E4m3(InputRounding),
    /// The same with a scale for blocks of 128 rows and columns.
    E4m3Blocks(InputRounding),
}

impl Stored {
    /// Of an element.
    pub(super) fn bits(self) -> usize {
        match self {
            Self::Bf16 => 16,
            Self::Grouped(format) if format.bits == CodeBits::Four => 4,
            Self::Grouped(_) | Self::E4m3(_) | Self::E4m3Blocks(_) => 8,
        }
    }
}

const FORMATS: [(&str, Stored); 7] = [
    ("bf16", Stored::Bf16),
    ("int4 g128", Stored::Grouped(INT4)),
    ("int4 g32 zeros", Stored::Grouped(GroupedFormat { group: 32, levels: Levels::Integers(Zeros::Stored), ..INT4 })),
    ("int8", Stored::Grouped(INT8)),
    ("int8 by int8", Stored::Grouped(GroupedFormat { input: INT8_INPUTS, ..INT8 })),
    ("e4m3", Stored::E4m3(InputRounding::None)),
    ("e4m3 by e4m3", Stored::E4m3(InputRounding::Dynamic { cols: ALL_COLUMNS })),
];

const INT8: GroupedFormat = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, ..INT4 };
const INT8_INPUTS: InputRounding = InputRounding::DynamicInt8 { outliers: f32::INFINITY };

/// MXFP4.
pub(super) const MXFP4: GroupedFormat = GroupedFormat {
    group: 32,
    scales: DType::Bf16,
    levels: Levels::Shared([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]),
    ..INT4
};

pub(super) const INT4: GroupedFormat = GroupedFormat {
    bits: CodeBits::Four,
    group: 128,
    scales: DType::F16,
    levels: Levels::Integers(Zeros::Middle),
    order: ColumnOrder::InOrder,
    input: InputRounding::None,
};

impl Bench {
    pub(super) fn packed(&mut self, model: &Model) {
        self.products_of(model, &FORMATS, &ROWS);
    }

    /// Products of 8-bit codes by codes, for all decode steps' rows, and with codes in blocks.
    pub(super) fn codes(&mut self, model: &Model) {
        let formats = FORMATS.into_iter().filter(|(name, _)| ["int8 by int8", "e4m3 by e4m3"].contains(name));
        let formats: Vec<_> = formats.chain([("e4m3 blocks", Stored::E4m3Blocks(InputRounding::None))]).collect();
        self.products_of(model, &formats, &[16, 32, 64, 96, 128, 192, 256, 512, 2048, 8192]);
    }

    fn products_of(&mut self, model: &Model, formats: &[(&str, Stored)], of_rows: &[usize]) {
        let Model { hidden, heads, inner, .. } = *model;
        let qkv = (heads.q + 2 * heads.kv) * heads.dim;
        let shapes = [
            ("qkv", [qkv, hidden], DType::Bf16),
            ("o", [hidden, heads.q * heads.dim], DType::F32),
            ("gate_up", [2 * inner, hidden], DType::Bf16),
            ("down", [hidden, inner], DType::F32),
        ];
        for &(format_name, format) in formats {
            for (name, [n, k], output) in shapes {
                let bytes = n * k * format.bits() / 8;
                let copies = (ROTATION / bytes).clamp(2, 64);
                let weights: Vec<Matrix> = (0..copies).map(|_| self.stored_matrix(format, [n, k])).collect();
                for &rows in of_rows {
                    let (x, out) = (self.act(rows, k), self.backend.new_rounded_act(rows, n, output));
                    self.begin(&vec![(0, 1); rows]);
                    let leads = if rows > 256 { 0 } else { LEADS };
                    let seconds = self.time(leads, |backend, i| {
                        if rows <= 256 || i < CALLS / 8 {
                            backend.matmul(x, weights[i % copies], None, Epilogue::Store, out);
                        }
                    });
                    let seconds = if rows > 256 { seconds * 8.0 } else { seconds };
                    let moved = (bytes + rows * (k * 2 + n * output.size())) as f64;
                    let work = Work { bytes: moved, flops: (2 * rows * n * k) as f64 };
                    self.report(format_name, &format!("{name} [{n}, {k}], {rows} rows"), seconds, work);
                }
            }
        }
    }

    /// Layers whose weights are stored in 4 or 8 bits, of decode steps over 256 tokens and of one prompt; the share is
    /// that of reading weights and cache once, or of multiplying.
    pub(super) fn packed_layer(&mut self, model: &Model) {
        const MOST_DECODES: usize = 256;
        let of_rows = Stored::E4m3(InputRounding::Static(0.02));
        let formats = FORMATS.into_iter().filter(|(name, _)| ["int4 g128", "e4m3 by e4m3"].contains(name));
        for (name, format) in formats.chain([("e4m3 by e4m3, one scale", of_rows)]) {
            let room = [MOST_ROWS, 256 * MOST_DECODES];
            let layer = Layer::of(self, model, room, |bench, shape| bench.stored_matrix(format, shape));
            let Heads { kv, dim, .. } = model.heads;
            for rows in [1, 16, 24, 32, 64, 128, MOST_DECODES] {
                self.begin(&vec![(255, 1); rows]);
                let seconds = self.time(2 * LEADS, |backend, i| layer.run(backend, i));
                let bytes = (layer.weight_elements() * format.bits() / 8 + rows * 256 * kv * dim * 4) as f64;
                self.report(name, &format!("layer, {rows} rows of 256"), seconds, Work { bytes, flops: 0.0 });
            }
            for rows in [512, 2048, MOST_ROWS] {
                self.begin(&[(0, rows)]);
                let seconds = self.time(0, |backend, i| layer.run(backend, i));
                let flops = (2 * rows * layer.weight_elements()) as f64;
                self.report(name, &format!("prefill layer, {rows} rows"), seconds, Work { bytes: 0.0, flops });
            }
        }
    }

    pub(super) fn stored_matrix(&mut self, stored: Stored, [rows, cols]: [usize; 2]) -> Matrix {
        match stored {
            Stored::Bf16 => self.matrix(rows, cols),
            Stored::Grouped(format) => self.grouped_matrix(format, [rows, cols]),
            Stored::E4m3(input) => self.float_matrix([rows, cols], [1, ALL_COLUMNS], input),
            Stored::E4m3Blocks(input) => self.float_matrix([rows, cols], [128, 128], input),
        }
    }

    fn grouped_matrix(&mut self, format: GroupedFormat, [rows, cols]: [usize; 2]) -> Matrix {
        let groups = format.groups(cols);
        // Scales of about 1/256, from the low bits of noise.
        let scales: Vec<u8> = (self.noise.iter().take(rows * groups).flat_map(|byte| [*byte, 0x1c])).collect();
        let zeros = if format.levels == Levels::Integers(Zeros::Stored) {
            self.noise.iter().take(rows * groups).map(|byte| byte & 15).collect()
        } else {
            Vec::new()
        };
        let codes = &self.noise[..rows * format.bits.row_bytes(cols)];
        let codes = GroupedCodes { format, codes, scales: &scales, zeros: &zeros, row_levels: &[], columns: &[] };
        let matrix = HostMatrix { rows, cols, encoding: Encoding::Grouped(codes) };
        self.backend.load_matrix(matrix, DType::Bf16)
    }

    /// With a scale for blocks of `each` rows and `scale_cols` columns.
    fn float_matrix(
        &mut self,
        [rows, cols]: [usize; 2],
        [each, scale_cols]: [usize; 2],
        input: InputRounding,
    ) -> Matrix {
        let codes: Vec<u8> = self.noise[..rows * cols].iter().map(|byte| byte & 0xb7).collect();
        let groups = if scale_cols == ALL_COLUMNS { 1 } else { cols.div_ceil(scale_cols) };
        let scales = vec![1.0 / 256.0; rows.div_ceil(each) * groups];
        let scale_rows: Vec<u32> = (0..rows).map(|row| (row / each) as u32).collect();
        let codes = ScaledCodes { codes: &codes, scales: &scales, scale_rows: &scale_rows, scale_cols, input };
        let matrix = HostMatrix { rows, cols, encoding: Encoding::Scaled(codes) };
        self.backend.load_matrix(matrix, DType::Bf16)
    }
}
