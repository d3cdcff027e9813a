//! The same bits whatever else is in the batch, however a prompt is cut, and with any number of threads.

use super::attention::{Part, World, row};
use super::{Random, backends, check_same, cpu, encode, filled, host, poisoned};
use kernels::cpu::Isa;
use kernels::ops::{Activation, Attention, Backend, DType, Epilogue, Heads, Norm, NormKind};

const TYPES: [(DType, DType); 4] =
    [(DType::F32, DType::F32), (DType::Bf16, DType::F32), (DType::Bf16, DType::Bf16), (DType::F16, DType::F32)];

/// Whether products keep a row's bits whatever its company: on a GPU only where nothing is rounded to 16 bits (see
/// `kernels::cuda`).
pub(super) fn keeps_rows(backend: &dyn Backend, compute: DType) -> bool {
    !backend.describe().starts_with("cuda") || compute == DType::F32
}

fn product(backend: &mut dyn Backend, w: kernels::ops::Matrix, n: usize, k: usize, x: &[f32]) -> Vec<f32> {
    let out = poisoned(backend, x.len() / k, n);
    let x = filled(backend, k, x);
    backend.matmul(x, w, None, Epilogue::Store, out);
    backend.read(out).to_vec()
}

#[test]
fn a_product_row_does_not_know_its_company() {
    for mut backend in backends() {
        for (weights, compute) in
            TYPES.into_iter().filter(|(_, compute)| keeps_rows(&*backend, *compute)).collect::<Vec<_>>()
        {
            for (n, k) in [(272, 224), (100, 1500)] {
                let mut random = Random(1);
                let (bytes, _) = encode(&random.values(n * k), weights);
                let w = backend.load_matrix(host(weights, n, k, &bytes), compute);
                let x = random.values(70 * k);
                let whole = product(&mut *backend, w, n, k, &x);
                for rows in (1..=40).chain([48, 63, 64, 65]) {
                    // The last rows, so that a row also changes its place in the tiles.
                    let first = 70 - rows;
                    let what = format!("{} {rows} of 70 rows, {weights:?} in {compute:?}", backend.describe());
                    check_same(&what, &product(&mut *backend, w, n, k, &x[first * k..]), &whole[first * n..]);
                }
            }
        }
    }
}

#[test]
fn threads_change_nothing_in_products() {
    for isa in Isa::available() {
        for (weights, compute) in TYPES {
            for rows in [1, 4, 70] {
                let (n, k) = (1000, 300);
                let mut random = Random(2);
                let ((bytes, _), x) = (encode(&random.values(n * k), weights), random.values(rows * k));
                let [one, two, three] = [1, 2, 3].map(|threads| {
                    let mut backend = cpu(isa, threads);
                    let w = backend.load_matrix(host(weights, n, k, &bytes), compute);
                    product(&mut *backend, w, n, k, &x)
                });
                check_same("two threads", &two, &one);
                check_same("three threads", &three, &one);
            }
        }
    }
}

#[test]
fn row_operations_do_not_know_their_company() {
    for mut backend in backends() {
        let (width, rows) = (200, 33);
        let x = Random(3).values(rows * width);
        let norm = Norm { kind: NormKind::Layer, weight: None, bias: None, eps: 1e-5 };
        let mut run = |x: &[f32]| {
            let input = filled(&mut *backend, width, x);
            let (normed, gated) = (backend.new_act(rows, width), backend.new_act(rows, width / 2));
            backend.norm(input, norm, normed);
            backend.gated(normed, Activation::Silu, gated);
            backend.read(gated).to_vec()
        };
        let whole = run(&x);
        for (index, row) in x.chunks(width).enumerate() {
            check_same("row operations", &run(row), &whole[index * width / 2..][..width / 2]);
        }
    }
}

struct Setup {
    heads: Heads,
    dtype: DType,
    window: Option<usize>,
    length: usize,
}

const SEED: u64 = 11;

