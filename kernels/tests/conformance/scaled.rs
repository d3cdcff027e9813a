//! Products of weights stored as 8-bit floats times scales, against float64.

use super::routing::{PLAIN, route};
use super::{Random, backends, check, filled, filled_in, round};
use kernels::e4m3;
use kernels::ops::{
    ALL_COLUMNS, Backend, DType, Encoding, Epilogue, HostMatrix, InputRounding, MatrixUse, ScaledCodes, WeightFormat,
};

/// Rows and columns that share a scale.
const GRIDS: [[usize; 2]; 5] = [[usize::MAX, ALL_COLUMNS], [1, ALL_COLUMNS], [128, 128], [16, 32], [usize::MAX, 256]];

/// A stored matrix.
struct Stored {
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    scale_rows: Vec<u32>,
    scale_cols: usize,
}

impl Stored {
    fn new([rows, cols]: [usize; 2], [each, scale_cols]: [usize; 2], random: &mut Random) -> Self {
        let codes = random.values(rows * cols).into_iter().map(|value| e4m3::encode(value * 300.0)).collect();
        let scale_rows: Vec<u32> = (0..rows).map(|row| (row / each) as u32).collect();
        let count = (scale_rows.last().map_or(0, |row| row + 1)) as usize * cols.div_ceil(scale_cols);
        let scales = random.values(count).into_iter().map(|value| (value.abs() + 0.1) / 300.0).collect();
        Self { cols, codes, scales, scale_rows, scale_cols }
    }

    /// Some rows of it.
    fn piece(&self, rows: std::ops::Range<usize>, input: InputRounding) -> HostMatrix<'_> {
        let codes = ScaledCodes {
            codes: &self.codes[rows.start * self.cols..rows.end * self.cols],
            scales: &self.scales,
            scale_rows: &self.scale_rows[rows.clone()],
            scale_cols: self.scale_cols,
            input,
        };
        HostMatrix { rows: rows.len(), cols: self.cols, encoding: Encoding::Scaled(codes) }
    }

    fn value(&self, row: usize, col: usize) -> f64 {
        let line = self.scale_rows[row] as usize * self.cols.div_ceil(self.scale_cols);
        let scale = self.scales[line + if self.scale_cols == ALL_COLUMNS { 0 } else { col / self.scale_cols }];
        f64::from(e4m3::decode(self.codes[row * self.cols + col])) * f64::from(scale)
    }
}

/// Rows as they are multiplied.
pub(super) fn rounded(x: &[f32], width: usize, input: InputRounding) -> Vec<f32> {
    let round = |x: &[f32], scale: f32| -> Vec<f32> {
        x.iter().map(|x| e4m3::decode(e4m3::encode(x / scale)) * scale).collect()
    };
    match input {
        InputRounding::None => x.to_vec(),
        InputRounding::Static(scale) => round(x, scale),
        InputRounding::StaticInt8(scale) => integers(x, scale, f32::INFINITY),
        InputRounding::DynamicInt8 { outliers } => (x.chunks(width))
            .flat_map(|row| {
                let sizes = row.iter().map(|x| x.abs()).filter(|size| *size < outliers);
                integers(row, sizes.fold(0.0, f32::max) / 127.0, outliers)
            })
            .collect(),
        InputRounding::Dynamic { cols } => (x.chunks(width))
            .flat_map(|row| row.chunks(cols.min(width)))
            .flat_map(|group| round(group, group.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 448.0))
            .collect(),
    }
}

/// The nearest multiples of a scale, but for outliers.
fn integers(x: &[f32], scale: f32, outliers: f32) -> Vec<f32> {
    let round =
        |x: &f32| if x.abs() >= outliers { *x } else { (x / scale).round_ties_even().clamp(-128.0, 127.0) * scale };
    x.iter().map(round).collect()
}

struct Case {
    rows: usize,
    shape: [usize; 2],
    grid: [usize; 2],
    compute: DType,
    input: InputRounding,
    epilogue: Epilogue,
}

