//! Products with weights of 4 and 8 bits on devices that keep them packed, against float64: every kind of code, scale
//! and zero point, all numbers of rows at which another kernel begins, and shapes that end anywhere.

pub(crate) mod blocks;
mod experts;
mod loading;
mod prepared;

use super::rounded::step;
use super::{Random, backends, check, filled_in, round};
use blocks::tame;
use half::{bf16, f16};
use kernels::decode::{IntegerFormat, IntegerRow, decode};
use kernels::ops::{
    ALL_COLUMNS, Activation, Backend, CodeBits, ColumnOrder, DType, Encoding, Epilogue, GgmlBlocks, GgmlType,
    GroupedCodes, GroupedFormat, HostMatrix, InputRounding, Levels, MatrixUse, WeightFormat, Zeros,
};

const ROWS: [usize; 9] = [1, 3, 8, 9, 16, 17, 33, 90, 200];

/// Devices that keep such weights packed; the CPU's products have tests of their own.
fn devices(format: WeightFormat) -> Vec<Box<dyn Backend>> {
    let mut devices = backends();
    devices.retain(|device| device.describe().starts_with("cuda") && device.multiplies(format, MatrixUse::Linear));
    devices
}

/// A matrix with everything that a format may want.
struct Stored {
    format: GroupedFormat,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    columns: Vec<u32>,
}

impl Stored {
    fn new([rows, cols]: [usize; 2], format: GroupedFormat) -> Self {
        let mut random = Random((rows * 13 + cols) as u64);
        let groups = format.groups(cols);
        let codes = (0..rows * format.bits.row_bytes(cols)).map(|_| random.below(256) as u8).collect();
        let scales = random.values(rows * groups).into_iter().map(|value| (value.abs() + 0.1) / 16.0);
        let scales = scales.flat_map(|scale| match format.scales {
            DType::F32 => scale.to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(scale).to_le_bytes().to_vec(),
            DType::Bf16 => bf16::from_f32(scale).to_le_bytes().to_vec(),
        });
        let scales = scales.collect();
        let most = if format.bits == CodeBits::Four { 17 } else { 256 };
        let stored = format.levels == Levels::Integers(Zeros::Stored);
        let zeros = (0..if stored { rows * groups } else { 0 }).map(|_| random.below(most) as u8).collect();
        let permuted = format.order == ColumnOrder::Permuted;
        let mut columns: Vec<u32> = (0..if permuted { cols as u32 } else { 0 }).collect();
        for at in (1..columns.len()).rev() {
            columns.swap(at, random.below(at + 1));
        }
        Self { format, cols, codes, scales, zeros, columns }
    }

    /// Some rows of it.
    fn piece(&self, rows: std::ops::Range<usize>) -> HostMatrix<'_> {
        let (bytes, groups) = (self.format.bits.row_bytes(self.cols), self.format.groups(self.cols));
        let size = groups * self.format.scales.size();
        let zeros = if self.zeros.is_empty() { &[][..] } else { &self.zeros[rows.start * groups..rows.end * groups] };
        let codes = GroupedCodes {
            format: self.format,
            codes: &self.codes[rows.start * bytes..rows.end * bytes],
            scales: &self.scales[rows.start * size..rows.end * size],
            zeros,
            row_levels: &[],
            columns: &self.columns,
        };
        HostMatrix { rows: rows.len(), cols: self.cols, encoding: Encoding::Grouped(codes) }
    }
}

/// Inputs as they are multiplied: int8 codes times a scale.
fn rounded(x: &[f32], width: usize, input: InputRounding) -> Vec<f32> {
    let round = |x: f32, scale: f32| (x / scale).round_ties_even().clamp(-128.0, 127.0) * scale;
    match input {
        InputRounding::StaticInt8(scale) => x.iter().map(|x| round(*x, scale)).collect(),
        InputRounding::DynamicInt8 { outliers } => x
            .chunks(width)
            .flat_map(|row| {
                let sizes = row.iter().map(|x| x.abs()).filter(|size| *size < outliers);
                let scale = sizes.fold(0.0_f32, f32::max) / 127.0;
                row.iter().map(move |x| if x.abs() < outliers { round(*x, scale) } else { *x })
            })
            .collect(),
        _ => x.to_vec(),
    }
}