/// Attention of sequence 0 when its tokens arrive in `cuts`, with strangers beside it.
fn in_pieces(backend: &mut dyn Backend, setup: &Setup, cuts: &[usize], strangers: usize) -> Vec<f32> {
    let Setup { heads, dtype, window, length } = *setup;
    let lengths: Vec<usize> = std::iter::once(length).chain((0..strangers).map(|_| 200)).collect();
    let world = World::new(backend, heads, 16, dtype, &lengths);
    let width = world.width();
    let layer = Attention { window, ..Attention::causal(heads, 0.125) };
    let mut result = Vec::new();
    let mut start = 0;
    for (stranger_start, &rows) in cuts.iter().enumerate() {
        // Strangers sit before and after it, one prefilling and the others decoding.
        let mut parts: Vec<Part> = (1..=strangers)
            .map(|sequence| Part { sequence, start: stranger_start, rows: if sequence == 1 { 3 } else { 1 } })
            .collect();
        let own = parts.len() / 2;
        parts.insert(own, Part { sequence: 0, start, rows });
        let qkv = world.step(backend, &parts, |sequence, position| row(SEED, width, sequence, position));
        let total: usize = parts.iter().map(|part| part.rows).sum();
        let out = backend.new_act(total, heads.q * heads.v_dim);
        backend.host_mut(out).fill(f32::NAN);
        backend.attention(qkv, layer, world.kv, None, out);
        let before: usize = parts[..own].iter().map(|part| part.rows).sum();
        result.extend(&backend.read(out)[before * heads.q * heads.v_dim..][..rows * heads.q * heads.v_dim]);
        start += rows;
    }
    assert_eq!(start, length, "the cuts make up the prompt");
    result
}

fn cut(length: usize, piece: usize) -> Vec<usize> {
    (0..length).step_by(piece).map(|start| piece.min(length - start)).collect()
}

#[test]
fn chunks_and_strangers_change_nothing_in_attention() {
    let heads = [Heads { q: 8, kv: 2, dim: 64, v_dim: 64 }, Heads { q: 3, kv: 3, dim: 80, v_dim: 80 }];
    for mut backend in backends() {
        for heads in heads {
            for dtype in [DType::F32, DType::Bf16, DType::F16] {
                for window in [None, Some(50)] {
                    let setup = Setup { heads, dtype, window, length: 150 };
                    let whole = in_pieces(&mut *backend, &setup, &[150], 0);
                    let what = format!("{} {heads:?} {dtype:?} window {window:?}", backend.describe());
                    for (piece, strangers) in [(1, 0), (7, 0), (16, 2), (64, 5)] {
                        let pieces = in_pieces(&mut *backend, &setup, &cut(150, piece), strangers);
                        check_same(&format!("{what} in pieces of {piece}"), &pieces, &whole);
                    }
                }
            }
        }
    }
}

#[test]
fn threads_and_spans_change_nothing_in_attention() {
    for isa in Isa::available() {
        for dtype in [DType::F32, DType::Bf16] {
            // One head: spans are spread over threads when one row decodes, and folded by one task when a chunk
            // prefills.
            let heads = Heads { q: 2, kv: 1, dim: 32, v_dim: 32 };
            let setup = Setup { heads, dtype, window: None, length: 2300 };
            let mut decode = vec![2200];
            decode.extend([1; 20]);
            decode.push(80);
            let runs = [(1, vec![2300]), (2, vec![2300]), (1, decode.clone()), (2, decode)];
            let [first, others @ ..] = runs.map(|(threads, cuts)| in_pieces(&mut *cpu(isa, threads), &setup, &cuts, 0));
            for other in others {
                check_same(&format!("{isa:?} {dtype:?}"), &other, &first);
            }
        }
    }
}

#[test]
fn where_blocks_lie_changes_nothing_in_attention() {
    let heads = Heads { q: 4, kv: 2, dim: 64, v_dim: 64 };
    let layer = Attention::causal(heads, 0.125);
    for mut backend in backends() {
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let mut results = Vec::new();
            for in_a_row in [false, true] {
                let mut world = World::new(&mut *backend, heads, 16, dtype, &[300]);
                if in_a_row {
                    world.blocks[0].sort_unstable();
                }
                let (width, part) = (world.width(), Part { sequence: 0, start: 0, rows: 300 });
                let qkv = world.step(&mut *backend, &[part], |sequence, position| row(SEED, width, sequence, position));
                let out = backend.new_act(300, 256);
                backend.host_mut(out).fill(f32::NAN);
                backend.attention(qkv, layer, world.kv, None, out);
                results.push(backend.read(out).to_vec());
            }
            check_same(&format!("{} {dtype:?}", backend.describe()), &results[1], &results[0]);
        }
    }
}
