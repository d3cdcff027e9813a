//! Activations that a backend may round to 16 bits: the same operations, to 16-bit accuracy.

use super::attention::{Case, Extras, Part, check_case, mix};
use super::{Random, backends, check, encode, filled, filled_in, host, round};
use kernels::ops::{
    Activation, Backend, Batch, DType, Epilogue, Heads, KvDType, KvShape, Norm, NormKind, Rope, RopeStyle, Sequence,
};

const TYPES: [DType; 2] = [DType::Bf16, DType::F16];
const ROWS: usize = 5;
const WIDTHS: [usize; 5] = [7, 48, 100, 960, 2048];

/// Half a step of a value just below one; twice that, relative to its size, is the most that rounding changes a value.
pub(crate) fn step(dtype: DType) -> f64 {
    if dtype == DType::Bf16 { 2.0_f64.powi(-9) } else { 2.0_f64.powi(-12) }
}

/// Rounded once on the way in and once on the way out.
fn check_rounded(what: &str, dtype: DType, got: &[f32], want: &[f32]) {
    let want: Vec<f64> = want.iter().map(|x| f64::from(*x)).collect();
    check(&format!("{what} in {dtype:?}"), got, &want, |index| 2.5 * step(dtype) * (want[index].abs() + 0.1));
}

/// What a backend gives with exact buffers.
struct Exact {
    normed: Vec<f32>,
    head_normed: Vec<f32>,
    gated: Vec<f32>,
    activated: Vec<f32>,
}

fn run(backend: &mut dyn Backend, width: usize, x: &[f32], precision: DType) -> Exact {
    let norm = Norm { kind: NormKind::Rms, weight: None, bias: None, eps: 1e-5 };
    let input = filled(backend, width, x);
    let normed = filled_in(backend, width, &vec![f32::NAN; x.len()], precision);
    backend.norm(input, norm, normed);
    let first = backend.read(normed).to_vec();
    let delta = filled(backend, width, &vec![0.0; x.len()]);
    backend.add_norm(input, delta, norm, normed);
    assert_eq!(backend.read(normed), first, "a norm, and the same after adding zeros");
    let heads = filled_in(backend, width, x, precision);
    backend.head_norm(heads, 0, 1, width, norm);
    let gate_up = filled_in(backend, width, x, precision);
    let gated = filled_in(backend, width / 2, &vec![f32::NAN; ROWS * (width / 2)], precision);
    if width.is_multiple_of(2) {
        backend.gated(gate_up, Activation::Silu, gated);
    } else {
        backend.host_mut(gated).fill(0.0);
    }
    backend.activate(gate_up, Activation::GeluTanh);
    Exact {
        normed: first,
        head_normed: backend.read(heads).to_vec(),
        gated: backend.read(gated).to_vec(),
        activated: backend.read(gate_up).to_vec(),
    }
}

#[test]
fn rowwise_operations() {
    for mut backend in backends() {
        for dtype in TYPES {
            for width in WIDTHS {
                let x: Vec<f32> = Random(width as u64).values(ROWS * width).iter().map(|x| round(*x, dtype)).collect();
                let (exact, rounded) =
                    (run(&mut *backend, width, &x, DType::F32), run(&mut *backend, width, &x, dtype));
                check_rounded("norm", dtype, &rounded.normed, &exact.normed);
                check_rounded("head_norm", dtype, &rounded.head_normed, &exact.head_normed);
                check_rounded("gated", dtype, &rounded.gated, &exact.gated);
                check_rounded("activate", dtype, &rounded.activated, &exact.activated);
            }
        }
    }
}