struct Case<'a> {
    pieces: &'a [HostMatrix<'a>],
    rows: usize,
    acts: DType,
    compute: DType,
    /// Whether weights are numbers of `acts` but for their scales.
    exact: bool,
}

fn run(device: &mut dyn Backend, case: &Case<'_>) {
    let Case { pieces, rows, acts, compute, exact } = *case;
    let (n, k, format) = (pieces.iter().map(|piece| piece.rows).sum::<usize>(), pieces[0].cols, pieces[0].format());
    let mut values = vec![f32::NAN; n * k];
    let mut rest = &mut values[..];
    for piece in pieces {
        let (here, after) = rest.split_at_mut(piece.rows * k);
        kept(piece, compute, here);
        rest = after;
    }
    let mut random = Random((rows * 31 + n * 7 + k) as u64);
    let x: Vec<f32> = random.values(rows * k).into_iter().map(|x| round(x, acts)).collect();
    let narrow = if acts == DType::F32 { compute } else { acts };
    // Rounding gains nothing there.
    let leaves = rows <= 16 && device.gains_by_rounding(format, MatrixUse::Linear, k, narrow);
    let multiplied = if leaves { x.clone() } else { rounded(&x, k, format.input()) };
    let (bias, before) = (random.values(n), random.values(rows * n));
    let epilogue = if rows % 2 == 0 { Epilogue::Accumulate } else { Epilogue::Store };
    let start = if epilogue == Epilogue::Store { vec![f32::NAN; rows * n] } else { before };
    let (mut want, mut size) = (Vec::new(), Vec::new());
    for (row, x) in multiplied.chunks(k).enumerate() {
        for (col, w) in values.chunks(k).enumerate() {
            let old = if epilogue == Epilogue::Store { 0.0 } else { f64::from(start[row * n + col]) };
            let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            size.push(terms.clone().map(f64::abs).sum::<f64>() + old.abs() + 1.0);
            want.push(terms.sum::<f64>() + old + f64::from(bias[col]));
        }
    }
    let matrix = device.load_stack(pieces, compute);
    let (input, out) = (filled_in(device, k, &x, acts), filled_in(device, n, &start, DType::F32));
    let bias = device.load_vector(&bias);
    device.matmul(input, matrix, Some(bias), epilogue, out);
    let what = format!("{} {rows} x {n} x {k} of {format:?}, rows of {acts:?} in {compute:?}", device.describe());
    // Of more rows and odd shapes each weight is rounded to what is multiplied; inputs are where they were rounded.
    let as_they_are = exact && acts == narrow && rows <= 16 && k % 8 == 0 && format.input() == InputRounding::None;
    let relative = if narrow == DType::F32 || as_they_are { 1e-5 } else { 4.5 * step(narrow) };
    check(&what, device.read(out), &want, |index| relative * size[index]);
}

/// The weights of a piece as a device keeps them: scales and offsets of GGUF's blocks are f16 where it computes in 16
/// bits, those of two levels rounded to that.
fn kept(piece: &HostMatrix<'_>, compute: DType, out: &mut [f32]) {
    let format = IntegerFormat::of(piece.format()).filter(|_| compute != DType::F32);
    let (Encoding::Blocks(_), Some(format)) = (piece.encoding, format) else {
        return decode(piece, 0..piece.rows, out);
    };
    let mut stored = IntegerRow::default();
    for (row, out) in out.chunks_mut(piece.cols).enumerate() {
        stored.read(piece, row);
        let IntegerRow { scales, offsets, .. } = &mut stored;
        scales.iter_mut().chain(offsets).for_each(|number| *number = round(*number, DType::F16));
        stored.decode(format, out);
    }
}

