//! States in 16 bits: as exact as their type lets them be, rounded where steps end and nowhere else.

use super::{
    Convolution, DT_LIMIT, Delta, LENGTHS, LONG, Operation, PROMPTS, Selective, check_prompts, rounded_scan, run,
};
use crate::{Random, backends, check_same};
use kernels::ops::DType;

const TYPES: [DType; 2] = [DType::Bf16, DType::F16];

/// The root of the mean square of differences.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    (a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>() / a.len() as f64).sqrt()
}

/// With exact rows, outputs are much nearer to the reference whose state is rounded like that than that is to one whose
/// state is not: so each state is rounded to its type, once a step. Company changes no bit.
fn check(what: &str, mut operation: impl Operation) {
    for mut backend in backends() {
        let (width, _) = operation.widths();
        operation.load(&mut *backend);
        let mut random = Random(7);
        let inputs: Vec<Vec<Vec<f32>>> =
            LENGTHS.iter().map(|&rows| (0..rows).map(|_| random.values(width)).collect()).collect();
        for chunk in [1, 4] {
            let what = format!("{} {what}, {chunk} rows a step", backend.describe());
            let got = run(&mut *backend, &operation, &inputs, chunk);
            let [mut error, mut effect] = [0.0, 0.0];
            for (got, rows) in got.iter().zip(&inputs) {
                let got: Vec<f64> = got.iter().copied().map(f64::from).collect();
                let want = operation.reference(rows, &|row| (row + 1) % chunk == 0);
                error += distance(&got, &want);
                effect += distance(&operation.reference(rows, &|_| false), &want);
            }
            assert!(error < 0.1 * effect, "{what}: off by {error:e}, where rounding states changes {effect:e}");
            let alone = run(&mut *backend, &operation, &inputs[..1], chunk);
            check_same(&format!("{what}, alone"), &alone[0], &got[0]);
        }
    }
}

#[test]
fn convolutions_keep_16_bits() {
    for kept in TYPES {
        for (channels, kernel) in [(16, 4), (7, 2), (130, 8)] {
            let mut random = Random(channels as u64);
            let (taps, bias) = (random.values(channels * kernel), Some(random.values(channels)));
            check(
                &format!("convolution in {kept:?}"),
                Convolution { channels, kernel, taps, bias, kept, loaded: None },
            );
        }
    }
}

/// Of each kernel that walks rows one.
fn scan(shape: [usize; 4], each_value: bool, kept: DType) -> Selective {
    let [heads, .., state_dim] = shape;
    let mut random = Random(heads as u64);
    let decay = random.values(if each_value { heads * state_dim } else { heads });
    let decay = decay.iter().map(|x| -0.1 * x.abs() - 0.01).collect();
    let (skip, dt_bias) = (random.values(heads), Some(random.values(heads)));
    let (precision, first, rest, loaded) = (DType::F32, 4, 0, None);
    Selective { shape, decay, skip, dt_bias, dt_limit: DT_LIMIT, precision, first, rest, kept, loaded }
}

#[test]
fn scans_keep_16_bits() {
    for kept in TYPES {
        for (shape, each_value) in [
            ([132, 1, 1, 16], true),
            ([8, 16, 2, 16], false),
            ([3, 5, 1, 7], true),
            ([4, 64, 4, 128], false),
            ([2, 8, 1, 130], false),
        ] {
            check(&format!("scan of {shape:?} in {kept:?}"), scan(shape, each_value, kept));
        }
    }
}

#[test]
fn delta_rules_keep_16_bits() {
    for kept in TYPES {
        for shape in [[2, 4, 16, 16], [1, 3, 7, 5], [2, 2, 64, 128], [1, 2, 128, 36], [1, 1, 200, 24]] {
            let mut random = Random(shape[1] as u64);
            let rate = random.values(shape[1]).iter().map(|x| -0.1 * x.abs()).collect();
            let dt_bias = random.values(shape[1]);
            check(
                &format!("delta rule of {shape:?} in {kept:?}"),
                Delta { shape, rate, dt_bias, kept, loaded: None, qkv: None },
            );
        }
    }
}

