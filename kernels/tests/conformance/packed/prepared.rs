//! Inputs of quantized products, written as the products read them by the norms and gates that make them: the same bits
//! as by a pass of their own, which a look at the rows brings back.

use super::{FORMAT, Stored, devices};
use crate::{Random, check_same, filled, filled_in};
use kernels::e4m3;
use kernels::ops::{
    ALL_COLUMNS, Activation, Backend, CodeBits, DType, Encoding, Epilogue, GroupedFormat, HostMatrix, InputRounding,
    Matrix, MatrixUse, Norm, NormKind, ScaledCodes, WeightFormat,
};

/// Columns of the residual stream, and of what is gated.
const SHAPES: [[usize; 2]; 4] = [[256, 384], [200, 64], [96, 160], [8448, 128]];
/// No product has a kernel for codes up to 16, a kernel that gates and prepares up to 2,048.
const ROWS: [usize; 5] = [9, 17, 70, 300, 2100];

/// What makes the rows that are multiplied first.
#[derive(Clone, Copy, Debug)]
enum Before {
    Norm,
    AddNorm,
    NormAddNorm,
}

const INT8: GroupedFormat = GroupedFormat { bits: CodeBits::Eight, group: ALL_COLUMNS, ..FORMAT };

/// Formats on whose products inputs are codes, of scales that are each row's own or not; and reordered numbers.
fn formats() -> Vec<WeightFormat> {
    let floats = [InputRounding::Dynamic { cols: ALL_COLUMNS }, InputRounding::Static(0.02)];
    let integers = [InputRounding::DynamicInt8 { outliers: f32::INFINITY }, InputRounding::StaticInt8(0.03)];
    let floats = floats.map(|input| WeightFormat::ScaledE4m3 { scale_cols: ALL_COLUMNS, input });
    let integers = integers.map(|input| WeightFormat::Grouped(GroupedFormat { input, ..INT8 }));
    floats.into_iter().chain(integers).chain([WeightFormat::Grouped(FORMAT)]).collect()
}

fn load(device: &mut dyn Backend, format: WeightFormat, [n, k]: [usize; 2], dtype: DType) -> Matrix {
    match format {
        WeightFormat::Grouped(format) => device.load_matrix(Stored::new([n, k], format).piece(0..n), dtype),
        WeightFormat::ScaledE4m3 { scale_cols, input } => {
            let mut random = Random((n + k) as u64);
            let codes: Vec<u8> = random.values(n * k).into_iter().map(|value| e4m3::encode(value * 100.0)).collect();
            let scales: Vec<f32> = random.values(n).into_iter().map(|value| (value.abs() + 0.1) / 300.0).collect();
            let scale_rows: Vec<u32> = (0..n as u32).collect();
            let codes = ScaledCodes { codes: &codes, scales: &scales, scale_rows: &scale_rows, scale_cols, input };
            device.load_matrix(HostMatrix { rows: n, cols: k, encoding: Encoding::Scaled(codes) }, dtype)
        }
        other => panic!("{other:?}"),
    }
}

/// A norm, a gated product of it, and a product of that.
struct Case {
    rows: usize,
    shape: [usize; 2],
    format: WeightFormat,
    dtype: DType,
    before: Before,
    kind: NormKind,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, shape, format, dtype, before, kind } = self;
        write!(f, "{rows} rows of {shape:?} after {before:?} ({kind:?}) in {dtype:?}, {format:?}")
    }
}

/// What is left of it, and the kernels that were launched.
struct Given {
    rows: [Vec<f32>; 4],
    launched: Vec<String>,
}

impl Given {
    fn count(&self, kernel: &str) -> usize {
        self.launched.iter().filter(|name| name.starts_with(kernel)).count()
    }

    /// Kernels that prepare an input and do nothing else.
    fn passes(&self) -> usize {
        self.count("quantize_input") + self.count("reorder_input")
    }
}

impl Case {
    fn load(&self, device: &mut dyn Backend) -> ([Matrix; 2], [Norm; 2]) {
        let [width, inner] = self.shape;
        let matrices = [[2 * inner, width], [width, inner]].map(|shape| load(device, self.format, shape, self.dtype));
        let mut random = Random(width as u64);
        let norms = [(); 2].map(|()| {
            let weight: Vec<f32> = random.values(width).iter().map(|weight| 1.0 + 0.5 * weight).collect();
            let weight = Some(device.load_vector(&weight));
            Norm { kind: self.kind, weight, bias: None, eps: 1e-5 }
        });
        (matrices, norms)
    }