/// Where a scale is one f16 nothing is rounded, elsewhere a little.
#[test]
fn scales_of_two_levels_alone_are_rounded() {
    use GgmlType::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Tq1_0, Tq2_0};
    for kind in GgmlType::ALL {
        let (rows, cols, format) = (3, 512, WeightFormat::Blocks(kind));
        let bytes = made_up(kind, rows, format.row_bytes(cols));
        let piece = HostMatrix { rows, cols, encoding: Encoding::Blocks(GgmlBlocks { kind, bytes: &bytes }) };
        let (mut rounded, mut exact) = (vec![f32::NAN; rows * cols], vec![f32::NAN; rows * cols]);
        kept(&piece, DType::Bf16, &mut rounded);
        decode(&piece, 0..rows, &mut exact);
        let most = exact.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
        let loss = exact.iter().zip(&rounded).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        match kind {
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Iq4Nl | Tq1_0 | Tq2_0 => assert!(loss == 0.0, "{kind:?}: {loss}"),
            _ => assert!(loss < most / 500.0, "{kind:?}: {loss} of {most}"),
        }
    }
}

/// Floats of a sign, two bits of exponent and one of mantissa.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

const FORMAT: GroupedFormat = GroupedFormat {
    bits: CodeBits::Four,
    group: 128,
    scales: DType::F16,
    levels: Levels::Integers(Zeros::Middle),
    order: ColumnOrder::InOrder,
    input: InputRounding::None,
};

/// Every number of rows for some shapes; pieces begin and end anywhere.
fn run_format(format: GroupedFormat, exact: bool) {
    let shapes = [[96, 256], [48, 512], [144, 2048], [272, 320], [50, 136], [17, 72], [33, 100], [1, 2]];
    for mut device in devices(WeightFormat::Grouped(format)) {
        for (index, shape) in shapes.into_iter().enumerate() {
            let stored = Stored::new(shape, format);
            let (first, second) = (shape[0] / 3, shape[0] - shape[0] / 5);
            let pieces = [0..first, first..second, second..shape[0]].map(|rows| stored.piece(rows));
            for rows in ROWS.into_iter().skip(index % 2).step_by(1 + index / 3) {
                for (acts, compute) in [(DType::Bf16, DType::Bf16), (DType::F16, DType::F16), (DType::F32, DType::Bf16)]
                {
                    run(&mut *device, &Case { pieces: &pieces, rows, acts, compute, exact });
                }
            }
            run(&mut *device, &Case { pieces: &pieces, rows: 5, acts: DType::F32, compute: DType::F32, exact });
        }
    }
}

#[test]
fn codes_of_4_bits() {
    for (group, scales) in [(128, DType::F16), (32, DType::Bf16), (64, DType::F32), (ALL_COLUMNS, DType::F16)] {
        run_format(GroupedFormat { group, scales, ..FORMAT }, true);
    }
    run_format(GroupedFormat { group: 96, ..FORMAT }, true);
}

#[test]
fn zero_points_of_4_bits() {
    let levels = Levels::Integers(Zeros::Stored);
    for (group, scales) in [(128, DType::F16), (32, DType::F32), (ALL_COLUMNS, DType::Bf16)] {
        run_format(GroupedFormat { group, scales, levels, ..FORMAT }, true);
    }
}

#[test]
fn codes_of_8_bits() {
    for levels in [Levels::Integers(Zeros::Middle), Levels::Integers(Zeros::Stored)] {
        for (group, scales) in [(128, DType::F16), (32, DType::F32), (ALL_COLUMNS, DType::F32)] {
            run_format(GroupedFormat { bits: CodeBits::Eight, group, scales, levels, ..FORMAT }, true);
        }
    }
}

