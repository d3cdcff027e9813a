//! Latent attention at DeepSeek's sizes by the kernels on tensor cores, and by the plain one; and the products of heads
//! around it.

use crate::{BLOCK, Bench, LEADS, MOST_ROWS, ROTATION, Work};
use kernels::ops::*;
use kernels_cuda::{AttentionBackend, CudaOptions, LatentForm};

const ROPE: usize = 64;
const RANK: usize = 512;
const DIM: usize = ROPE + RANK;
/// Of a head of DeepSeek-V2-Lite: the part of a query that does not rotate, and a value.
const NOPE: usize = 128;
const VALUE: usize = 128;

/// Query heads of DeepSeek-V2-Lite, and of V2 and V3.
const HEADS: [(&str, usize); 2] = [("V2-Lite", 16), ("V3", 128)];

/// Rows of a step, and tokens of each.
const DECODE: [(usize, usize); 9] =
    [(1, 1024), (1, 8192), (1, 65_536), (8, 1024), (8, 8192), (32, 1024), (32, 8192), (64, 1024), (64, 4096)];
const LONG_DECODE: [(usize, usize); 4] = [(1, 131_072), (8, 32_768), (32, 32_768), (8, 131_072)];

/// All parts, with all kinds of kernels; few of them with the plain one, which takes long.
pub(crate) fn latent(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    for attention in [AttentionBackend::Auto, AttentionBackend::Mma, AttentionBackend::Plain] {
        let mut bench = Bench::open(rates, CudaOptions { attention, ..options.clone() })?;
        let all = attention != AttentionBackend::Plain;
        println!("{} attention", attention.name());
        for (name, heads) in HEADS {
            let few = DECODE.iter().copied().filter(|(rows, length)| all || rows * length <= 8192);
            bench.latent_decode(name, heads, &few.collect::<Vec<_>>());
            bench.latent_prefill(name, heads, all);
        }
        bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))?;
    }
    Ok(())
}

/// Single rows after contexts up to the longest, by the kernels that are chosen.
pub(crate) fn decode(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    for (name, heads) in HEADS {
        let mut bench = Bench::open(rates, options.clone())?;
        bench.latent_decode(name, heads, &[&DECODE[..], &LONG_DECODE].concat());
        bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))?;
    }
    Ok(())
}

/// Prompts in both forms, with the products that either takes beside attention.
pub(crate) fn forms(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    for latent_form in [LatentForm::Absorbed, LatentForm::Expanded, LatentForm::Cheaper] {
        let mut bench = Bench::open(rates, CudaOptions { latent_form, ..options.clone() })?;
        println!("{latent_form:?}");
        bench.latent_forms();
        bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))?;
    }
    Ok(())
}

/// Products of heads.
pub(crate) fn products(rates: [f64; 2], options: &CudaOptions) -> Result<(), String> {
    let mut bench = Bench::open(rates, options.clone())?;
    bench.head_products();
    bench.backend.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))
}

fn heads(q: usize) -> Heads {
    Heads { q, kv: 1, dim: DIM, v_dim: RANK }
}

fn attention(q: usize) -> Attention {
    Attention::causal(heads(q), (DIM as f32).sqrt().recip())
}

impl Bench {
    /// As [`Self::caches`], of keys whose ends are values.
    fn latent_caches(&mut self, tokens: usize) -> Vec<KvLayer> {
        let layers = (ROTATION / (tokens * DIM * 2)).clamp(2, 16);
        let num_blocks = tokens.div_ceil(BLOCK) + 1;
        let dtype = DType::Bf16.into();
        let shape = KvShape {
            num_blocks,
            block_size: BLOCK,
            kv_heads: 1,
            head_dim: DIM,
            v_head_dim: RANK,
            shared: true,
            dtype,
        };
        let caches: Vec<KvLayer> = (0..layers).map(|_| self.backend.new_kv(shape)).collect();
        let qkv = self.act(MOST_ROWS, 2 * DIM);
        for start in (0..tokens).step_by(MOST_ROWS) {
            self.begin(&[(start, MOST_ROWS.min(tokens - start))]);
            caches.iter().for_each(|kv| self.backend.rope_and_cache(qkv, heads(1), None, *kv));
        }
        caches
    }

    /// Each of `shapes` is rows, and the tokens of each.
    fn latent_decode(&mut self, name: &str, q: usize, shapes: &[(usize, usize)]) {
        let (qkv, attention) = (self.act(64, (q + 1) * DIM), attention(q));
        let out = self.backend.new_rounded_act(64, q * RANK, DType::Bf16);
        for &(rows, length) in shapes {
            let caches = self.latent_caches(rows * length);
            self.begin(&vec![(length - 1, 1); rows]);
            let seconds =
                self.time(LEADS, |backend, i| backend.attention(qkv, attention, caches[i % caches.len()], None, out));
            let tokens = rows * length;
            let work = Work { bytes: (tokens * DIM * 2) as f64, flops: (2 * tokens * q * (DIM + RANK)) as f64 };
            self.report(name, &format!("latent decode, {rows} rows of {length}"), seconds, work);
        }
    }

