//! Operations on single rows: embedding, norms, gates, sums, picking.

use super::{
    Random, backends, begin_rows, check, check_relative, check_same, encode, filled, filled_in, host, poisoned, round,
};
use kernels::ops::{Activation, Backend, Batch, DType, Norm, NormKind, RowSelection};

const WIDTHS: [usize; 8] = [1, 7, 16, 48, 100, 224, 960, 2048];

#[test]
fn embedding_looks_up_scales_and_skips_strangers() {
    const ENTRIES: usize = 21;
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for width in WIDTHS {
                let (bytes, values) = encode(&Random(width as u64).values(ENTRIES * width), dtype);
                let rows = |rows: std::ops::Range<usize>| {
                    let size = width * dtype.size();
                    host(dtype, rows.len(), width, &bytes[rows.start * size..rows.end * size])
                };
                let matrix = backend.load_stack(&[rows(0..3), rows(3..ENTRIES)], dtype);
                let tables = [backend.load_table(rows(0..ENTRIES)), backend.table_of(matrix)];
                let tokens = [12, 10, 9, 30, 31, 0, u32::MAX, 26];
                for table in tables {
                    let out = poisoned(&mut *backend, tokens.len(), width);
                    backend.begin(Batch { tokens: &tokens, positions: &[0; 8], sequences: &[] });
                    backend.embed(table, 10, 3.0, out);
                    let row = |&token: &u32| match token {
                        10..31 => values[(token as usize - 10) * width..][..width].iter().map(|x| x * 3.0).collect(),
                        _ => vec![0.0; width],
                    };
                    let want: Vec<f32> = tokens.iter().flat_map(row).collect();
                    check_same("embed", backend.read(out), &want);
                }
            }
        }
    }
}

#[test]
fn learned_positions_are_added() {
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            for width in [1, 7, 48, 960] {
                let (bytes, values) = encode(&Random(width as u64).values(9 * width), dtype);
                let table = backend.load_table(host(dtype, 9, width, &bytes));
                let (tokens, positions) = ([0; 4], [0, 6, 2, 6]);
                let x = Random(3).values(positions.len() * width);
                let act = filled(&mut *backend, width, &x);
                backend.begin(Batch { tokens: &tokens, positions: &positions, sequences: &[] });
                backend.add_positions(table, 2, act);
                let entry = |position: &u32| &values[(*position as usize + 2) * width..][..width];
                let want: Vec<f32> = x.iter().zip(positions.iter().flat_map(entry)).map(|(x, y)| x + y).collect();
                check_same("add_positions", backend.read(act), &want);
            }
        }
    }
}

#[test]
fn clamp_cuts_either_way() {
    for mut backend in backends() {
        let x = [-3.0, -2.5, -1.0, 0.0, 2.4, 2.5, 2.6, f32::INFINITY];
        begin_rows(&mut *backend, 2);
        let act = filled(&mut *backend, 4, &x);
        backend.clamp(act, 2.5);
        check_same("clamp", backend.read(act), &[-2.5, -2.5, -1.0, 0.0, 2.4, 2.5, 2.5, 2.5]);
    }
}

fn reference_norm(x: &[f32], kind: NormKind, weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let count = x.len() as f64;
    let mean = if kind == NormKind::Layer { x.iter().sum::<f64>() / count } else { 0.0 };
    let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    let scale = |i: usize| weight.map_or(1.0, |w| f64::from(w[i]));
    let shift = |i: usize| bias.map_or(0.0, |b| f64::from(b[i]));
    x.iter().enumerate().map(|(i, x)| (x - mean) / (square + f64::from(eps)).sqrt() * scale(i) + shift(i)).collect()
}

#[test]
fn norms() {
    for mut backend in backends() {
        // What a block's threads keep of a row, and more.
        for width in WIDTHS.into_iter().chain([4096, 8704, 17408]) {
            for (kind, with_weight, with_bias) in [
                (NormKind::Rms, true, false),
                (NormKind::Rms, false, false),
                (NormKind::Layer, true, true),
                (NormKind::Layer, false, false),
            ] {
                check_norm(&mut *backend, width, kind, with_weight, with_bias);
            }
        }
    }
}