#[test]
fn levels_of_4_bits() {
    let levels = Levels::Shared(std::array::from_fn(|level| (level as f32 - 7.3).powi(3) / 300.0));
    for (group, scales) in [(64, DType::F32), (32, DType::F16)] {
        run_format(GroupedFormat { group, scales, levels, ..FORMAT }, false);
    }
}

/// MXFP4 and NVFP4.
#[test]
fn floats_of_4_bits() {
    let levels = Levels::Shared(E2M1);
    for (group, scales, exact) in [(32, DType::Bf16, true), (64, DType::F32, true), (16, DType::F32, false)] {
        run_format(GroupedFormat { group, scales, levels, ..FORMAT }, exact);
    }
}

#[test]
fn columns_in_another_order() {
    run_format(GroupedFormat { order: ColumnOrder::Permuted, ..FORMAT }, true);
}

#[test]
fn groups_of_any_size() {
    run_format(GroupedFormat { group: 20, ..FORMAT }, false);
}

#[test]
fn inputs_of_8_bits() {
    let format = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, ..FORMAT };
    for input in [
        InputRounding::StaticInt8(0.01),
        InputRounding::DynamicInt8 { outliers: f32::INFINITY },
        InputRounding::DynamicInt8 { outliers: 0.9 },
    ] {
        run_format(GroupedFormat { input, ..format }, true);
    }
}

/// Of matrices that are large enough to be cut into parts of their columns.
#[test]
fn inputs_of_8_bits_in_parts() {
    let input = InputRounding::DynamicInt8 { outliers: f32::INFINITY };
    let format = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, input, ..FORMAT };
    let stored = Stored::new([2880, 2048], format);
    for mut device in devices(WeightFormat::Grouped(format)) {
        let pieces = [stored.piece(0..2000), stored.piece(2000..2880)];
        let (acts, compute) = (DType::Bf16, DType::Bf16);
        run(&mut *device, &Case { pieces: &pieces, rows: 34, acts, compute, exact: false });
    }
}

#[test]
fn inputs_of_8_bits_in_very_many_rows() {
    for input in [InputRounding::StaticInt8(0.01), InputRounding::DynamicInt8 { outliers: f32::INFINITY }] {
        let format = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, input, ..FORMAT };
        let stored = Stored::new([48, 72], format);
        for mut device in devices(WeightFormat::Grouped(format)) {
            for acts in [DType::Bf16, DType::F16] {
                let pieces = [stored.piece(0..20), stored.piece(20..48)];
                run(&mut *device, &Case { pieces: &pieces, rows: 2100, acts, compute: acts, exact: false });
            }
        }
    }
}

#[test]
fn blocks_of_gguf_files() {
    for kind in GgmlType::ALL {
        let format = WeightFormat::Blocks(kind);
        for mut device in devices(format) {
            for [n, k] in [[96, 256], [50, 768]] {
                let bytes = made_up(kind, n, format.row_bytes(k));
                let blocks = GgmlBlocks { kind, bytes: &bytes };
                let pieces = [HostMatrix { rows: n, cols: k, encoding: Encoding::Blocks(blocks) }];
                for rows in ROWS {
                    for (acts, compute) in [(DType::Bf16, DType::Bf16), (DType::F16, DType::F16)] {
                        // Codes whose groups are shorter than a product's columns are multiplied by their scales.
                        let exact = IntegerFormat::of(format).is_some_and(|integers| integers.group >= 32);
                        run(&mut *device, &Case { pieces: &pieces, rows, acts, compute, exact });
                    }
                }
                let (acts, compute) = (DType::F32, DType::F32);
                run(&mut *device, &Case { pieces: &pieces, rows: 5, acts, compute, exact: true });
            }
        }
    }
}