/// Norms of queries and keys may be done with the rotation that follows them, and must give what they give one by one.
#[test]
fn norms_before_a_rotation() {
    const HEADS: Heads = Heads { q: 6, kv: 2, dim: 64, v_dim: 64 };
    const WIDTH: usize = (6 + 2 + 2) * 64;
    let mut random = Random(5);
    let (values, scales) = (random.values(ROWS * WIDTH), [random.values(64), random.values(64)]);
    let frequencies: Vec<f32> = (0..32).map(|i| 0.9_f32.powi(i)).collect();
    for mut backend in backends() {
        for dtype in TYPES {
            for style in [RopeStyle::Halves, RopeStyle::Interleaved] {
                let backend = &mut *backend;
                let shape = KvShape {
                    num_blocks: 1,
                    block_size: 16,
                    kv_heads: HEADS.kv,
                    head_dim: HEADS.dim,
                    v_head_dim: HEADS.v_dim,
                    shared: false,
                    dtype: dtype.into(),
                };
                let kv = backend.new_kv(shape);
                let [q, k] = [0, 1].map(|i| {
                    let weight = Some(backend.load_vector(&scales[i]));
                    Norm { kind: [NormKind::Rms, NormKind::Layer][i], weight, bias: None, eps: 1e-6 }
                });
                let inv_freq = backend.load_vector(&frequencies);
                let rope = Some(Rope { inv_freq, rotary_dim: HEADS.dim, style, mscale: 1.0 });
                let mut run = |one_by_one: bool| {
                    let sequence = Sequence { first_row: 0, num_rows: ROWS, start: 0, tables: &[vec![0]], slot: 0 };
                    let positions: Vec<u32> = (0..ROWS as u32).collect();
                    let qkv = filled_in(backend, WIDTH, &values, dtype);
                    backend.begin(Batch { tokens: &positions, positions: &positions, sequences: &[sequence] });
                    for (norm, first_col, heads) in [(q, 0, HEADS.q), (k, HEADS.q * HEADS.dim, HEADS.kv)] {
                        backend.head_norm(qkv, first_col, heads, HEADS.dim, norm);
                        if one_by_one {
                            backend.read(qkv);
                        }
                    }
                    backend.rope_and_cache(qkv, HEADS, rope, kv);
                    backend.read(qkv).to_vec()
                };
                let want: Vec<f64> = run(true).iter().map(|x| f64::from(*x)).collect();
                let what = format!("norms and rotation in {dtype:?}, {style:?}");
                // Normed values are up to about 8, and are rounded before the rotation only where they are written
                // before it.
                check(&what, &run(false), &want, |_| 24.0 * step(dtype));
            }
        }
    }
}

#[test]
fn products() {
    let mut backends = backends();
    for dtype in TYPES {
        for (rows, n, k) in
            [(1, 96, 48), (5, 272, 224), (33, 17, 33), (64, 130, 960), (19, 2100, 2056), (200, 256, 512)]
        {
            for (output, epilogue, with_bias) in [
                (dtype, Epilogue::Store, true),
                (dtype, Epilogue::Store, false),
                (DType::F32, Epilogue::Store, true),
                (DType::F32, Epilogue::Accumulate, true),
                (DType::F32, Epilogue::Accumulate, false),
            ] {
                let mut random = Random((rows * n + k) as u64);
                let (bytes, w) = encode(&random.values(n * k), dtype);
                let (_, x) = encode(&random.values(rows * k), dtype);
                let (before, (_, shift)) = (random.values(rows * n), encode(&random.values(n), dtype));
                let accumulates = epilogue == Epilogue::Accumulate;
                let start = if accumulates { before } else { vec![f32::NAN; rows * n] };
                let (mut want, mut size) = (Vec::new(), Vec::new());
                for (row, x) in x.chunks(k).enumerate() {
                    for (col, w) in w.chunks(k).enumerate() {
                        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                        let old = if accumulates { f64::from(start[row * n + col]) } else { 0.0 };
                        let shift = if with_bias { f64::from(shift[col]) } else { 0.0 };
                        size.push(terms.clone().map(f64::abs).sum::<f64>() + 1.0);
                        want.push(terms.sum::<f64>() + old + shift);
                    }
                }
                for backend in &mut backends {
                    let backend = &mut **backend;
                    let matrix = backend.load_matrix(host(dtype, n, k, &bytes), dtype);
                    let input = filled_in(backend, k, &x, dtype);
                    let out = filled_in(backend, n, &start, output);
                    let bias = with_bias.then(|| backend.load_vector(&shift));
                    backend.matmul(input, matrix, bias, epilogue, out);
                    let what =
                        format!("{} {rows} x {n} x {k} {dtype:?} to {output:?} {epilogue:?}", backend.describe());
                    // Inputs are exact, and only what is written is rounded. A CPU may multiply f16 weights with inputs
                    // rounded to bf16.
                    let bf16_inputs = dtype == DType::F16 && !backend.describe().starts_with("cuda");
                    let inexact = if bf16_inputs { 2.0_f64.powi(-9) } else { 1e-6 };
                    let rounding = if output == DType::F32 { 0.0 } else { 2.0 * step(dtype) };
                    check(&what, backend.read(out), &want, |i| inexact * size[i] + rounding * want[i].abs());
                }
            }
        }
    }
}