fn check_norm(backend: &mut dyn Backend, width: usize, kind: NormKind, with_weight: bool, with_bias: bool) {
    const ROWS: usize = 9;
    let mut random = Random(width as u64);
    let (x, delta) = (random.values(ROWS * width), random.values(ROWS * width));
    let (weight, bias) = (random.values(width), random.values(width));
    let norm = Norm {
        kind,
        weight: with_weight.then(|| backend.load_vector(&weight)),
        bias: with_bias.then(|| backend.load_vector(&bias)),
        eps: 1e-2,
    };
    let (weight, bias) = (with_weight.then_some(&*weight), with_bias.then_some(&*bias));
    let reference = |x: &[f32]| -> Vec<f64> {
        x.chunks(width).flat_map(|row| reference_norm(row, kind, weight, bias, norm.eps)).collect()
    };
    let out = poisoned(backend, ROWS, width);
    let input = filled(backend, width, &x);
    backend.norm(input, norm, out);
    check_relative("norm", backend.read(out), &reference(&x), 1e-5);

    let sum: Vec<f32> = x.iter().zip(&delta).map(|(x, d)| x + d).collect();
    let addend = filled(backend, width, &delta);
    backend.host_mut(out).fill(f32::NAN);
    backend.add_norm(input, addend, norm, out);
    check_same("residual", backend.read(input), &sum);
    check_relative("add_norm", backend.read(out), &reference(&sum), 1e-5);

    let (input, addend) = (filled(backend, width, &x), filled(backend, width, &delta));
    backend.add_norm_in_place(input, addend, norm);
    check_relative("add_norm_in_place", backend.read(input), &reference(&sum), 1e-5);

    // What is added is normed before, in place.
    let (input, addend) = (filled(backend, width, &x), filled(backend, width, &delta));
    backend.host_mut(out).fill(f32::NAN);
    backend.norm(addend, norm, addend);
    backend.add_norm(input, addend, norm, out);
    let sum: Vec<f64> = x.iter().zip(reference(&delta)).map(|(x, delta)| f64::from(*x) + delta).collect();
    check_relative("residual of a normed addend", backend.read(input), &sum, 1e-5);
    let sum: Vec<f32> = sum.iter().map(|sum| *sum as f32).collect();
    check_relative("norm, add_norm", backend.read(out), &reference(&sum), 1e-5);
}

#[test]
fn head_norm_touches_its_heads_only() {
    for mut backend in backends() {
        for (dim, heads) in [(16, 3), (64, 4), (80, 2), (128, 5), (6, 7)] {
            check_head_norm(&mut *backend, dim, heads, NormKind::Rms, 1);
            check_head_norm(&mut *backend, dim, heads, NormKind::Layer, heads);
        }
    }
}

/// With `weights` weights: one for all heads, or one for each.
fn check_head_norm(backend: &mut dyn Backend, dim: usize, heads: usize, kind: NormKind, weights: usize) {
    let (rows, first) = (5, 24);
    let width = first + heads * dim + 11;
    let mut random = Random(dim as u64);
    let (x, weight) = (random.values(rows * width), random.values(weights * dim));
    let norm = Norm { kind, weight: Some(backend.load_vector(&weight)), bias: None, eps: 1e-6 };
    let act = filled(backend, width, &x);
    backend.head_norm(act, first, heads, dim, norm);
    let mut want: Vec<f64> = x.iter().copied().map(f64::from).collect();
    for row in 0..rows {
        for head in 0..heads {
            let at = row * width + first + head * dim;
            let weight = &weight[head % weights * dim..][..dim];
            let normed = reference_norm(&x[at..at + dim], norm.kind, Some(weight), None, norm.eps);
            want[at..at + dim].copy_from_slice(&normed);
        }
    }
    check_relative("head_norm", backend.read(act), &want, 1e-5);
}