    fn latent_prefill(&mut self, name: &str, q: usize, all: bool) {
        let shapes = [(1, 0, 512), (1, 0, 2048), (4, 0, 512), (1, 0, 8192), (1, 6144, 2048)];
        let most = if q == 16 { MOST_ROWS } else { 2048 };
        let (qkv, attention) = (self.act(most, (q + 1) * DIM), attention(q));
        let out = self.backend.new_rounded_act(most, q * RANK, DType::Bf16);
        for (sequences, start, rows) in shapes {
            if sequences * rows > most || !all && (q > 16 || start + rows > 2048) {
                continue;
            }
            let caches = self.latent_caches(sequences * (start + rows));
            self.begin(&vec![(start, rows); sequences]);
            let seconds = self
                .time_calls(0, 8, |backend, i| backend.attention(qkv, attention, caches[i % caches.len()], None, out));
            let seen = sequences * (rows * start + rows * (rows + 1) / 2);
            let work = Work { bytes: 0.0, flops: (2 * seen * q * (DIM + RANK)) as f64 };
            self.report(name, &format!("latent prefill, {sequences} x {rows} after {start}"), seconds, work);
        }
    }

    /// Prompts of DeepSeek-V2-Lite after contexts, from queries to values. The rate is that of heads with keys and
    /// values of their own, whatever is done.
    fn latent_forms(&mut self) {
        let (name, q) = HEADS[0];
        let shapes = [
            (1, 0, 256),
            (1, 0, 512),
            (1, 0, 1024),
            (1, 0, 2048),
            (1, 0, 8192),
            (5, 0, 1500),
            (1, 8192, 128),
            (1, 8192, 256),
            (1, 8192, 512),
            (1, 32_768, 256),
            (1, 32_768, 2048),
            (1, 32_768, 8192),
            (1, 131_072, 256),
            (1, 131_072, 2048),
            (1, 122_880, 8192),
        ];
        let buffers = [q * (NOPE + ROPE), (q + 1) * DIM, q * RANK].map(|width| self.act(MOST_ROWS, width));
        let [queries, absorbed, attended] = buffers;
        let out = self.backend.new_rounded_act(MOST_ROWS, q * VALUE, DType::Bf16);
        let [absorb, restore] = [[RANK, NOPE], [VALUE, RANK]].map(|[n, k]| {
            let matrices: Vec<Matrix> = (0..q).map(|_| self.matrix(n, k)).collect();
            self.backend.group_matrices(&matrices, MatrixUse::Heads)
        });
        let joined = self.backend.join_heads(absorb, restore);
        for (sequences, start, rows) in shapes {
            let kv = self.latent_caches(sequences * (start + rows))[0];
            self.begin(&vec![(start, rows); sequences]);
            let latent = LatentAttention {
                attention: attention(q),
                kv,
                queries,
                absorbed,
                attended,
                restore,
                value_dim: VALUE,
                joined,
            };
            let seen = sequences * (rows * start + rows * (rows + 1) / 2);
            let calls = if seen > 1 << 27 { 2 } else { 8 };
            let seconds = self.time_calls(0, calls, |backend, _| backend.latent_attention(latent, None, out));
            let work = Work { bytes: 0.0, flops: (2 * seen * q * (NOPE + ROPE + VALUE)) as f64 };
            self.report(name, &format!("latent, {sequences} x {rows} after {start}"), seconds, work);
        }
    }

    /// Queries into the latent space, and what they gathered out of it; and what is copied beside.
    fn head_products(&mut self) {
        let (name, q) = HEADS[0];
        let [absorb, restore] = [[RANK, NOPE], [VALUE, RANK]].map(|[n, k]| {
            let matrices: Vec<Matrix> = (0..q).map(|_| self.matrix(n, k)).collect();
            self.backend.group_matrices(&matrices, MatrixUse::Heads)
        });
        let queries = self.act(MOST_ROWS, q * (NOPE + ROPE));
        let (qk, attended) = (self.act(MOST_ROWS, (q + 1) * DIM), self.act(MOST_ROWS, q * RANK));
        let restored = self.backend.new_rounded_act(MOST_ROWS, q * VALUE, DType::Bf16);
        let cache = self.latent_caches(MOST_ROWS)[0];
        let inv_freq = self.backend.load_vector(&[0.5; ROPE / 2]);
        let rope = Some(Rope { inv_freq, rotary_dim: ROPE, style: RopeStyle::Interleaved, mscale: 1.0 });
        let at = |first, stride| HeadColumns { first, stride };
        for rows in [1, 16, 64, 256, MOST_ROWS] {
            self.begin(&[(0, rows)]);
            let leads = if rows > 256 { 0 } else { LEADS };
            let work = |n: usize, k: usize| Work {
                bytes: (2 * q * (n * k + rows * (n + k))) as f64,
                flops: (2 * rows * q * n * k) as f64,
            };
            let seconds = self.time(leads, |backend, _| {
                backend.head_matmul(queries, at(0, NOPE + ROPE), absorb, qk, at(ROPE, DIM));
            });
            self.report(name, &format!("absorb, {rows} rows"), seconds, work(RANK, NOPE));
            let seconds = self.time(leads, |backend, _| {
                backend.head_matmul(attended, at(0, RANK), restore, restored, at(0, VALUE));
            });
            self.report(name, &format!("restore, {rows} rows"), seconds, work(VALUE, RANK));
            let moved = |columns: usize| Work { bytes: (4 * rows * columns) as f64, flops: 0.0 };
            let seconds = self.time(leads, |backend, _| {
                backend.copy_columns(queries, at(NOPE, NOPE + ROPE), qk, at(0, DIM), q, ROPE);
            });
            self.report(name, &format!("copy what rotates, {rows} rows"), seconds, moved(q * ROPE));
            let seconds = self.time(leads, |backend, _| backend.rope_and_cache(qk, heads(q), rope, cache));
            self.report(name, &format!("rotate and cache, {rows} rows"), seconds, moved(q * ROPE + DIM));
        }
    }
}
