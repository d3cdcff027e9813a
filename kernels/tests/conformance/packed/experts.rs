//! Mixtures of experts whose weights are kept in 4 or 8 bits, on every device that does so, against float64: as many
//! rows as choose each kind of tile, gates, biases, and shapes that end anywhere.

use super::{E2M1, FORMAT as INT4, Stored};
use crate::moe::{Layer, gated, unbalanced};
use crate::rounded::step;
use crate::scaled::rounded;
use crate::{backends, begin_rows, check, filled_in};
use kernels::decode::decode;
use kernels::ops::{
    ALL_COLUMNS, Activation, Backend, CodeBits, DType, Encoding, GatedExperts, GroupedFormat, HostMatrix,
    InputRounding, Levels, MatrixGroup, MatrixUse, ScaledCodes, WeightFormat, Zeros,
};

/// Shapes, experts, and rows that make tiles of 1 to 320 rows on some device.
const LAYERS: [((usize, usize), usize, usize); 9] = [
    ((144, 200), 4, 1),
    ((64, 96), 8, 7),
    ((136, 72), 8, 30),
    ((160, 200), 8, 70),
    ((336, 64), 8, 90),
    ((192, 520), 8, 150),
    ((144, 200), 4, 300),
    ((160, 72), 3, 700),
    ((224, 584), 3, 600),
];

/// The same for weights in blocks.
const LAYERS_IN_BLOCKS: [((usize, usize), usize, usize); 8] = [
    ((144, 256), 4, 1),
    ((64, 128), 8, 30),
    ((288, 384), 5, 70),
    ((336, 128), 5, 90),
    ((512, 640), 4, 150),
    ((160, 1152), 4, 300),
    ((288, 256), 3, 700),
    ((272, 200), 3, 300),
];

/// What is stored.
#[derive(Clone, Copy)]
enum Format {
    Grouped(GroupedFormat),
    /// 8-bit floats with a scale a row.
    Rows,
    /// The same with a scale for blocks of so many rows and 128 columns, for inputs that are rounded alike.
    Blocks(usize),
}

impl Format {
    fn stored(self) -> WeightFormat {
        match self {
            Self::Grouped(format) => WeightFormat::Grouped(format),
            Self::Rows => WeightFormat::ScaledE4m3 { scale_cols: ALL_COLUMNS, input: InputRounding::None },
            Self::Blocks(_) => {
                WeightFormat::ScaledE4m3 { scale_cols: 128, input: InputRounding::Dynamic { cols: 128 } }
            }
        }
    }

    fn layers(self) -> &'static [((usize, usize), usize, usize)] {
        if let Self::Blocks(_) = self { &LAYERS_IN_BLOCKS } else { &LAYERS }
    }

    /// Rows of a layer as a device multiplies them, which may leave those of 16 bits as they are where experts have
    /// few.
    fn multiplied(self, backend: &dyn Backend, layer: &Layer, dtype: DType) -> Layer {
        const FEW: usize = 24;
        let (rows, [_, k], format) = (layer.rows(), layer.shape(), self.stored());
        let gains = dtype != DType::F32 && backend.gains_by_rounding(format, MatrixUse::Experts, k, dtype);
        let leaves = gains && rows * 2 / layer.experts() <= FEW;
        layer.with_x(rounded(layer.x(), k, if leaves { InputRounding::None } else { format.input() }))
    }
}

/// Experts as they are stored.
enum Experts {
    Grouped(Vec<Stored>),
    Scaled(ScaledExperts),
}

/// 8-bit floats, whose scales lie in the same way in each expert.
struct ScaledExperts {
    stored: Vec<Stored>,
    scales: Vec<f32>,
    scale_rows: Vec<u32>,
    scale_cols: usize,
    input: InputRounding,
}