fn run(backends: &mut [Box<dyn Backend>], case: &Case) {
    let Case { rows, shape: [n, k], grid, compute, input, epilogue } = *case;
    let mut random = Random((rows * 31 + n * 7 + k + grid[1] % 1009) as u64);
    let stored = Stored::new([n, k], grid, &mut random);
    let (x, before, bias) = (random.values(rows * k), random.values(rows * n), random.values(n));
    let start = if epilogue == Epilogue::Store { vec![f32::NAN; rows * n] } else { before };
    let multiplied = rounded(&x, k, input);
    let (mut want, mut size) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for col in 0..n {
            let terms = (0..k).map(|at| f64::from(multiplied[row * k + at]) * stored.value(col, at));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let old = if epilogue == Epilogue::Store { 0.0 } else { f64::from(start[row * n + col]) };
            want.push(sum + old + f64::from(bias[col]));
            size.push(magnitude + old.abs() + 1.0);
        }
    }
    // Inputs are rounded, and where many rows or an odd shape want that, weights.
    let relative = if compute == DType::F32 { 1e-6 } else { 2.0_f64.powi(-8) };
    let format = WeightFormat::ScaledE4m3 { scale_cols: grid[1], input };
    for backend in backends.iter_mut().filter(|backend| backend.multiplies(format, MatrixUse::Linear)) {
        // The pieces begin and end anywhere.
        let (first, second) = (n / 3, n - n / 5);
        let pieces = [0..first, first..second, second..n].map(|rows| stored.piece(rows, input));
        let matrix = backend.load_stack(&pieces, compute);
        let (input, out) = (filled(&mut **backend, k, &x), filled(&mut **backend, n, &start));
        let bias = backend.load_vector(&bias);
        backend.matmul(input, matrix, Some(bias), epilogue, out);
        let what = format!("{} {rows} x {n} x {k} in {compute:?}, scales of {grid:?}", backend.describe());
        check(&what, backend.read(out), &want, |index| relative * size[index]);
    }
}

#[test]
fn shapes_and_scales() {
    let shapes = [[96, 48], [272, 256], [544, 960], [1, 2], [17, 33], [64, 31], [130, 384]];
    let mut backends = backends();
    for (number, grid) in GRIDS.into_iter().enumerate() {
        for (index, shape) in shapes.into_iter().enumerate() {
            for rows in [1, 2, 3, 5, 16, 17, 33, 150].into_iter().skip((index + number) % 2) {
                let compute = [DType::F32, DType::Bf16][(rows + index) % 2];
                let epilogue = if rows % 3 == 0 { Epilogue::Accumulate } else { Epilogue::Store };
                run(&mut backends, &Case { rows, shape, grid, compute, input: InputRounding::None, epilogue });
            }
        }
    }
}

#[test]
fn deep_products_change_scales_in_time() {
    let mut backends = backends();
    for grid in GRIDS {
        for rows in [1, 4, 13] {
            let (shape, compute) = ([48, 5000], DType::F32);
            let case = Case { rows, shape, grid, compute, input: InputRounding::None, epilogue: Epilogue::Store };
            run(&mut backends, &case);
        }
    }
}

#[test]
fn every_code_counts() {
    let codes: Vec<u8> = (0..=255).filter(|code| code & 0x7f != e4m3::NAN).collect();
    let numbers: Vec<f32> = codes.iter().map(|&code| e4m3::decode(code)).collect();
    let (rows, format) =
        (codes.len(), WeightFormat::ScaledE4m3 { scale_cols: ALL_COLUMNS, input: InputRounding::None });
    for mut backend in backends().into_iter().filter(|backend| backend.multiplies(format, MatrixUse::Linear)) {
        let scale_rows = vec![0; rows];
        let (scale_cols, input) = (ALL_COLUMNS, InputRounding::None);
        let codes = ScaledCodes { codes: &codes, scales: &[1.0], scale_rows: &scale_rows, scale_cols, input };
        let matrix = HostMatrix { rows, cols: 1, encoding: Encoding::Scaled(codes) };
        let matrix = backend.load_matrix(matrix, DType::F32);
        let (x, out) = (filled(&mut *backend, 1, &[1.0]), filled(&mut *backend, rows, &vec![f32::NAN; rows]));
        backend.matmul(x, matrix, None, Epilogue::Store, out);
        let what = backend.describe();
        assert_eq!(backend.read(out), numbers, "{what}");
    }
}