/// Rows of 16 bits too, which a GPU may take in chunks: states are read before the first of a step, written after the
/// last, and between spans of a long one they stay exact.
#[test]
fn scans_of_prompts_keep_16_bits() {
    for kept in TYPES {
        for (precision, shape) in [
            (DType::Bf16, [6, 64, 1, 128]),
            (DType::Bf16, [2, 24, 1, 40]),
            (DType::F16, [2, 16, 1, 16]),
            (DType::F16, [2, 64, 1, 128]),
        ] {
            let mut scan = Selective { kept, ..rounded_scan(shape, precision, 8) };
            check_prompts(&mut scan, &PROMPTS, &[80, 33], std::slice::from_ref(&(2..5)));
        }
    }
    let mut scan = Selective { kept: DType::F16, ..rounded_scan([3, 64, 1, 128], DType::Bf16, 8) };
    check_prompts(&mut scan, &LONG, &[2048], std::slice::from_ref(&(2..3)));
}

/// Single rows, of as many heads as keep each block of a GPU busy with several parts of them in turn.
#[test]
fn scans_of_single_rows() {
    for kept in [DType::F32, DType::Bf16, DType::F16] {
        for precision in TYPES {
            let mut scan = Selective { kept, ..rounded_scan([64, 128, 1, 128], precision, 8) };
            check_prompts(&mut scan, &[3; 10], &[1], std::slice::from_ref(&(9..10)));
            for shape in [[2, 64, 2, 64], [3, 16, 1, 256], [2, 32, 1, 128]] {
                let mut scan = Selective { kept, ..rounded_scan(shape, precision, 8) };
                check_prompts(&mut scan, &[20, 1, 30], &[1, 17], std::slice::from_ref(&(2..3)));
            }
        }
    }
}

/// Why a state of 16 bits is f16 unless something else is asked for. It decays by a thousandth a row: bf16 rounds that
/// away, so that sums grow and then stand still; f16 keeps it.
#[test]
fn slow_decay_wants_more_bits_than_bf16_has() {
    const ROWS: usize = 4096;
    for mut backend in backends() {
        for (kept, expected) in [(DType::F32, 0.0..1e-4), (DType::F16, 1e-4..1e-2), (DType::Bf16, 0.1..1.0)] {
            let (shape, loaded) = ([1, 16, 1, 128], None);
            let (decay, skip, dt_limit) = (vec![-1.0], vec![0.0], (1e-3, 1e-3));
            let scan = Selective { shape, decay, skip, dt_limit, kept, loaded, ..scan(shape, false, kept) };
            let mut scan = Selective { dt_bias: None, ..scan };
            scan.load(&mut *backend);
            let mut random = Random(5);
            // As a convolution's SiLU leaves them.
            let mut row = || random.values(scan.widths().0).into_iter().map(|x| x / (1.0 + (-x).exp())).collect();
            let rows: Vec<Vec<f32>> = (0..ROWS).map(|_| row()).collect();
            let got = run(&mut *backend, &scan, std::slice::from_ref(&rows), 1);
            let got: Vec<f64> = got[0].iter().copied().map(f64::from).collect();
            let want = scan.reference(&rows, &|_| false);
            let error = distance(&got, &want) / distance(&vec![0.0; want.len()], &want);
            assert!(expected.contains(&error), "{}: off by {error:e} in {kept:?}", backend.describe());
        }
    }
}

/// What f16 has no room for becomes its largest number, so that no infinity stays in a slot.
#[test]
fn states_too_large_for_f16_stay_finite() {
    for mut backend in backends() {
        let mut scan = scan([4, 64, 4, 128], false, DType::F16);
        scan.load(&mut *backend);
        let (width, _) = scan.widths();
        let mut random = Random(3);
        let rows: Vec<Vec<f32>> = (0..6).map(|_| random.values(width).iter().map(|x| x * 1000.0).collect()).collect();
        let got = run(&mut *backend, &scan, std::slice::from_ref(&rows), 1);
        let want = scan.reference(&rows, &|_| true);
        let exact = scan.reference(&rows, &|_| false);
        let got: Vec<f64> = got[0].iter().copied().map(f64::from).collect();
        let (error, effect) = (distance(&got, &want), distance(&exact, &want));
        // NaN is no number below that.
        assert!(error < 1e-3 * effect, "{}: off by {error:e} of {effect:e}", backend.describe());
    }
}