impl Experts {
    fn new(layer: &Layer, format: Format) -> Self {
        let [n, k] = layer.shape();
        let bytes = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, ..INT4 };
        // Each expert's matrix is a part of a larger one: they differ.
        let stored = |format| (0..layer.experts()).map(|_| Stored::new([n * layer.experts(), k], format)).collect();
        let scaled = |each: usize, scale_cols, input| {
            let scales = n.div_ceil(each) * k.div_ceil(scale_cols);
            Self::Scaled(ScaledExperts {
                stored: stored(bytes),
                scales: (0..scales).map(|at| (at % 7 + 1) as f32 / 512.0).collect(),
                scale_rows: (0..n).map(|row| (row / each) as u32).collect(),
                scale_cols,
                input,
            })
        };
        match format {
            Format::Grouped(format) => Self::Grouped(stored(format)),
            Format::Rows => scaled(1, ALL_COLUMNS, InputRounding::None),
            Format::Blocks(each) => scaled(each, 128, format.stored().input()),
        }
    }

    fn matrix<'a>(&'a self, expert: usize, [n, k]: [usize; 2], codes: &'a mut Vec<u8>) -> HostMatrix<'a> {
        let rows = expert * n..(expert + 1) * n;
        match self {
            Self::Grouped(stored) => stored[expert].piece(rows),
            Self::Scaled(ScaledExperts { stored, scales, scale_rows, scale_cols, input }) => {
                // None of them NaN.
                codes.extend(stored[expert].piece(rows).bytes().iter().map(|code| code & 0xb7));
                let codes = ScaledCodes { codes, scales, scale_rows, scale_cols: *scale_cols, input: *input };
                HostMatrix { rows: n, cols: k, encoding: Encoding::Scaled(codes) }
            }
        }
    }

    /// Their numbers.
    fn values(&self, layer: &Layer) -> Vec<Vec<f32>> {
        let [n, k] = layer.shape();
        let values = |expert| {
            let (mut values, mut codes) = (vec![f32::NAN; n * k], Vec::new());
            decode(&self.matrix(expert, [n, k], &mut codes), 0..n, &mut values);
            values
        };
        (0..layer.experts()).map(values).collect()
    }

    fn load(&self, backend: &mut dyn Backend, layer: &Layer, compute: DType) -> MatrixGroup {
        let load = |expert| {
            let mut codes = Vec::new();
            backend.load_matrix(self.matrix(expert, layer.shape(), &mut codes), compute)
        };
        let members: Vec<_> = (0..layer.experts()).map(load).collect();
        backend.group_matrices(&members, MatrixUse::Experts)
    }
}

fn check_format(format: Format) {
    let mut backends = backends();
    backends.retain(|backend| backend.multiplies(format.stored(), MatrixUse::Experts));
    for &(shape, experts, rows) in format.layers() {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let mut layer = unbalanced(shape, experts, rows, dtype);
            let packed = Experts::new(&layer, format);
            layer.set_values(packed.values(&layer));
            for backend in &mut backends {
                let want = format.multiplied(&**backend, &layer, dtype);
                check_products(&mut **backend, [&layer, &want], &packed, dtype);
                check_gates(&mut **backend, [&layer, &want], &packed, dtype);
            }
        }
    }
}

/// What rounding weights, inputs and outputs costs, relative to the sum of all sizes. A CPU may multiply in bf16.
fn relative(dtype: DType) -> f64 {
    if dtype == DType::F32 { 1e-5 } else { 4.5 * step(DType::Bf16) }
}

fn check_products(backend: &mut dyn Backend, [layer, multiplied]: [&Layer; 2], packed: &Experts, dtype: DType) {
    let (want, sizes, rows) = (multiplied.products(layer.rows()).concat(), layer.sizes().concat(), layer.rows());
    let (group, choice) = (packed.load(backend, layer, dtype), layer.choose(backend, 0..rows));
    let bias = backend.load_vector(layer.bias());
    let [n, k] = layer.shape();
    for output in [dtype, DType::F32] {
        let x = filled_in(backend, k, layer.x(), dtype);
        let out = filled_in(backend, n, &vec![f32::NAN; want.len()], output);
        begin_rows(backend, rows);
        backend.expert_matmul(x, group, Some(bias), choice, out);
        let what = format!("{} [{n}, {k}], {rows} rows, {dtype:?} to {output:?}", backend.describe());
        check(&what, backend.read(out), &want, |index| relative(dtype) * (sizes[index] + 1.0));
    }
}

fn check_gates(backend: &mut dyn Backend, [layer, multiplied]: [&Layer; 2], packed: &Experts, dtype: DType) {
    let ([n, k], rows) = (layer.shape(), layer.rows());
    let (products, sizes) = (multiplied.products(rows), layer.sizes());
    let pairs = |rows: &[Vec<f64>]| -> Vec<(f64, f64)> {
        rows.iter().flat_map(|row| row[..n / 2].iter().copied().zip(row[n / 2..].iter().copied())).collect()
    };
    let activation = [Activation::Silu, Activation::ClampedSwiGlu { limit: 3.0 }][rows % 2];
    let want: Vec<f64> = pairs(&products).into_iter().map(|(gate, up)| gated(activation, gate, up)).collect();
    let sizes: Vec<f64> = pairs(&sizes).into_iter().map(|(gate, up)| (gate + 1.0) * (up + 1.0)).collect();
    let (w, choice) = (packed.load(backend, layer, dtype), layer.choose(backend, 0..rows));
    let bias = Some(backend.load_vector(layer.bias()));
    let x = filled_in(backend, k, layer.x(), dtype);
    let raised = filled_in(backend, n, &vec![f32::NAN; 2 * want.len()], dtype);
    let out = filled_in(backend, n / 2, &vec![f32::NAN; want.len()], dtype);
    begin_rows(backend, rows);
    backend.gated_experts(x, GatedExperts { w, bias, activation, raised, reader: None }, choice, out);
    let what = format!("{} [{n}, {k}] gated, {rows} rows, {dtype:?}", backend.describe());
    check(&what, backend.read(out), &want, |index| 2.0 * relative(dtype) * sizes[index]);
}

