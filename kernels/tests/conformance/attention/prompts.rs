//! Prompts of heads in 16 bits, whole and in chunks: several tiles of rows and keys, of which some begin in the middle
//! and some end there.

use super::{Case, Extras, Part, check_case, with_attention_kernels};
use kernels::ops::{Backend, DType, Heads, KvDType, KvScales};

const TYPES: [DType; 2] = [DType::Bf16, DType::F16];

/// Sequences with (tokens in the cache, rows).
fn parts(sequences: &[(usize, usize)]) -> Vec<Part> {
    let part = |(sequence, &(start, rows)): (usize, &(usize, usize))| Part { sequence, start, rows };
    sequences.iter().enumerate().map(part).collect()
}

/// Over a cache of the rows' type.
fn check_16_bits(backends: &mut [Box<dyn Backend>], heads: Heads, block_size: usize, extras: &Extras) {
    let parts = parts(&[(0, 300), (200, 150), (70, 1), (511, 5), (0, 64)]);
    for acts in TYPES {
        check_case(backends, &Case { heads, block_size, dtype: acts.into(), acts, parts: &parts, extras });
    }
}

fn sinks(heads: Heads) -> Option<Vec<f32>> {
    Some((0..heads.q).map(|head| head as f32 - 3.0).collect())
}

/// ALiBi's for a power of two of heads: the first one's reaches a few tokens, the last one's hundreds.
fn slopes(heads: Heads) -> Option<Vec<f32>> {
    Some((1..=heads.q).map(|head| 0.5_f32.powf(8.0 * head as f32 / heads.q as f32)).collect())
}

#[test]
fn prompts_of_heads_in_16_bits() {
    let mut backends = with_attention_kernels();
    for dim in [64, 80, 96, 112, 128, 160, 192, 256] {
        for (index, (kv, block_size)) in [(2, 16), (8, 32), (1, 64)].into_iter().enumerate() {
            let heads = Heads { q: 8, kv, dim, v_dim: dim };
            let extras = match index {
                0 => Extras::default(),
                1 => Extras { window: Some(100), sinks: sinks(heads), ..Extras::default() },
                _ => Extras { window: Some(17), ..Extras::default() },
            };
            check_16_bits(&mut backends, heads, block_size, &extras);
        }
    }
}

/// Scores of up to 6, so that what is done to them tells, and no single weight is nearly all.
#[test]
fn prompts_with_soft_caps_and_alibi() {
    let mut backends = with_attention_kernels();
    let scale = |dim: usize| Some(1.5 / (dim as f32).sqrt());
    let heads = |kv, dim| Heads { q: 8, kv, dim, v_dim: dim };
    let capped = |dim| Extras { soft_cap: Some(4.0), scale: scale(dim), ..Extras::default() };
    let sloped = |heads: Heads| Extras { alibi: slopes(heads), scale: scale(heads.dim), ..Extras::default() };
    for (heads, block_size, extras) in [
        (heads(4, 256), 16, capped(256)),
        (heads(2, 256), 64, Extras { soft_cap: Some(50.0), window: Some(100), ..capped(256) }),
        (heads(4, 128), 32, capped(128)),
        (heads(8, 128), 16, sloped(heads(8, 128))),
        (heads(1, 128), 128, sloped(heads(1, 128))),
        (heads(2, 64), 16, Extras { window: Some(90), ..sloped(heads(2, 64)) }),
        (heads(2, 96), 32, Extras { sinks: sinks(heads(2, 96)), ..sloped(heads(2, 96)) }),
        (heads(2, 96), 16, Extras { soft_cap: Some(4.0), sinks: sinks(heads(2, 96)), ..sloped(heads(2, 96)) }),
    ] {
        check_16_bits(&mut backends, heads, block_size, &extras);
    }
}

/// Far keys with far larger scores than near ones, as the first token of a sequence often has them: with steep slopes
/// they must not be what weights are scaled by.
#[test]
fn far_keys_with_large_scores_and_alibi() {
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 4, kv: 4, dim: 64, v_dim: 64 };
    let extras = Extras { alibi: Some(vec![8.0, 0.5, 0.03, 0.001]), scale: Some(2.0), ..Extras::default() };
    let parts = parts(&[(1500, 40), (0, 700)]);
    for acts in TYPES {
        let case = Case { heads, block_size: 16, dtype: acts.into(), acts, parts: &parts, extras: &extras };
        check_case(&mut backends, &case);
    }
}

#[test]
fn prompts_over_8_bit_caches() {
    let mut backends = with_attention_kernels();
    let parts = parts(&[(0, 300), (200, 150), (70, 1), (511, 5)]);
    let scales = KvScales { key: 0.5, value: 0.3 };
    for (index, dim) in [64, 80, 96, 112, 128, 256].into_iter().enumerate() {
        let heads = Heads { q: 8, kv: [2, 8, 1][index % 3], dim, v_dim: dim };
        let plain = Extras { scales, ..Extras::default() };
        let windowed = Extras { window: Some(100), sinks: sinks(heads), ..plain.clone() };
        let capped = Extras { soft_cap: Some(4.0), alibi: slopes(heads), ..plain.clone() };
        for extras in [plain, windowed, capped] {
            let acts = TYPES[index % 2];
            let case = Case { heads, block_size: 16, dtype: KvDType::E4m3, acts, parts: &parts, extras: &extras };
            check_case(&mut backends, &case);
        }
    }
}

/// Falcon's: a tile of rows has few tokens, and no whole number of them.
#[test]
fn prompts_of_71_query_heads_a_key_head() {
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 71, kv: 1, dim: 64, v_dim: 64 };
    check_16_bits(&mut backends, heads, 16, &Extras::default());
}