#[test]
fn inputs_are_rounded_where_that_is_asked_for() {
    let mut backends = backends();
    let inputs = [
        InputRounding::Static(0.02),
        InputRounding::Dynamic { cols: ALL_COLUMNS },
        InputRounding::Dynamic { cols: 128 },
        InputRounding::StaticInt8(0.01),
        InputRounding::DynamicInt8 { outliers: f32::INFINITY },
        InputRounding::DynamicInt8 { outliers: 0.8 },
    ];
    for input in inputs {
        for rows in [1, 3, 20] {
            let (shape, compute, epilogue) = ([96, 384], DType::F32, Epilogue::Store);
            run(&mut backends, &Case { rows, shape, grid: GRIDS[1], compute, input, epilogue });
        }
    }
}

/// A device may multiply codes by codes where all of a row share a scale on both sides.
#[test]
fn codes_times_codes() {
    let mut backends = backends();
    let inputs = [InputRounding::Static(0.01), InputRounding::Dynamic { cols: ALL_COLUMNS }];
    for (number, input) in inputs.into_iter().enumerate() {
        for (index, shape) in [[96, 384], [272, 200], [48, 72], [130, 256]].into_iter().enumerate() {
            for rows in [17, 32, 70, 100, 150, 300].into_iter().skip((number + index) % 2).step_by(2) {
                let (grid, compute) = (GRIDS[number], [DType::Bf16, DType::F16][index % 2]);
                let epilogue = if rows % 3 == 0 { Epilogue::Accumulate } else { Epilogue::Store };
                run(&mut backends, &Case { rows, shape, grid, compute, input, epilogue });
            }
        }
        // Large enough to be cut into parts of k, the last of which ends within a step.
        let (shape, epilogue) = ([[2880, 1600], [3848, 1600]][number], [Epilogue::Accumulate, Epilogue::Store][number]);
        let (grid, compute) = (GRIDS[number], [DType::Bf16, DType::F16][number]);
        run(&mut backends, &Case { rows: 33, shape, grid, compute, input, epilogue });
        let (shape, grid, compute, epilogue) = ([64, 160], GRIDS[number], DType::Bf16, Epilogue::Accumulate);
        run(&mut backends, &Case { rows: 2100, shape, grid, compute, input, epilogue });
    }
}

/// Inputs that a device keeps in 16 bits: it multiplies them as they are.
#[test]
fn inputs_of_16_bits() {
    for mut backend in backends() {
        for (dtype, grid) in [(DType::Bf16, GRIDS[0]), (DType::F16, GRIDS[1]), (DType::Bf16, GRIDS[2])] {
            for (rows, [n, k]) in [(1, [72, 256]), (5, [130, 400]), (8, [64, 48]), (9, [72, 256]), (150, [130, 400])] {
                short_inputs(&mut *backend, dtype, rows, &Stored::new([n, k], grid, &mut Random(rows as u64)));
            }
        }
    }
}