    /// `looks`: whether rows that products multiply are looked at before.
    fn run(&self, device: &mut dyn Backend, (matrices, norms): ([Matrix; 2], [Norm; 2]), looks: bool) -> Given {
        let ([width, inner], rows, dtype) = (self.shape, self.rows, self.dtype);
        let mut random = Random(rows as u64);
        let poisoned = |device: &mut dyn Backend, width: usize, dtype| {
            filled_in(device, width, &vec![f32::NAN; rows * width], dtype)
        };
        let [normed, both, gated] = [width, 2 * inner, inner].map(|width| poisoned(device, width, dtype));
        let out = poisoned(device, width, DType::F32);
        let [residual, delta] = [(); 2].map(|()| filled(device, width, &random.values(rows * width)));
        device.start_profile();
        match self.before {
            Before::Norm => device.norm(residual, norms[1], normed),
            Before::AddNorm => device.add_norm(residual, delta, norms[1], normed),
            Before::NormAddNorm => {
                device.norm(delta, norms[0], delta);
                device.add_norm(residual, delta, norms[1], normed);
            }
        }
        if looks {
            device.read(normed);
        }
        device.matmul(normed, matrices[0], None, Epilogue::Store, both);
        device.gated(both, Activation::Silu, gated);
        if looks {
            device.read(gated);
        }
        device.matmul(gated, matrices[1], None, Epilogue::Store, out);
        let rows = [residual, normed, gated, out].map(|act| device.read(act).to_vec());
        Given { rows, launched: device.end_profile().into_iter().map(|timing| timing.name).collect() }
    }

    /// Whether the first product's input is codes or reordered.
    fn reads_prepared(&self) -> bool {
        let codes = self.format.input() != InputRounding::None;
        self.rows > 16 && (codes || self.rows <= 2048)
    }

    /// The passes that are left: of gated rows where a kernel that knows parts of them cannot end them.
    fn passes(&self) -> usize {
        let dynamic = matches!(self.format.input(), InputRounding::Dynamic { .. } | InputRounding::DynamicInt8 { .. });
        let gated_apart = dynamic || self.rows > 2048 || !self.shape[1].is_multiple_of(128);
        usize::from(self.reads_prepared() && gated_apart)
    }
}

fn check(device: &mut dyn Backend, case: &Case, is_hopper: bool) {
    let loaded = case.load(device);
    let [apart, at_once] = [true, false].map(|looks| case.run(device, loaded, looks));
    for (what, (at_once, apart)) in ["sum", "norm", "gate", "product"].iter().zip(at_once.rows.iter().zip(&apart.rows))
    {
        assert!(apart.iter().all(|value| value.is_finite()), "{what} of {case}");
        check_same(&format!("{what} of {case}"), at_once, apart);
    }
    if !is_hopper || apart.launched.is_empty() {
        return;
    }
    let prepared = usize::from(case.reads_prepared());
    assert_eq!((apart.count("norm_prepared"), apart.passes()), (0, 2 * prepared), "{case}: {:?}", apart.launched);
    let launched = (at_once.count("norm_prepared"), at_once.passes());
    assert_eq!(launched, (prepared, case.passes()), "{case}: {:?}", at_once.launched);
}

#[test]
fn norms_and_gates_write_what_products_read() {
    let makers = [Before::Norm, Before::AddNorm, Before::NormAddNorm];
    for (number, format) in formats().into_iter().enumerate() {
        for mut device in devices(format) {
            let int8 = WeightFormat::Grouped(GroupedFormat { input: InputRounding::StaticInt8(0.03), ..INT8 });
            let is_hopper = device.gains_by_rounding(int8, MatrixUse::Linear, 256, DType::Bf16);
            for (index, shape) in SHAPES.into_iter().enumerate() {
                for (turn, rows) in ROWS.into_iter().enumerate() {
                    // What codes of 8 bits and wide rows give is too large for f16.
                    let is_int8 = matches!(format, WeightFormat::Grouped(format) if format.bits == CodeBits::Eight);
                    let is_large = is_int8 || shape[0] > 1024;
                    let dtype = if is_large { DType::Bf16 } else { [DType::Bf16, DType::F16][(index + turn) % 2] };
                    let kind = if (turn + number) % 4 == 3 { NormKind::Layer } else { NormKind::Rms };
                    let case = Case { rows, shape, format, dtype, before: makers[(number + index + turn) % 3], kind };
                    check(&mut *device, &case, is_hopper);
                }
            }
        }
    }
}

/// A row's largest element is all that its scale depends on, wherever it is; a row of zeros has a scale of zero.
#[test]
fn rows_of_zeros_and_of_one_number_are_prepared() {
    let format = formats()[0];
    for mut device in devices(format) {
        let device = &mut *device;
        let (width, n, rows) = (256, 64, 20);
        let matrix = load(device, format, [n, width], DType::Bf16);
        let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
        let mut x = vec![0.0; rows * width];
        (1..rows).for_each(|row| x[row * width + row * 13 % width] = row as f32);
        let mut product = |looks: bool| {
            let normed = filled_in(device, width, &vec![f32::NAN; rows * width], DType::Bf16);
            let out = filled(device, n, &vec![f32::NAN; rows * n]);
            let x = filled(device, width, &x);
            device.norm(x, norm, normed);
            if looks {
                device.read(normed);
            }
            device.matmul(normed, matrix, None, Epilogue::Store, out);
            device.read(out).to_vec()
        };
        let (apart, at_once) = (product(true), product(false));
        assert!(apart[..n].iter().all(|value| *value == 0.0) && apart[n..].iter().any(|value| *value != 0.0));
        check_same("rows of one number", &at_once, &apart);
    }
}