#[test]
fn codes_of_4_bits() {
    check_format(Format::Grouped(INT4));
    let levels = Levels::Integers(Zeros::Stored);
    check_format(Format::Grouped(GroupedFormat { group: 32, levels, ..INT4 }));
}

#[test]
fn levels_of_4_bits() {
    let levels = Levels::Shared(std::array::from_fn(|level| (level as f32 - 7.3).powi(3) / 300.0));
    check_format(Format::Grouped(GroupedFormat { group: 64, scales: DType::F32, levels, ..INT4 }));
}

/// MXFP4's numbers and groups, and NVFP4's.
#[test]
fn floats_of_4_bits() {
    let levels = Levels::Shared(E2M1);
    check_format(Format::Grouped(GroupedFormat { group: 32, scales: DType::Bf16, levels, ..INT4 }));
    check_format(Format::Grouped(GroupedFormat { group: 16, scales: DType::F32, levels, ..INT4 }));
}

#[test]
fn codes_of_8_bits() {
    check_format(Format::Grouped(GroupedFormat {
        bits: CodeBits::Eight,
        group: ALL_COLUMNS,
        scales: DType::F32,
        ..INT4
    }));
}

#[test]
fn floats_of_8_bits() {
    check_format(Format::Rows);
}

/// A device may multiply codes by codes where experts have many rows.
#[test]
fn blocks_of_8_bit_floats() {
    check_format(Format::Blocks(128));
    check_format(Format::Blocks(16));
    // Rows of a tile have scales of their own.
    check_format(Format::Blocks(1));
}

/// Experts that alone read what others gave get the same bits, however a device hands that on.
#[test]
fn readers() {
    let levels = Levels::Shared(E2M1);
    let floats = Format::Grouped(GroupedFormat { group: 32, scales: DType::Bf16, levels, ..INT4 });
    for format in [floats, Format::Blocks(128), Format::Grouped(INT4)] {
        let mut backends = backends();
        backends.retain(|backend| backend.multiplies(format.stored(), MatrixUse::Experts));
        for ([hidden, inner], experts, rows) in [([192, 128], 4, 1), ([200, 256], 8, 200), ([256, 384], 3, 700)] {
            for dtype in [DType::Bf16, DType::F16] {
                let layers = [
                    unbalanced((2 * inner, hidden), experts, rows, dtype),
                    unbalanced((hidden, inner), experts, rows, dtype),
                ];
                let packed = layers.each_ref().map(|layer| Experts::new(layer, format));
                for backend in &mut backends {
                    check_reader(&mut **backend, &layers, &packed, dtype);
                }
            }
        }
    }
}

fn check_reader(backend: &mut dyn Backend, layers: &[Layer; 2], packed: &[Experts; 2], dtype: DType) {
    let [layer, next] = layers;
    let ([n, hidden], rows) = (layer.shape(), layer.rows());
    let [w, down] = [0, 1].map(|i| packed[i].load(backend, &layers[i], dtype));
    let choice = layer.choose(backend, 0..rows);
    let [bias, next_bias] = [layer, next].map(|layer| Some(backend.load_vector(layer.bias())));
    let x = filled_in(backend, hidden, layer.x(), dtype);
    let nothing = |width| vec![f32::NAN; 2 * rows * width];
    let given = [None, Some(down)].map(|reader| {
        let raised = filled_in(backend, n, &nothing(n), dtype);
        let inner = filled_in(backend, n / 2, &nothing(n / 2), dtype);
        let out = filled_in(backend, hidden, &nothing(hidden), dtype);
        begin_rows(backend, rows);
        let experts = GatedExperts { w, bias, activation: Activation::Silu, raised, reader };
        backend.gated_experts(x, experts, choice, inner);
        backend.expert_matmul(inner, down, next_bias, choice, out);
        backend.read(out).to_vec()
    });
    let what = format!("{} [{n}, {hidden}], {rows} rows, {dtype:?}", backend.describe());
    assert!(given[0].iter().all(|x| x.is_finite()), "{what}");
    assert!(given[0] == given[1], "{what}");
}