fn short_inputs(backend: &mut dyn Backend, dtype: DType, rows: usize, stored: &Stored) {
    let (n, k) = (stored.scale_rows.len(), stored.cols);
    let x: Vec<f32> = Random(7).values(rows * k).into_iter().map(|x| round(x, dtype)).collect();
    let (mut want, mut size) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for col in 0..n {
            let terms = (0..k).map(|at| f64::from(x[row * k + at]) * stored.value(col, at));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            want.push(sum);
            size.push(magnitude);
        }
    }
    let matrix = backend.load_matrix(stored.piece(0..n, InputRounding::None), dtype);
    let (input, out) = (filled_in(backend, k, &x, dtype), filled(backend, n, &vec![f32::NAN; rows * n]));
    backend.matmul(input, matrix, None, Epilogue::Store, out);
    let what = format!("{} {rows} x {n} x {k} of {dtype:?}", backend.describe());
    // A device may round each weight of a product of many rows to what it multiplies.
    let relative = if rows > 32 { super::rounded::step(dtype) } else { 1e-5 };
    check(&what, backend.read(out), &want, |index| relative * size[index]);
}

/// The same bits alone and among others: a row's result depends on the row.
#[test]
fn rows_do_not_depend_on_each_other() {
    let format = WeightFormat::ScaledE4m3 { scale_cols: 128, input: InputRounding::None };
    for mut backend in backends().into_iter().filter(|backend| backend.multiplies(format, MatrixUse::Linear)) {
        let mut random = Random(9);
        let stored = Stored::new([80, 640], [128, 128], &mut random);
        let matrix = backend.load_matrix(stored.piece(0..80, InputRounding::None), DType::F32);
        let x = random.values(40 * 640);
        let mut product = |rows: std::ops::Range<usize>| {
            let x = filled(&mut *backend, 640, &x[rows.start * 640..rows.end * 640]);
            let out = filled(&mut *backend, 80, &vec![0.0; rows.len() * 80]);
            backend.matmul(x, matrix, None, Epilogue::Store, out);
            backend.read(out).to_vec()
        };
        let all = product(0..40);
        for rows in [0..1, 7..9, 11..27, 39..40] {
            assert_eq!(product(rows.clone()), all[rows.start * 80..rows.end * 80], "{rows:?}");
        }
    }
}

#[test]
fn experts_are_scaled_too() {
    const SHAPE: [usize; 2] = [48, 256];
    const EXPERTS: usize = 4;
    let format = WeightFormat::ScaledE4m3 { scale_cols: 128, input: InputRounding::None };
    for mut backend in backends().into_iter().filter(|backend| backend.multiplies(format, MatrixUse::Experts)) {
        for rows in [1, 9, 40] {
            let mut random = Random(rows as u64);
            let experts: Vec<Stored> = (0..EXPERTS).map(|_| Stored::new(SHAPE, [128, 128], &mut random)).collect();
            let load =
                |expert: &Stored| backend.load_matrix(expert.piece(0..SHAPE[0], InputRounding::None), DType::F32);
            let members: Vec<_> = experts.iter().map(load).collect();
            let group = backend.group_matrices(&members, MatrixUse::Experts);
            let (x, logits) = (random.values(rows * SHAPE[1]), random.values(rows * EXPERTS));
            let choice = route(&mut *backend, EXPERTS, &logits, PLAIN);
            let (input, out) = (filled(&mut *backend, SHAPE[1], &x), backend.new_act(rows * 2, SHAPE[0]));
            backend.expert_matmul(input, group, None, choice, out);
            let mut want = Vec::new();
            for (x, logits) in x.chunks(SHAPE[1]).zip(logits.chunks(EXPERTS)) {
                let mut order: Vec<usize> = (0..EXPERTS).collect();
                order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
                let product = |expert: usize, col: usize| -> f64 {
                    x.iter().zip(0..).map(|(x, at)| f64::from(*x) * experts[expert].value(col, at)).sum()
                };
                want.extend(
                    order[..2]
                        .iter()
                        .flat_map(|&expert| (0..SHAPE[0]).map(move |col| (expert, col)))
                        .map(|(expert, col)| product(expert, col)),
                );
            }
            let what = backend.describe();
            check(&what, backend.read(out), &want, |_| 1e-3);
        }
    }
}
