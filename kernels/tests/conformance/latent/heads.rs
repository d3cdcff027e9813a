//! Products of heads with their own matrices, of rows and matrices of one 16-bit type, whose heads begin where pieces
//! of 16 bytes do: as a model's heads lie.

use crate::{Random, backends, check, encode, filled_in, host, round};
use kernels::ops::{Backend, DType, HeadColumns, MatrixUse};

struct Case {
    heads: usize,
    /// Outputs and inputs of a head.
    n: usize,
    k: usize,
    rows: usize,
    dtype: DType,
}

impl Case {
    fn check(&self, backend: &mut dyn Backend) {
        let Self { heads, n, k, rows, dtype } = *self;
        let (from, to) = (HeadColumns { first: 8, stride: k + 16 }, HeadColumns { first: 16, stride: n + 8 });
        let (width, out_width) = (24 + heads * from.stride, 16 + heads * to.stride);
        let weights: Vec<Vec<f32>> = (0..heads).map(|head| Random(head as u64).values(n * k)).collect();
        let encoded: Vec<(Vec<u8>, Vec<f32>)> = weights.iter().map(|values| encode(values, dtype)).collect();
        let matrices: Vec<_> =
            encoded.iter().map(|(bytes, _)| backend.load_matrix(host(dtype, n, k, bytes), dtype)).collect();
        let group = backend.group_matrices(&matrices, MatrixUse::Heads);
        let values: Vec<f32> = Random(7).values(rows * width).into_iter().map(|x| round(x, dtype)).collect();
        let out = backend.new_rounded_act(rows, out_width, dtype);
        let x = filled_in(backend, width, &values, dtype);
        backend.host_mut(out).fill(9.0);
        backend.head_matmul(x, from, group, out, to);
        let got = backend.read(out).to_vec();
        let what = format!("{} {heads} heads [{n}, {k}] {dtype:?} {rows} rows", backend.describe());
        let looked_at = [0, 1, rows / 2, rows - 1].into_iter().filter(|row| *row < rows);
        for row in looked_at {
            let mut want = vec![9.0; out_width];
            for (head, (_, w)) in encoded.iter().enumerate() {
                let x = &values[row * width + from.first + head * from.stride..][..k];
                for (col, w) in w.chunks(k).enumerate() {
                    let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    want[to.first + head * to.stride + col] = sum;
                }
            }
            let relative = if dtype == DType::Bf16 { 8e-3 } else { 1e-3 };
            let bound = |index: usize| relative * f64::abs(want[index]).max(1.0);
            check(&format!("row {row}, {what}"), &got[row * out_width..][..out_width], &want, bound);
        }
    }
}

#[test]
fn heads_of_16_bits_meet_their_matrices() {
    for mut backend in backends() {
        for (heads, n, k) in [(16, 512, 128), (5, 128, 512), (3, 40, 24), (1, 8, 200)] {
            for rows in [1, 3, 17, 65, 300] {
                for dtype in [DType::Bf16, DType::F16] {
                    Case { heads, n, k, rows, dtype }.check(&mut *backend);
                }
            }
        }
    }
}

/// On whatever tiles of rows a step has.
#[test]
fn a_row_of_heads_gives_the_same_in_any_company() {
    let (heads, n, k, most, dtype) = (16, 128, 512, 1200, DType::Bf16);
    for mut backend in backends() {
        let backend = &mut *backend;
        let weights: Vec<(Vec<u8>, Vec<f32>)> =
            (0..heads).map(|head| encode(&Random(head as u64).values(n * k), dtype)).collect();
        let matrices: Vec<_> =
            weights.iter().map(|(bytes, _)| backend.load_matrix(host(dtype, n, k, bytes), dtype)).collect();
        let group = backend.group_matrices(&matrices, MatrixUse::Heads);
        let (from, to) = (HeadColumns { first: 0, stride: k }, HeadColumns { first: 0, stride: n });
        let values = Random(3).values(most * heads * k);
        let mut run = |rows: usize| {
            let out = backend.new_rounded_act(rows, heads * n, dtype);
            let x = filled_in(backend, heads * k, &values[..rows * heads * k], dtype);
            backend.head_matmul(x, from, group, out, to);
            backend.read(out)[..heads * n].to_vec()
        };
        let alone = run(1);
        for rows in [16, 17, 200, most] {
            crate::check_same(&format!("of {rows} rows"), &run(rows), &alone);
        }
    }
}

#[test]
fn columns_of_whole_pieces_are_copied_and_others_kept() {
    let (rows, heads, width) = (5, 3, 24);
    let (from, to) = (HeadColumns { first: 8, stride: 40 }, HeadColumns { first: 16, stride: 32 });
    for mut backend in backends() {
        let backend = &mut *backend;
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let values: Vec<f32> = Random(1).values(rows * 136).into_iter().map(|x| round(x, dtype)).collect();
            let out = backend.new_rounded_act(rows, 112, dtype);
            let x = filled_in(backend, 136, &values, dtype);
            backend.host_mut(out).fill(9.0);
            backend.copy_columns(x, from, out, to, heads, width);
            let mut want = vec![9.0; rows * 112];
            for (row, head) in (0..rows).flat_map(|row| (0..heads).map(move |head| (row, head))) {
                let at = row * 136 + from.first + head * from.stride;
                want[row * 112 + to.first + head * to.stride..][..width].copy_from_slice(&values[at..at + width]);
            }
            crate::check_same(&format!("{dtype:?}"), backend.read(out), &want);
        }
    }
}
