//! Deltas of `[gate | up]`, and the gate of what they give.

use super::*;

/// One step's gated rows, with a product before the deltas.
fn gated(
    backend: &mut dyn Backend,
    (w, site): (kernels::ops::Matrix, LoraSite),
    dtype: DType,
    rows: &[(usize, Option<u32>)],
    (x_rows, width): (&[f32], usize),
) -> Vec<f32> {
    let count: usize = rows.iter().map(|(rows, _)| rows).sum();
    let x = filled_in(backend, x_rows.len() / count, x_rows, dtype);
    let gate_up = filled_in(backend, 2 * width, &vec![f32::NAN; count * 2 * width], dtype);
    let out = filled_in(backend, width, &vec![f32::NAN; count * width], dtype);
    begin_sequences(backend, rows);
    backend.host_mut(x).copy_from_slice(x_rows);
    backend.matmul(x, w, None, Epilogue::Store, gate_up);
    backend.lora(x, site, gate_up);
    backend.gated(gate_up, Activation::Silu, out);
    backend.read(out).to_vec()
}

/// Gates of rows against float64.
fn check_gates(
    backend: &mut dyn Backend,
    dtype: DType,
    [inputs, width]: [usize; 2],
    (ranks, max_rank): (Ranks, usize),
    cases: &[&[(usize, Option<u32>)]],
) {
    let mut random = Random((inputs * width) as u64);
    let numbers = |random: &mut Random, count: usize, scale: f32| -> Vec<f32> {
        random.values(count).iter().map(|x| round(x * scale, dtype)).collect()
    };
    let w = numbers(&mut random, 2 * width * inputs, 1.0);
    let matrix = backend.load_matrix(host(dtype, 2 * width, inputs, &encode(&w, dtype).0), dtype);
    let outputs = [width; 2];
    let adapters = adapters(&mut random, inputs, &outputs, dtype, ranks);
    let site = put(backend, [inputs, max_rank], &outputs, dtype, &adapters);
    for rows in cases {
        let slots: Vec<Option<u32>> = rows.iter().flat_map(|(rows, slot)| vec![*slot; *rows]).collect();
        let x = numbers(&mut random, slots.len() * inputs, 0.1);
        let got = gated(backend, (matrix, site), dtype, rows, (&x, width));
        let want = slots.iter().zip(x.chunks(inputs)).flat_map(|(slot, x)| {
            let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
            let base: Vec<f64> = w.chunks(inputs).map(dot).collect();
            let delta = slot.map(|slot| delta(x, &adapters[slot as usize], &outputs));
            let delta = delta.unwrap_or_else(|| vec![0.0; 2 * width]);
            let sum: Vec<f64> = base.iter().zip(delta).map(|(base, delta)| base + delta).collect();
            let gate = |i: usize| sum[i] / (1.0 + (-sum[i]).exp()) * sum[width + i];
            (0..width).map(gate).collect::<Vec<f64>>()
        });
        let want: Vec<f64> = want.collect();
        let relative = if dtype == DType::F32 { 1e-5 } else { 4.0 * step(dtype) };
        // A gate or what it is multiplied with may be a small difference of large numbers.
        let far = |index: usize| relative * (want[index].abs() + 60.0);
        let what = format!("gates of {} rows of {width} from {inputs} in {dtype:?}", slots.len());
        check(&what, &got, &want, far);
    }
}

const ONE: [(usize, Option<u32>); 1] = [(1, Some(0))];
const FEW: [(usize, Option<u32>); 4] = [(1, Some(2)), (3, None), (5, Some(1)), (3, Some(0))];
const MORE: [(usize, Option<u32>); 5] = [(17, Some(1)), (3, None), (1, Some(2)), (18, Some(0)), (2, Some(2))];
const MANY: [(usize, Option<u32>); 3] = [(700, Some(1)), (3, None), (40, Some(2))];

#[test]
fn gates_of_rows_with_and_without_adapters() {
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for width in [48, 200, 33] {
                let cases = [&ONE[..], &FEW, &ROWS, &MANY];
                check_gates(&mut *backend, dtype, [520, width], (RANKS, MAX_RANK), &cases);
            }
        }
    }
}

/// Products of some rows add deltas themselves: inputs in parts, matrices of many rows, and ranks that are too high.
#[test]
fn gates_of_some_rows_with_adapters() {
    let twenty = [(9, Some(2)), (11, Some(0))];
    let sixty = [(30, Some(0)), (1, None), (12, Some(2)), (17, Some(1)), (3, Some(0)), (1, Some(2))];
    let high = [[Some(64), Some(17), None], [Some(32), None, None], [Some(3), Some(64), None]];
    for mut backend in backends() {
        for dtype in [DType::Bf16, DType::F16] {
            for shape in [[576, 48], [576, 200], [64, 8], [128, 4400]] {
                let cases = [&FEW[..], &twenty, &MORE, &sixty];
                check_gates(&mut *backend, dtype, shape, (RANKS, MAX_RANK), &cases);
            }
            check_gates(&mut *backend, dtype, [576, 200], (high, 64), &[&ONE[..], &FEW, &sixty]);
        }
    }
}
