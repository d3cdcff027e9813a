//! Products of weights stored as integer codes, against float64.

use super::invariance::keeps_rows;
use super::packed::blocks::tame;
use super::{Random, backends, check, check_relative, filled};
use kernels::decode::decode;
use kernels::ops::{
    ALL_COLUMNS, Activation, Backend, CodeBits, ColumnOrder, DType, E2M1, Encoding, Epilogue, GgmlBlocks, GgmlType,
    GroupedCodes, GroupedFormat, HostMatrix, InputRounding, Levels, MatrixUse, WeightFormat, Zeros,
};

/// A stored matrix of made-up codes.
struct Stored {
    cols: usize,
    format: WeightFormat,
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<u8>,
    columns: Vec<u32>,
}

impl Stored {
    fn new([rows, cols]: [usize; 2], format: WeightFormat, random: &mut Random) -> Self {
        let mut codes: Vec<u8> = bytes(random, rows * format.row_bytes(cols));
        let WeightFormat::Grouped(grouped) = format else {
            if let WeightFormat::Blocks(kind) = format {
                codes.chunks_exact_mut(kind.block().bytes).for_each(|block| tame(kind, block, |byte| 0x20 | byte & 3));
            }
            return Self { cols, format, codes, scales: Vec::new(), zeros: Vec::new(), columns: Vec::new() };
        };
        let count = rows * grouped.groups(cols);
        let scales = random.values(count).into_iter().map(|value| (value.abs() + 0.1) / 100.0);
        let scales = scales.flat_map(|scale| half::f16::from_f32(scale).to_le_bytes()).collect();
        let has_zeros = grouped.levels == Levels::Integers(Zeros::Stored);
        let zeros = bytes(random, if has_zeros { count } else { 0 });
        let most = grouped.bits.middle() | (grouped.bits.middle() - 1);
        let zeros = zeros.into_iter().map(|zero| zero & most).collect();
        // A permutation: 7 has no common divisor with a number of columns that is a power of two times 3 or 5.
        let is_permuted = grouped.order == ColumnOrder::Permuted;
        let columns = if is_permuted { (0..cols).map(|col| (col * 7 % cols) as u32).collect() } else { Vec::new() };
        Self { cols, format, codes, scales, zeros, columns }
    }

    /// Some rows of it.
    fn piece(&self, rows: std::ops::Range<usize>) -> HostMatrix<'_> {
        let line = self.format.row_bytes(self.cols);
        let codes = &self.codes[rows.start * line..rows.end * line];
        let encoding = match self.format {
            WeightFormat::Blocks(kind) => Encoding::Blocks(GgmlBlocks { kind, bytes: codes }),
            WeightFormat::Grouped(format) => {
                let groups = format.groups(self.cols);
                let part = |values: &'_ [u8], size: usize| {
                    (rows.start * groups * size).min(values.len())..(rows.end * groups * size).min(values.len())
                };
                let (scales, zeros) = (&self.scales[part(&self.scales, 2)], &self.zeros[part(&self.zeros, 1)]);
                Encoding::Grouped(GroupedCodes {
                    format,
                    codes,
                    scales,
                    zeros,
                    row_levels: &[],
                    columns: &self.columns,
                })
            }
            other => panic!("{other:?}"),
        };
        HostMatrix { rows: rows.len(), cols: self.cols, encoding }
    }
}

fn bytes(random: &mut Random, count: usize) -> Vec<u8> {
    random.values(count).into_iter().map(|value| ((value + 1.0) * 127.9) as u8).collect()
}

/// The formats whose codes are integers.
fn formats() -> Vec<WeightFormat> {
    let of_levels = |bits, group, levels, order| {
        let (scales, input) = (DType::F16, InputRounding::None);
        WeightFormat::Grouped(GroupedFormat { bits, group, scales, levels, order, input })
    };
    let grouped = |bits, group, zeros, order| of_levels(bits, group, Levels::Integers(zeros), order);
    let in_order = ColumnOrder::InOrder;
    let mut formats: Vec<WeightFormat> = GgmlType::ALL.map(WeightFormat::Blocks).to_vec();
    for bits in [CodeBits::Four, CodeBits::Eight] {
        for group in [ALL_COLUMNS, 128, 32, 48] {
            formats.extend([Zeros::Middle, Zeros::Stored].map(|zeros| grouped(bits, group, zeros, in_order)));
        }
    }
    formats.extend([16, 32].map(|group| of_levels(CodeBits::Four, group, Levels::Shared(E2M1), in_order)));
    // Integers cannot be summed over groups of ten.
    formats.push(grouped(CodeBits::Four, 10, Zeros::Stored, in_order));
    formats.push(grouped(CodeBits::Four, 64, Zeros::Middle, ColumnOrder::Permuted));
    formats
}