/// What a cache may keep beside rows in a type: the same, or 8-bit floats.
fn caches(acts: DType) -> [KvDType; 2] {
    [acts.into(), KvDType::E4m3]
}

#[test]
fn attention() {
    let mut backends = backends();
    for dtype in TYPES {
        for (q, kv, dim) in [(4, 4, 64), (8, 2, 128), (7, 1, 80), (6, 2, 96), (4, 1, 112), (4, 2, 256), (2, 1, 24)] {
            for block_size in [16, 32] {
                let heads = Heads { q, kv, dim, v_dim: dim };
                let extras = Extras::default();
                for cache in caches(dtype) {
                    let parts = &mix();
                    check_case(
                        &mut backends,
                        &Case { heads, block_size, dtype: cache, acts: dtype, parts, extras: &extras },
                    );
                }
            }
        }
        let heads = Heads { q: 4, kv: 2, dim: 64, v_dim: 64 };
        let (sinks, slopes) = (vec![0.5, -2.0, 3.0, 0.0], vec![0.5, 0.25, 0.125, 0.0625]);
        for extras in &[
            Extras { window: Some(17), sinks: Some(sinks), ..Extras::default() },
            Extras { soft_cap: Some(2.0), window: Some(64), ..Extras::default() },
            Extras { alibi: Some(slopes), ..Extras::default() },
        ] {
            for cache in caches(dtype) {
                let parts = &mix();
                check_case(&mut backends, &Case { heads, block_size: 16, dtype: cache, acts: dtype, parts, extras });
            }
        }
    }
}

#[test]
fn attention_of_several_tiles_in_bf16() {
    attention_of_several_tiles(DType::Bf16);
}

#[test]
fn attention_of_several_tiles_in_f16() {
    attention_of_several_tiles(DType::F16);
}

fn attention_of_several_tiles(dtype: DType) {
    let mut backends = backends();
    let part = |sequence, start, rows| Part { sequence, start, rows };
    let parts = &[part(0, 0, 150), part(1, 700, 70), part(2, 5, 1), part(3, 120, 9)];
    for (dim, window) in [(64, None), (128, None), (128, Some(100))] {
        let (heads, extras) = (Heads { q: 8, kv: 2, dim, v_dim: dim }, &Extras { window, ..Extras::default() });
        for cache in caches(dtype) {
            check_case(&mut backends, &Case { heads, block_size: 16, dtype: cache, acts: dtype, parts, extras });
        }
    }
}