/// Blocks of random bytes whose scales and offsets are small numbers.
fn made_up(kind: GgmlType, rows: usize, row_bytes: usize) -> Vec<u8> {
    let mut random = Random(kind as u64 + 1);
    let mut bytes: Vec<u8> = (0..rows * row_bytes).map(|_| random.below(256) as u8).collect();
    for block in bytes.chunks_exact_mut(kind.block().bytes) {
        // From 2^-10 to 2^-8, of either sign.
        tame(kind, block, |byte| byte & 0x80 | 0x14 | byte & 3);
    }
    bytes
}

/// A product and the gate of its outputs are one kernel, with the bits of both where neither is cut into parts.
#[test]
fn a_gate_that_follows_changes_no_bit() {
    let input = InputRounding::DynamicInt8 { outliers: f32::INFINITY };
    let coded = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, input, ..FORMAT };
    for format in [FORMAT, coded] {
        gates_change_no_bit(format);
    }
}

/// Of very many rows too, but for the sums' rounding before they are gated apart.
#[test]
fn a_gate_of_very_many_rows_of_codes() {
    let (rows, [n, k], dtype) = (2100, [320, 192], DType::Bf16);
    for input in [InputRounding::DynamicInt8 { outliers: f32::INFINITY }, InputRounding::StaticInt8(0.03)] {
        let format = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, input, ..FORMAT };
        for mut device in devices(WeightFormat::Grouped(format)) {
            let device = &mut *device;
            let matrix = device.load_matrix(Stored::new([n, k], format).piece(0..n), dtype);
            let bias = device.load_vector(&Random(5).values(n));
            let x = filled_in(device, k, &Random(3).values(rows * k), dtype);
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let mut gated = |apart: bool| {
                    let both = filled_in(device, n, &vec![f32::NAN; rows * n], dtype);
                    let out = filled_in(device, n / 2, &vec![f32::NAN; rows * n / 2], dtype);
                    device.start_profile();
                    device.matmul(x, matrix, Some(bias), Epilogue::Store, both);
                    if apart {
                        device.read(both);
                    }
                    device.gated(both, activation, out);
                    let out = device.read(out).to_vec();
                    let names: Vec<String> = device.end_profile().into_iter().map(|timing| timing.name).collect();
                    (out, names)
                };
                let ((apart, _), (at_once, names)) = (gated(true), gated(false));
                let want: Vec<f64> = apart.iter().copied().map(f64::from).collect();
                let largest = want.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
                let bound = |index: usize| 6.0 * step(dtype) * (want[index].abs() + 0.02 * largest);
                check(&format!("{activation:?} of {format:?}"), &at_once, &want, bound);
                if device.gains_by_rounding(WeightFormat::Grouped(format), MatrixUse::Linear, k, dtype) {
                    assert!(!names.iter().any(|name| name.starts_with("gated")), "{names:?}");
                }
            }
        }
    }
}

fn gates_change_no_bit(format: GroupedFormat) {
    for mut device in devices(WeightFormat::Grouped(format)) {
        let device = &mut *device;
        for (rows, shape) in [(1, [192, 256]), (7, [1024, 512]), (16, [96, 128]), (20, [64, 384]), (190, [96, 128])] {
            let stored = Stored::new(shape, format);
            let matrix = device.load_matrix(stored.piece(0..shape[0]), DType::Bf16);
            let input = filled_in(device, shape[1], &Random(3).values(rows * shape[1]), DType::Bf16);
            let mut gated = |apart: bool| {
                let both = filled_in(device, shape[0], &vec![f32::NAN; rows * shape[0]], DType::Bf16);
                let out = filled_in(device, shape[0] / 2, &vec![f32::NAN; rows * shape[0] / 2], DType::Bf16);
                device.matmul(input, matrix, None, Epilogue::Store, both);
                if apart {
                    assert!(device.read(both).iter().all(|value| value.is_finite()));
                }
                device.gated(both, Activation::Silu, out);
                device.read(out).to_vec()
            };
            let (apart, at_once) = (gated(true), gated(false));
            super::check_same(&format!("{rows} x {shape:?}"), &at_once, &apart);
        }
    }
}