fn run(backend: &mut dyn Backend, stored: &Stored, n: usize, rows: usize, compute: DType) {
    let k = stored.cols;
    let mut random = Random((rows * 31 + n * 7 + k) as u64);
    let (x, bias) = (random.values(rows * k), random.values(n));
    let mut weights = vec![f32::NAN; n * k];
    decode(&stored.piece(0..n), 0..n, &mut weights);
    let (mut want, mut bound, on_cpu) = (Vec::new(), Vec::new(), backend.describe().starts_with("cpu"));
    for x in x.chunks(k) {
        for (w, bias) in weights.chunks(k).zip(&bias) {
            let (mut sum, mut size, mut weight) = (f64::from(*bias), 1.0, 0.0);
            for (x, w) in x.iter().zip(w) {
                let term = f64::from(*x) * f64::from(*w);
                (sum, size, weight) = (sum + term, size + term.abs(), weight + f64::from(w.abs()));
            }
            want.push(sum);
            // Inputs are at most 1: on the CPU each is rounded by half of 1 / 2039 at most, on others to bf16. Scales
            // are rounded to 11 bits, and products of codes are larger than what is left of them beside an offset.
            let steps = if on_cpu { 4000.0 } else { 250.0 };
            bound.push(if compute == DType::F32 { 1e-6 * size } else { weight / steps + 2e-3 * size });
        }
    }
    let pieces = [0..n / 3, n / 3..n].map(|rows| stored.piece(rows));
    let matrix = backend.load_stack(&pieces, compute);
    let (input, out) = (filled(backend, k, &x), filled(backend, n, &vec![f32::NAN; rows * n]));
    let bias = backend.load_vector(&bias);
    backend.matmul(input, matrix, Some(bias), Epilogue::Store, out);
    let what = format!("{} {rows} x {n} x {k} in {compute:?} of {:?}", backend.describe(), stored.format);
    check(&what, backend.read(out), &want, |index| bound[index]);
    backend.activate(out, Activation::Silu);
    let want: Vec<f64> = backend.read(out).iter().copied().map(f64::from).collect();
    backend.host_mut(out).fill(f32::NAN);
    backend.matmul_activated(input, matrix, Some(bias), Activation::Silu, out);
    check_relative(&format!("{what}, activated"), backend.read(out), &want, 1e-6);
}

#[test]
fn every_format_in_every_shape() {
    for mut backend in backends() {
        for (number, format) in formats().into_iter().enumerate() {
            if !backend.multiplies(format, MatrixUse::Linear) {
                continue;
            }
            let blocks = matches!(format, WeightFormat::Blocks(_));
            for (index, [n, k]) in [[48, 256_usize], [83, 768], [16, 352], [40, 1600]].into_iter().enumerate() {
                let k = if blocks { k.next_multiple_of(256) } else { k };
                let stored = Stored::new([n, k], format, &mut Random((number * 5 + index) as u64));
                for rows in [1, 2, 3, 9, 37].into_iter().skip((number + index) % 2) {
                    let compute = [DType::F32, DType::Bf16][(rows + index) % 2];
                    run(&mut *backend, &stored, n, rows, compute);
                }
            }
        }
    }
}

/// The same bits alone and among others.
#[test]
fn rows_do_not_depend_on_each_other() {
    for format in [1, 4, 6, 9, 12, 15, 19, 20].map(|format| formats()[format]) {
        for mut backend in backends().into_iter().filter(|backend| backend.multiplies(format, MatrixUse::Linear)) {
            let compute = if keeps_rows(&*backend, DType::Bf16) { DType::Bf16 } else { DType::F32 };
            let mut random = Random(9);
            let stored = Stored::new([80, 1792], format, &mut random);
            let matrix = backend.load_matrix(stored.piece(0..80), compute);
            let x = random.values(70 * 1792);
            let mut product = |rows: std::ops::Range<usize>| {
                let x = filled(&mut *backend, 1792, &x[rows.start * 1792..rows.end * 1792]);
                let out = filled(&mut *backend, 80, &vec![0.0; rows.len() * 80]);
                backend.matmul(x, matrix, None, Epilogue::Store, out);
                backend.read(out).to_vec()
            };
            let all = product(0..70);
            for rows in [0..1, 7..9, 5..10, 3..9, 11..27, 20..37, 69..70] {
                assert_eq!(product(rows.clone()), all[rows.start * 80..rows.end * 80], "{format:?} {rows:?}");
            }
        }
    }
}

/// A tied head is a lookup table too.
#[test]
fn rows_are_looked_up() {
    let format = WeightFormat::Blocks(GgmlType::Q4_1);
    for mut backend in backends().into_iter().filter(|backend| backend.multiplies(format, MatrixUse::Table)) {
        let stored = Stored::new([40, 256], format, &mut Random(3));
        for compute in [DType::F32, DType::Bf16] {
            let matrix = backend.load_matrix(stored.piece(0..40), compute);
            let table = backend.table_of(matrix);
            let tokens = [39_u32, 0, 17];
            let positions = [0; 3];
            let out = backend.new_act(3, 256);
            backend.begin(kernels::ops::Batch { tokens: &tokens, positions: &positions, sequences: &[] });
            backend.embed(table, 0, 1.0, out);
            let mut all = vec![f32::NAN; 40 * 256];
            decode(&stored.piece(0..40), 0..40, &mut all);
            let want: Vec<f64> = (tokens.iter())
                .flat_map(|token| all[*token as usize * 256..][..256].iter().map(|x| f64::from(*x)))
                .collect();
            let error = if compute == DType::F32 { 0.0 } else { 2e-4 };
            check("a table", backend.read(out), &want, |_| error);
        }
    }
}
