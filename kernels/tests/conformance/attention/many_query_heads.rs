//! Single rows of layers where many query heads share a key head (MQA, and GQA with large groups), which a device may
//! take more of at a time than of others.

use super::cascade::{cascading, over_one_prefix};
use super::{Case, Extras, Part, Random, check_case, check_sharing, with_attention_kernels};
use kernels::ops::{DType, Heads, KvDType, KvScales};

/// Sequences with one row each, after `starts` tokens.
fn rows_after(starts: impl IntoIterator<Item = usize>) -> Vec<Part> {
    starts.into_iter().enumerate().map(|(sequence, start)| Part { sequence, start, rows: 1 }).collect()
}

/// The same for many sequences: first these, and short ones.
fn many_after(starts: &[usize]) -> Vec<Part> {
    const SEQUENCES: usize = 33;
    let short = [5, 17, 0, 33, 1, 15].into_iter().cycle();
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
    let (few, many) = (rows_after([0, 1, 63, 64, 300]), many_after(&[127, 63, 64, 300]));
    let groups = [(48, 1), (64, 1), (71, 1), (81, 1), (96, 2), (17, 1), (58, 2), (130, 1)];
    for (index, (q, kv)) in groups.into_iter().enumerate() {
        let (dtype, acts) = TYPES[index % TYPES.len()];
        for (dim, parts) in [[(64, &many), (128, &few)], [(64, &few), (128, &many)]][index % 2] {
            let (heads, extras) = (Heads { q, kv, dim, v_dim: dim }, &Extras::default());
            check_case(&mut backends, &Case { heads, block_size: 16, dtype, acts, parts, extras });
        }
    }
}

#[test]
fn heads_of_any_width() {
    let mut backends = with_attention_kernels();
    let (few, many) = (rows_after([130, 0, 47]), many_after(&[130, 47]));
    for (index, (dim, v_dim)) in
        [(16, 16), (32, 32), (48, 64), (64, 48), (96, 96), (256, 256), (128, 64), (80, 80), (112, 112)]
            .into_iter()
            .enumerate()
    {
        for (dtype, acts) in [TYPES[index % 2], TYPES[2 + index % 2]] {
            let heads = Heads { q: [48, 35][index % 2], kv: 1, dim, v_dim };
            let (block_size, extras) = ([16, 64][index / 2 % 2], &Extras::default());
            let parts = if index % 2 == 0 { &many } else { &few };
            check_case(&mut backends, &Case { heads, block_size, dtype, acts, parts, extras });
        }
    }
}

/// A row's keys are cut among blocks, of which some begin and end within several sequences.
#[test]
fn long_and_short_contexts() {
    let mut backends = with_attention_kernels();
    let heads = |q, kv, dim| Heads { q, kv, dim, v_dim: dim };
    for (heads, parts, (dtype, acts)) in [
        (heads(71, 1, 64), rows_after([3001]), TYPES[0]),
        (heads(71, 1, 64), rows_after([1300, 5, 999, 64, 0, 513, 129]), TYPES[3]),
        (heads(71, 1, 64), many_after(&[1700, 5, 999, 0, 640]), TYPES[0]),
        (heads(80, 2, 64), many_after(&[1333, 1333]), TYPES[3]),
        (heads(80, 2, 64), rows_after([200; 32]), TYPES[0]),
        (heads(48, 1, 128), many_after(&[1700, 5, 0, 640]), TYPES[1]),
        (heads(20, 1, 16), many_after(&[9001]), TYPES[2]),
        (heads(71, 1, 64), many_after(&[3001]), TYPES[0]),
    ] {
        let (parts, extras) = (&parts, &Extras::default());
        check_case(&mut backends, &Case { heads, block_size: 32, dtype, acts, parts, extras });
    }
}

/// What blocks leave each other in one step is gone in the next, which cuts the keys otherwise.
#[test]
fn steps_after_each_other() {
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 71, kv: 1, dim: 64, v_dim: 64 };
    for starts in [&[1501][..], &[700, 1000], &[1, 999, 500], &[1501]] {
        let (parts, (dtype, acts)) = (&many_after(starts), TYPES[0]);
        check_case(&mut backends, &Case { heads, block_size: 16, dtype, acts, parts, extras: &Extras::default() });
    }
}

#[test]
fn extras_of_many_query_heads() {
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 80, kv: 2, dim: 64, v_dim: 64 };
    let vector = |seed| Random(seed).values(heads.q);
    let slopes: Vec<f32> = vector(5).into_iter().map(|x| x.abs() / 4.0).collect();
    let scales = KvScales { key: 0.013, value: 0.3 };
    let head_scales = Some([vec![0.7, 1.9], vec![1.2, 0.6]]);
    let parts = many_after(&[300, 0, 64, 77]);
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
    for (index, (q, kv, dim)) in [(71, 1, 64), (48, 1, 128), (80, 2, 32)].into_iter().enumerate() {
        let heads = Heads { q, kv, dim, v_dim: dim };
        for (count, shared, own) in [(5, 320, [17, 0, 300]), (34, 208, [1, 15, 16])] {
            let (parts, shared) = over_one_prefix(count, shared, &own);
            let (dtype, acts) = TYPES[index % TYPES.len()];
            let case = Case { heads, block_size: 16, dtype, acts, parts: &parts, extras: &Extras::default() };
            check_sharing(&mut backends, &case, &shared);
        }
    }
}