pub(crate) fn reference_activation(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => x * gauss(x),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::ClampedSwiGlu { limit } => {
            let x = x.min(f64::from(limit));
            x / (1.0 + (-1.702 * x).exp())
        }
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

/// Two norms of the same rows, as parallel branches have them, give the bits of each alone.
#[test]
fn two_norms_of_the_same_rows() {
    for mut backend in backends() {
        for (width, kind) in
            WIDTHS.into_iter().chain([6144, 9000]).zip([NormKind::Layer, NormKind::Rms].into_iter().cycle())
        {
            for precision in [DType::F32, DType::Bf16, DType::F16] {
                let mut random = Random(width as u64);
                let x = filled(&mut *backend, width, &random.values(5 * width));
                let mut norm = |bias: bool| {
                    let mut vector = || backend.load_vector(&random.values(width));
                    Norm { kind, weight: Some(vector()), bias: bias.then(vector), eps: 1e-5 }
                };
                let norms = [norm(true), norm(false)];
                let outs = [(); 2].map(|()| filled_in(&mut *backend, width, &vec![f32::NAN; 5 * width], precision));
                let alone = [0, 1].map(|i| {
                    backend.norm(x, norms[i], outs[i]);
                    backend.read(outs[i]).to_vec()
                });
                outs.into_iter().for_each(|out| backend.host_mut(out).fill(f32::NAN));
                backend.norm(x, norms[0], outs[0]);
                backend.norm(x, norms[1], outs[1]);
                for (out, alone) in outs.into_iter().zip(&alone) {
                    check_same(&format!("{kind:?} of {width}"), backend.read(out), alone);
                }
            }
        }
    }
}

/// In 16 bits each value is what rounding leaves of one within 4e-4 of itself, and NaN stays NaN.
#[test]
fn activations_of_16_bits() {
    use Activation::{ClampedSwiGlu, Gelu, GeluTanh, Relu, ReluSquared, Sigmoid, Silu};
    for mut backend in backends() {
        for (dtype, rounding) in [(DType::Bf16, 2.0_f64.powi(-8)), (DType::F16, 2.0_f64.powi(-11))] {
            for activation in [Silu, Gelu, GeluTanh, Relu, ReluSquared, ClampedSwiGlu { limit: 3.0 }, Sigmoid] {
                // Odd, so that the last elements are no whole piece.
                let values: Vec<f32> = (-2500..2501).map(|i| round(i as f32 / 500.0, dtype)).collect();
                let act = filled_in(&mut *backend, values.len(), &values, dtype);
                backend.activate(act, activation);
                let want: Vec<f64> = values.iter().map(|x| reference_activation(f64::from(*x), activation)).collect();
                let what = format!("{activation:?} in {dtype:?} on {}", backend.describe());
                // Near zero f16 has steps of 2^-24, and a CPU's GELU the steps of 1.
                let bound = |i: usize| (rounding + 4e-4) * want[i].abs() + 1e-7;
                check(&what, backend.read(act), &want, bound);
                let act = filled_in(&mut *backend, 9, &[f32::NAN; 9], dtype);
                backend.activate(act, activation);
                let is_kept = matches!(activation, Relu | ReluSquared) || backend.read(act).iter().all(|x| x.is_nan());
                assert!(is_kept, "{what}: NaN");
            }
        }
    }
}

/// The normal distribution function, by its series.
fn gauss(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term.abs() > 1e-18 {
        n += 2.0;
        term *= x * x / n;
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

#[test]
fn activations_alone_and_gating() {
    use Activation::{ClampedSwiGlu, Gelu, GeluTanh, Relu, ReluSquared, Sigmoid, Silu};
    for mut backend in backends() {
        for width in WIDTHS {
            for activation in [Silu, Gelu, GeluTanh, Relu, ReluSquared, ClampedSwiGlu { limit: 3.0 }, Sigmoid] {
                let rows = 5;
                let gate_up: Vec<f32> = Random(width as u64).values(rows * width * 2).iter().map(|x| x * 4.0).collect();
                let input = filled(&mut *backend, width * 2, &gate_up);
                let out = poisoned(&mut *backend, rows, width);
                backend.gated(input, activation, out);
                let gate = |row: &[f32], i: usize| reference_activation(f64::from(row[i]), activation);
                let up = |x: f64| match activation {
                    ClampedSwiGlu { limit } => x.clamp(-f64::from(limit), f64::from(limit)) + 1.0,
                    _ => x,
                };
                let product = |row: &[f32], i: usize| gate(row, i) * up(f64::from(row[width + i]));
                let all = |f: &dyn Fn(&[f32], usize) -> f64, cols: usize| -> Vec<f64> {
                    gate_up.chunks(width * 2).flat_map(|row| (0..cols).map(move |i| f(row, i))).collect()
                };
                check_relative(&format!("gated {activation:?}"), backend.read(out), &all(&product, width), 4e-6);
                backend.activate(input, activation);
                check_relative(&format!("{activation:?}"), backend.read(input), &all(&gate, width * 2), 4e-6);
            }
        }
    }
}

#[test]
fn add_scale_and_gather() {
    for mut backend in backends() {
        for width in WIDTHS {
            let rows = 6;
            let mut random = Random(width as u64);
            let (a, b) = (random.values(rows * width), random.values(rows * width));
            let (x, y) = (filled(&mut *backend, width, &a), filled(&mut *backend, width, &b));
            backend.add(x, y);
            backend.scale(x, 0.37);
            let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| (a + b) * 0.37).collect();
            check_same("add, scale", backend.read(x), &want);
            let out = backend.new_act(3, width);
            backend.gather(x, RowSelection { rows: &[0, 3, 5] }, out);
            let picked: Vec<f32> = [0, 3, 5].iter().flat_map(|row| want[row * width..][..width].to_vec()).collect();
            check_same("gather", backend.read(out), &picked);
            // Later operations see three rows, and the next step its own number again.
            backend.scale(out, 2.0);
            assert_eq!(backend.host_mut(out).len(), 3 * width);
            begin_rows(&mut *backend, 2);
            assert_eq!(backend.read(out).len(), 2 * width);
        }
    }
}
