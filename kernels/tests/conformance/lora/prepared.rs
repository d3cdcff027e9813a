//! Adapters beside a quantized product, whose input the norm before it also writes as codes: they read the rows.

use super::*;
use kernels::e4m3;
use kernels::ops::{
    ALL_COLUMNS, Encoding, HostMatrix, InputRounding, Matrix, MatrixUse, Norm, NormKind, ScaledCodes, WeightFormat,
};

const SHAPE: [usize; 2] = [160, 520];
const INPUT: InputRounding = InputRounding::Dynamic { cols: ALL_COLUMNS };
const FORMAT: WeightFormat = WeightFormat::ScaledE4m3 { scale_cols: ALL_COLUMNS, input: INPUT };

fn quantized(backend: &mut dyn Backend) -> Matrix {
    let [n, k] = SHAPE;
    let codes: Vec<u8> = Random(1).values(n * k).into_iter().map(|value| e4m3::encode(value * 100.0)).collect();
    let (scales, scale_rows) = (vec![0.0005; n], (0..n as u32).collect::<Vec<_>>());
    let codes =
        ScaledCodes { codes: &codes, scales: &scales, scale_rows: &scale_rows, scale_cols: ALL_COLUMNS, input: INPUT };
    backend.load_matrix(HostMatrix { rows: n, cols: k, encoding: Encoding::Scaled(codes) }, DType::Bf16)
}

#[test]
fn adapters_read_rows_that_are_codes_too() {
    for mut backend in backends().into_iter().filter(|backend| backend.multiplies(FORMAT, MatrixUse::Linear)) {
        let backend = &mut *backend;
        let ([n, k], count) = (SHAPE, ROWS.iter().map(|(rows, _)| rows).sum::<usize>());
        let (w, outputs) = (quantized(backend), [n - 60, 60]);
        let adapters = adapters(&mut Random(2), k, &outputs, DType::Bf16, RANKS);
        let site = put(backend, [k, MAX_RANK], &outputs, DType::Bf16, &adapters);
        let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
        let values = Random(3).values(count * k);
        let mut product = |rows: &[(usize, Option<u32>)], looks: bool| {
            let normed = filled_in(backend, k, &vec![f32::NAN; count * k], DType::Bf16);
            let out = filled_in(backend, n, &vec![f32::NAN; count * n], DType::Bf16);
            let x = filled(backend, k, &values);
            begin_sequences(backend, rows);
            backend.host_mut(x).copy_from_slice(&values);
            backend.start_profile();
            backend.norm(x, norm, normed);
            if looks {
                backend.read(normed);
            }
            backend.matmul(normed, w, None, Epilogue::Store, out);
            backend.lora(normed, site, out);
            let out = backend.read(out).to_vec();
            (out, backend.end_profile())
        };
        let ((apart, _), (at_once, launched)) = (product(&ROWS, true), product(&ROWS, false));
        check_same("a product and its deltas", &at_once, &apart);
        let (plain, _) = product(&ROWS.map(|(rows, _)| (rows, None)), false);
        assert!(plain[..n] != at_once[..n] && plain[n..2 * n] == at_once[n..2 * n], "deltas of rows with adapters");
        if backend.gains_by_rounding(FORMAT, MatrixUse::Linear, k, DType::Bf16) && !launched.is_empty() {
            let is_there = launched.iter().any(|timing| timing.name.starts_with("norm_prepared"));
            assert!(is_there, "{launched:?}");
        }
    }
}
