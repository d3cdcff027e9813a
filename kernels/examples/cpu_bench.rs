//! What the CPU kernels reach: products in GFLOP/s and GB/s of weights, attention in decode and prefill, per
//! instruction set and threads.
//!
//! `cargo run --release -p kernels --example cpu_bench [isa ...]`

use kernels::cpu::{CpuBackend, CpuOptions, Isa};
use kernels::ops::{Attention, Batch, DType, Epilogue, Heads, HostMatrix, KvShape, Load, Ops, Sequence};
use std::time::Instant;

/// Rows of a product.
const ROWS: [usize; 5] = [1, 4, 16, 64, 512];
/// Square shapes, and those of a 1B Llama: qkv, gate and up, down, logits.
const SHAPES: [(usize, usize); 6] =
    [(2048, 2048), (4096, 4096), (3072, 2048), (16384, 2048), (2048, 8192), (128_256, 2048)];

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |isa: &Isa| names.is_empty() || names.iter().any(|name| name == isa.name());
    for isa in Isa::available().into_iter().filter(wanted) {
        for threads in [1, 2] {
            products(isa, threads);
            attention(isa, threads);
        }
    }
}

fn backend(isa: Isa, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa: Some(isa) })
}

/// Seconds of one call, the best of several.
fn time(mut call: impl FnMut()) -> f64 {
    call();
    let mut best = f64::INFINITY;
    let begin = Instant::now();
    for round in 0.. {
        let start = Instant::now();
        call();
        best = best.min(start.elapsed().as_secs_f64());
        if round >= 4 && begin.elapsed().as_secs_f64() > 0.15 {
            break;
        }
    }
    best
}

fn begin_rows(backend: &mut CpuBackend, rows: usize) {
    let zeros = vec![0; rows];
    backend.begin(Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
}

fn products(isa: Isa, threads: usize) {
    for (n, k) in SHAPES {
        for (name, dtype, compute) in [
            ("f32", DType::F32, DType::F32),
            ("bf16 x f32", DType::Bf16, DType::F32),
            ("bf16", DType::Bf16, DType::Bf16),
        ] {
            if isa == Isa::Portable && n * k > 1 << 23 || compute == DType::Bf16 && isa != Isa::Amx {
                continue;
            }
            let mut backend = backend(isa, threads);
            let bytes = vec![0x3c; n * k * dtype.size()];
            let w = backend.load_matrix(HostMatrix::plain(dtype, n, k, &bytes), compute);
            drop(bytes);
            let (x, out) = (backend.new_act(512, k), backend.new_act(512, n));
            print!("{:8} {threads} {name:10} {n:6} x {k:4} ", isa.name());
            for rows in ROWS {
                begin_rows(&mut backend, rows);
                backend.host_mut(x).fill(0.5);
                let seconds = time(|| backend.matmul(x, w, None, Epilogue::Store, out));
                let flops = 2.0 * (rows * n * k) as f64 / seconds / 1e9;
                let bytes = (n * k * dtype.size()) as f64 / seconds / 1e9;
                print!("| {rows:3}: {flops:6.0} GF {bytes:5.1} GB/s ");
            }
            println!();
        }
    }
}

fn attention(isa: Isa, threads: usize) {
    let heads = Heads { q: 32, kv: 8, dim: 64, v_dim: 64 };
    let layer = Attention::causal(heads, 0.125);
    for dtype in [DType::F32, DType::Bf16] {
        for (sequences, start, rows) in
            [(1, 1000, 1), (1, 8000, 1), (16, 1000, 1), (1, 0, 512), (1, 0, 2048), (1, 3584, 512)]
        {
            let mut backend = backend(isa, threads);
            let per_sequence = (start + rows) / 16 + 1;
            let shape = KvShape {
                num_blocks: sequences * per_sequence,
                block_size: 16,
                kv_heads: 8,
                head_dim: 64,
                v_head_dim: 64,
                shared: false,
                dtype: dtype.into(),
            };
            let kv = backend.new_kv(shape);
            let (qkv, out) =
                (backend.new_act(sequences * (start + rows), 3072), backend.new_act(sequences * rows, 2048));
            let blocks: Vec<u32> = (0..(sequences * per_sequence) as u32).collect();
            for (from, count) in [(0, start), (start, rows)].into_iter().filter(|(_, count)| *count > 0) {
                let zeros = vec![0; sequences * count];
                let tables: Vec<[Vec<u32>; 1]> = blocks.chunks(per_sequence).map(|blocks| [blocks.to_vec()]).collect();
                let part = |(slot, tables): (usize, _)| Sequence {
                    first_row: slot * count,
                    num_rows: count,
                    start: from,
                    tables,
                    slot,
                };
                let parts: Vec<Sequence<'_>> =
                    tables.iter().enumerate().map(|(slot, tables)| part((slot, tables.as_slice()))).collect();
                backend.begin(Batch { tokens: &zeros, positions: &zeros, sequences: &parts });
                backend.host_mut(qkv).iter_mut().enumerate().for_each(|(i, x)| *x = (i % 97) as f32 / 97.0 - 0.5);
                backend.rope_and_cache(qkv, heads, None, kv);
            }
            let seconds = time(|| backend.attention(qkv, layer, kv, None, out));
            let scores = sequences * (0..rows).map(|row| start + row + 1).sum::<usize>();
            let flops = (scores * 32 * 64 * 4) as f64 / seconds / 1e9;
            let bytes = (sequences * (start + rows) * 8 * 128 * dtype.size()) as f64 / seconds / 1e9;
            println!(
                "{:8} {threads} attention {dtype:?} {sequences:2} x ({start:4} + {rows:4}): {:8.0} us {flops:5.0} GF \
                 {bytes:5.1} GB/s",
                isa.name(),
                seconds * 1e6
            );
        }
    }
}