/// More tiles of rows than a GPU has multiprocessors, so that a block takes several, of sequences that begin and end
/// anywhere.
#[test]
fn attention_of_many_tiles() {
    let mut backends = backends();
    let mut random = Random(11);
    let parts: Vec<Part> =
        (0..20).map(|sequence| Part { sequence, start: random.below(300), rows: 2 + random.below(80) }).collect();
    let sinks = Some((0..64).map(|head| head as f32 / 16.0).collect());
    for (dim, extras) in [
        (64, Extras::default()),
        // Weights of few keys: those of earlier tiles are rescaled.
        (128, Extras { scale: Some(1.0), ..Extras::default() }),
        (128, Extras { window: Some(40), sinks, scale: Some(0.5), ..Extras::default() }),
    ] {
        let (dtype, parts, extras) = (DType::Bf16, &parts[..], &extras);
        let heads = Heads { q: 64, kv: 8, dim, v_dim: dim };
        for cache in caches(dtype) {
            check_case(&mut backends, &Case { heads, block_size: 16, dtype: cache, acts: dtype, parts, extras });
        }
    }
}

/// Rows of one token over lengths of which a GPU gives parts to several blocks: of one length and of many, with prompts
/// between them, and more of them than a warp has lanes.
#[test]
fn attention_of_long_decodes() {
    let mut backends = backends();
    let mut random = Random(13);
    let many: Vec<usize> = (0..45).map(|_| random.below(150)).collect();
    let steps: [(&[usize], _, _, _); 4] = [
        (&[1023; 2], (8, 2, 64), DType::Bf16.into(), None),
        (&[1999, 16, 690, 0, 840], (8, 2, 128), DType::Bf16.into(), None),
        (&[1151, 1152, 700], (20, 1, 64), KvDType::E4m3, Some(900)),
        (&many, (4, 2, 64), DType::Bf16.into(), Some(100)),
    ];
    for (starts, (q, kv, dim), cache, window) in steps {
        let rows = |sequence: usize| if sequence % 7 == 6 { 3 } else { 1 };
        let parts: Vec<Part> =
            (0..).zip(starts).map(|(sequence, &start)| Part { sequence, start, rows: rows(sequence) }).collect();
        let (heads, extras) = (Heads { q, kv, dim, v_dim: dim }, &Extras { window, ..Extras::default() });
        let acts = DType::Bf16;
        check_case(&mut backends, &Case { heads, block_size: 48, dtype: cache, acts, parts: &parts, extras });
    }
}

/// A backend may do a product and the gate of its outputs in one; looking at the product in between keeps them apart.
#[test]
fn a_gate_that_follows_a_product_at_once_changes_no_bit() {
    let shapes = [(1, 96, 64), (3, 96, 48), (5, 6144, 1024), (8, 200, 2048), (12, 6144, 512), (16, 20_480, 256)];
    for mut backend in backends() {
        let backend = &mut *backend;
        for dtype in TYPES {
            for (rows, n, k) in shapes {
                let mut random = Random((rows * n + k) as u64);
                let (bytes, _) = encode(&random.values(n * k), dtype);
                let (x, shift) = (random.values(rows * k), random.values(n));
                let matrix = backend.load_matrix(host(dtype, n, k, &bytes), dtype);
                let bias = (rows % 2 == 0).then(|| backend.load_vector(&shift));
                let activation = if rows == 3 { Activation::GeluTanh } else { Activation::Silu };
                let input = filled_in(backend, k, &x, dtype);
                let mut gated = |apart: bool| {
                    let both = filled_in(backend, n, &vec![f32::NAN; rows * n], dtype);
                    let out = filled_in(backend, n / 2, &vec![f32::NAN; rows * n / 2], dtype);
                    backend.matmul(input, matrix, bias, Epilogue::Store, both);
                    if apart {
                        assert!(backend.read(both).iter().all(|value| value.is_finite()));
                    }
                    backend.gated(both, activation, out);
                    backend.read(out).to_vec()
                };
                let (apart, at_once) = (gated(true), gated(false));
                super::check_same(&format!("{rows} x {n} x {k} in {dtype:?}"), &at_once, &apart);
            }
        }
    }
}
