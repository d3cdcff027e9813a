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

#[test]
fn gates_of_rows_with_and_without_adapters() {
    const INPUTS: usize = 520;
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for width in [48, 200, 33] {
                let mut random = Random(width as u64);
                let numbers = |random: &mut Random, count: usize, scale: f32| -> Vec<f32> {
                    random.values(count).iter().map(|x| round(x * scale, dtype)).collect()
                };
                let w = numbers(&mut random, 2 * width * INPUTS, 0.05);
                let matrix = backend.load_matrix(host(dtype, 2 * width, INPUTS, &encode(&w, dtype).0), dtype);
                let outputs = [width; 2];
                let adapters = adapters(&mut random, INPUTS, &outputs, dtype, RANKS);
                let site = put(&mut *backend, [INPUTS, MAX_RANK], &outputs, dtype, &adapters);
                for rows in [vec![(1, Some(0))], ROWS.to_vec(), vec![(700, Some(1)), (3, None), (40, Some(2))]] {
                    let slots: Vec<Option<u32>> = rows.iter().flat_map(|(rows, slot)| vec![*slot; *rows]).collect();
                    let x = numbers(&mut random, slots.len() * INPUTS, 0.1);
                    let got = gated(&mut *backend, (matrix, site), dtype, &rows, (&x, width));
                    let want = slots.iter().zip(x.chunks(INPUTS)).flat_map(|(slot, x)| {
                        let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
                        let base: Vec<f64> = w.chunks(INPUTS).map(dot).collect();
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
                    check(&format!("gates in {dtype:?}"), &got, &want, far);
                }
            }
        }
    }
}
