//! Single rows of layers where many query heads share a key head (MQA, and GQA with large groups), of which a device
//! may take more at a time where there are many sequences.

use super::cascade::{cascading, over_one_prefix};
use super::{Case, Extras, Part, Random, check_case, check_sharing, with_attention_kernels};
use kernels::ops::{DType, Heads, KvDType, KvScales};

/// Sequences with one row, after so many tokens each.
fn rows_after(starts: impl IntoIterator<Item = usize>) -> Vec<Part> {
    starts.into_iter().enumerate().map(|(sequence, start)| Part { sequence, start, rows: 1 }).collect()
}

/// The same for many sequences: first these, and short ones.
fn many_after(starts: &[usize]) -> Vec<Part> {
    const SEQUENCES: usize = 34;
    let short = [5, 64, 0, 129, 63, 100, 1, 16].into_iter().cycle();
    rows_after(starts.iter().copied().chain(short).take(SEQUENCES))
}

const TYPES: [(KvDType, DType); 4] = [
    (KvDType::Float(DType::Bf16), DType::Bf16),
    (KvDType::Float(DType::F16), DType::F16),
    (KvDType::E4m3, DType::Bf16),
    (KvDType::E4m3, DType::F16),
];

/// Groups that fill a block's warps and do not, that need several blocks, and several key heads.
#[test]
fn groups_of_any_size() {
    let mut backends = with_attention_kernels();
    let (few, many) = (rows_after([0, 1, 63, 64, 300]), many_after(&[15, 127, 300, 31]));
    let groups = [(17, 1), (48, 1), (64, 1), (71, 1), (80, 1), (81, 1), (130, 1), (58, 2), (96, 3)];
    for (index, (q, kv)) in groups.into_iter().enumerate() {
        for dim in [64, 128] {
            let (dtype, acts) = TYPES[(index + dim / 64) % TYPES.len()];
            let (heads, extras) = (Heads { q, kv, dim, v_dim: dim }, &Extras::default());
            let parts = if dim == 64 { &many } else { &few };
            check_case(&mut backends, &Case { heads, block_size: 16, dtype, acts, parts, extras });
        }
    }
}

#[test]
fn heads_of_any_width() {
    let mut backends = with_attention_kernels();
    let (few, many) = (rows_after([130, 0, 47, 200]), many_after(&[130, 47]));
    for (dim, v_dim) in [(16, 16), (32, 32), (80, 80), (96, 96), (112, 112), (256, 256), (48, 64), (128, 64)] {
        for (index, (dtype, acts)) in TYPES.into_iter().enumerate() {
            let heads = Heads { q: [48, 35][index % 2], kv: 1, dim, v_dim };
            let (block_size, extras) = ([16, 64][index / 2], &Extras::default());
            let parts = if dim <= 64 { &many } else { &few };
            check_case(&mut backends, &Case { heads, block_size, dtype, acts, parts, extras });
        }
    }
}

/// A row's keys are cut among blocks, of which some begin and end within several sequences.
#[test]
fn long_and_short_contexts() {
    let mut backends = with_attention_kernels();
    for (heads, parts) in [
        (Heads { q: 71, kv: 1, dim: 64, v_dim: 64 }, rows_after([9001])),
        (Heads { q: 71, kv: 1, dim: 64, v_dim: 64 }, many_after(&[2600, 5, 1999, 0, 1023])),
        (Heads { q: 48, kv: 1, dim: 128, v_dim: 128 }, rows_after([2600, 5, 1999, 64, 0, 1023, 700, 129])),
        (Heads { q: 64, kv: 2, dim: 64, v_dim: 64 }, many_after(&[3333, 3333])),
    ] {
        for (dtype, acts) in [TYPES[0], TYPES[3]] {
            let (parts, extras) = (&parts, &Extras::default());
            check_case(&mut backends, &Case { heads, block_size: 32, dtype, acts, parts, extras });
        }
    }
}

#[test]
fn extras_of_many_query_heads() {
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 142, kv: 2, dim: 64, v_dim: 64 };
    let vector = |seed| Random(seed).values(heads.q);
    let slopes: Vec<f32> = vector(5).into_iter().map(|x| x.abs() / 4.0).collect();
    let scales = KvScales { key: 0.013, value: 0.3 };
    let head_scales = Some([vec![0.7, 1.9], vec![1.2, 0.6]]);
    let parts = many_after(&[300, 0, 64, 1200, 77]);
    for extras in &[
        Extras { window: Some(1), ..Extras::default() },
        Extras { window: Some(100), sinks: Some(vector(6)), ..Extras::default() },
        Extras { soft_cap: Some(2.0), window: Some(190), ..Extras::default() },
        Extras { sinks: Some(vector(7)), ..Extras::default() },
        Extras { alibi: Some(slopes), soft_cap: Some(30.0), ..Extras::default() },
        Extras { scales, head_scales, ..Extras::default() },
    ] {
        for (dtype, acts) in [TYPES[0], TYPES[2]] {
            if extras.head_scales.is_none() || dtype == KvDType::E4m3 {
                check_case(&mut backends, &Case { heads, block_size: 16, dtype, acts, parts: &parts, extras });
            }
        }
    }
}

/// What is left of each row after a prefix that several share.
#[test]
fn many_query_heads_over_one_prefix() {
    let mut backends = cascading();
    for (index, (q, kv, dim)) in [(71, 1, 64), (48, 1, 128), (64, 1, 64), (160, 2, 32)].into_iter().enumerate() {
        let heads = Heads { q, kv, dim, v_dim: dim };
        for (count, shared, own) in [(2, 16, [0, 1, 40]), (5, 320, [17, 0, 600]), (9, 208, [1, 15, 16])] {
            let (parts, shared) = over_one_prefix(count, shared, &own);
            let (dtype, acts) = TYPES[index % TYPES.len()];
            let case = Case { heads, block_size: 16, dtype, acts, parts: &parts, extras: &Extras::default() };
            check_sharing(&mut backends, &case, &shared);
        }
    }
}
