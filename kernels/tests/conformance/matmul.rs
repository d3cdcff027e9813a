//! Products against float64, for every weight type, many shapes, bias and accumulation.

use super::{Random, backends, check, check_relative, encode, filled, host, poisoned};
use kernels::ops::{Activation, Backend, DType, Epilogue};

const TYPES: [(DType, DType); 5] = [
    (DType::F32, DType::F32),
    (DType::Bf16, DType::F32),
    (DType::Bf16, DType::Bf16),
    (DType::F16, DType::F32),
    (DType::F16, DType::Bf16),
];

struct Case {
    rows: usize,
    n: usize,
    k: usize,
    weights: DType,
    compute: DType,
    bias: bool,
    epilogue: Epilogue,
}

fn run(backends: &mut [Box<dyn Backend>], case: &Case) {
    let Case { rows, n, k, weights, compute, bias, epilogue } = *case;
    let mut random = Random((rows * 31 + n * 7 + k) as u64);
    let (bytes, w) = encode(&random.values(n * k), weights);
    let (x, before, shift) = (random.values(rows * k), random.values(rows * n), random.values(n));
    let start = if epilogue == Epilogue::Store { vec![f32::NAN; rows * n] } else { before };
    let (mut want, mut size) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for col in 0..n {
            let terms = x[row * k..][..k].iter().zip(&w[col * k..][..k]).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let old = if epilogue == Epilogue::Store { 0.0 } else { f64::from(start[row * n + col]) };
            want.push(sum + old + if bias { f64::from(shift[col]) } else { 0.0 });
            size.push(magnitude + old.abs() + 1.0);
        }
    }
    // A rounded product is off by 2^-9 at most (of x); sums in f32 stay far below their bound of k * 2^-24.
    let relative = if compute == DType::Bf16 { 2.0_f64.powi(-9) } else { 1e-6 };
    for backend in backends {
        let matrix = backend.load_matrix(host(weights, n, k, &bytes), compute);
        let (input, out) = (filled(&mut **backend, k, &x), filled(&mut **backend, n, &start));
        let vector = bias.then(|| backend.load_vector(&shift));
        backend.matmul(input, matrix, vector, epilogue, out);
        let what = format!("{} {rows} x {n} x {k} {weights:?} in {compute:?}", backend.describe());
        check(&what, backend.read(out), &want, |index| relative * size[index]);
    }
}

#[test]
fn shapes_and_types() {
    let shapes = [(96, 48), (272, 224), (544, 960), (1, 1), (17, 33), (64, 31), (130, 64)];
    let mut backends = backends();
    for (weights, compute) in TYPES {
        for (index, (n, k)) in shapes.into_iter().enumerate() {
            for rows in [1, 2, 3, 5, 16, 17, 33].into_iter().skip(index % 2) {
                let (bias, epilogue) =
                    (rows % 2 == 1, if rows % 3 == 0 { Epilogue::Accumulate } else { Epilogue::Store });
                run(&mut backends, &Case { rows, n, k, weights, compute, bias, epilogue });
            }
        }
    }
}

#[test]
fn wide_and_deep() {
    let mut backends = backends();
    for (weights, compute) in TYPES {
        for (rows, n, k) in [(1, 8192, 48), (2, 96, 8192), (150, 96, 224)] {
            let case = Case { rows, n, k, weights, compute, bias: true, epilogue: Epilogue::Accumulate };
            run(&mut backends, &case);
        }
    }
}

#[test]
fn an_activation_may_belong_to_a_product() {
    for mut backend in backends() {
        for ((weights, compute), (rows, n, k)) in TYPES
            .into_iter()
            .flat_map(|types| [(1, 33, 40), (2, 272, 64), (7, 31, 33), (50, 272, 300)].map(|shape| (types, shape)))
        {
            let mut random = Random((rows + n + k) as u64);
            let matrix = backend.load_matrix(host(weights, n, k, &encode(&random.values(n * k), weights).0), compute);
            let bias = Some(backend.load_vector(&random.values(n)));
            let x = filled(&mut *backend, k, &random.values(rows * k));
            for activation in [Activation::Gelu, Activation::Relu, Activation::Silu] {
                let out = poisoned(&mut *backend, rows, n);
                backend.matmul(x, matrix, bias, Epilogue::Store, out);
                backend.activate(out, activation);
                let want: Vec<f64> = backend.read(out).iter().copied().map(f64::from).collect();
                backend.host_mut(out).fill(f32::NAN);
                backend.matmul_activated(x, matrix, bias, activation, out);
                let what = format!("{} {rows} x {n} x {k} {weights:?}, {activation:?}", backend.describe());
                check_relative(&what, backend.read(out), &want, 1e-6);
            }
        }
    }
}

#[test]
fn a_matrix_may_come_in_pieces() {
    const K: usize = 33;
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let bytes = encode(&Random(5).values(45 * K), dtype).0;
            let piece = |rows: std::ops::Range<usize>| {
                let size = K * dtype.size();
                host(dtype, rows.len(), K, &bytes[rows.start * size..rows.end * size])
            };
            let ways = [vec![piece(0..45)], vec![piece(0..16), piece(16..21), piece(21..21), piece(21..45)]];
            let x = filled(&mut *backend, K, &Random(6).values(2 * K));
            let [whole, stacked] = ways.map(|pieces| {
                let (matrix, out) = (backend.load_stack(&pieces, DType::F32), filled(&mut *backend, 45, &[0.0; 90]));
                backend.matmul(x, matrix, None, Epilogue::Store, out);
                backend.read(out).to_vec()
            });
            assert_eq!(whole, stacked, "{dtype:?}");
        }
    }
}

#[test]
#[should_panic(expected = "width of x")]
fn a_wrong_width_panics_with_both_shapes() {
    let mut backend = backends().remove(0);
    let matrix = backend.load_matrix(host(DType::F32, 2, 3, &[0; 24]), DType::F32);
    let (x, out) = (filled(&mut *backend, 4, &[0.0; 4]), filled(&mut *backend, 2, &[0.0; 2]));
    backend.matmul(x, matrix, None, Epilogue::Store, out);
}
