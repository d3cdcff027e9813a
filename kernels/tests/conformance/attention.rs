//! Rope, cache and attention against float64, over head shapes, block sizes, ragged batches and everything attention
//! does on the side.

mod cascade;
mod many_query_heads;
mod prompts;

use super::{Random, backends, check, check_relative, filled_in, gpu};
use kernels::ops::{
    Attention, Backend, Batch, DType, HeadScales, Heads, KvDType, KvLayer, KvScales, KvShape, Mask, RelativeBias, Rope,
    RopeStyle, RowSelection, Sequence,
};
use kernels_cuda::{AttentionBackend, CudaOptions};

/// All backends, and GPUs once more with each kind of attention kernels that may be asked for.
pub fn with_attention_kernels() -> Vec<Box<dyn Backend>> {
    let mut all = backends();
    let has_gpu = all.iter().any(|backend| backend.memory().is_some());
    let kinds = [AttentionBackend::Mma, AttentionBackend::Plain];
    let asked = kinds.into_iter().filter(|_| has_gpu);
    all.extend(asked.map(|attention| gpu::open(&CudaOptions { attention, ..gpu::options() })));
    all
}

/// A cache with sequences in it, and what was written there.
pub struct World {
    pub heads: Heads,
    pub kv: KvLayer,
    pub rope: Option<Rope>,
    /// What activations may be rounded to.
    pub acts: DType,
    /// Block table of each sequence.
    pub blocks: Vec<Vec<u32>>,
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub sequence: usize,
    pub start: usize,
    pub rows: usize,
}

impl World {
    /// Sequences of up to `lengths` tokens, on shuffled blocks full of NaN.
    pub fn new(
        backend: &mut dyn Backend,
        heads: Heads,
        block_size: usize,
        dtype: impl Into<KvDType>,
        lengths: &[usize],
    ) -> Self {
        let counts: Vec<usize> = lengths.iter().map(|length| length.div_ceil(block_size)).collect();
        let num_blocks = counts.iter().sum::<usize>() + 1;
        let shape = KvShape {
            num_blocks,
            block_size,
            kv_heads: heads.kv,
            head_dim: heads.dim,
            v_head_dim: heads.v_dim,
            shared: false,
            dtype: dtype.into(),
        };
        let kv = backend.new_kv(shape);
        let mut free = Random(num_blocks as u64).permutation(num_blocks);
        let mut world = Self { heads, kv, rope: None, acts: DType::F32, blocks: vec![free.clone()] };
        let width = world.width();
        world.step(backend, &[Part { sequence: 0, start: 0, rows: num_blocks * block_size }], |_, _| {
            vec![f32::NAN; width]
        });
        world.blocks = counts.iter().map(|&count| free.split_off(free.len() - count)).collect();
        world
    }

    pub fn width(&self) -> usize {
        width(self.heads)
    }

    /// Writes rows to the cache; returns their (rotated) qkv in a buffer.
    pub fn step(
        &self,
        backend: &mut dyn Backend,
        parts: &[Part],
        row: impl Fn(usize, usize) -> Vec<f32>,
    ) -> kernels::ops::Act {
        let rows = |part: &Part| part.start..part.start + part.rows;
        let values: Vec<f32> = parts.iter().flat_map(|part| rows(part).flat_map(|at| row(part.sequence, at))).collect();
        let qkv = filled_in(backend, self.width(), &values, self.acts);
        let positions: Vec<u32> = parts.iter().flat_map(rows).map(|position| position as u32).collect();
        let mut first_row = 0;
        let mut sequences = Vec::new();
        let tables: Vec<[Vec<u32>; 1]> = self.blocks.iter().map(|blocks| [blocks.clone()]).collect();
        for part in parts {
            let Part { sequence, start, rows } = *part;
            let tables = &tables[sequence];
            sequences.push(Sequence { first_row, num_rows: rows, start, tables, slot: sequence });
            first_row += rows;
        }
        backend.begin(Batch { tokens: &positions, positions: &positions, sequences: &sequences });
        backend.rope_and_cache(qkv, self.heads, self.rope, self.kv);
        qkv
    }
}

fn width(heads: Heads) -> usize {
    (heads.q + heads.kv) * heads.dim + heads.kv * heads.v_dim
}

/// The row of qkv that a sequence has at a position, before rotation.
pub fn row(seed: u64, width: usize, sequence: usize, position: usize) -> Vec<f32> {
    Random(seed ^ (sequence as u64) << 40 ^ (position as u64) << 8).values(width)
}

/// What a layer does beside plain attention, by value.
#[derive(Clone, Default, Debug)]
pub struct Extras {
    pub window: Option<usize>,
    pub soft_cap: Option<f32>,
    pub sinks: Option<Vec<f32>>,
    pub alibi: Option<Vec<f32>>,
    /// Biases by distance, `[heads.q, 2 * reach + 1]`.
    pub relative: Option<Vec<f32>>,
    /// What scores are multiplied by, if not the usual for the size of heads.
    pub scale: Option<f32>,
    /// What the cache keeps keys and values divided by.
    pub scales: KvScales,
    /// The same of the keys, and of the values, of each key head, times those of the layer.
    pub head_scales: Option<[Vec<f32>; 2]>,
    pub mask: Mask,
}

impl Extras {
    /// Of a key head's keys and values.
    fn scales_of(&self, head: usize) -> KvScales {
        let [key, value] = self.head_scales.as_ref().map_or([1.0; 2], |[key, value]| [key[head], value[head]]);
        KvScales { key: self.scales.key * key, value: self.scales.value * value }
    }
}

/// One query head of a row.
#[derive(Clone, Copy)]
struct Query {
    position: usize,
    heads: Heads,
    head: usize,
}

/// How far learned biases differ by distance.
fn reach(biases: &[f32], heads: Heads) -> i64 {
    (biases.len() / heads.q / 2) as i64
}

/// One query head of the row at `position`, over a sequence's qkv rows, whose k and v are as the cache keeps them.
fn reference(rows: &[Vec<f32>], query: Query, scale: f32, extras: &Extras) -> Vec<f64> {
    let Query { position, heads, head } = query;
    let history = &rows[..extras.mask.end(position, rows.len(), extras.window)];
    let kv = head / (heads.q / heads.kv);
    let query = &history[position][head * heads.dim..][..heads.dim];
    let first = extras.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let mut scores = Vec::new();
    for (at, row) in history.iter().enumerate().skip(first) {
        let key = &row[(heads.q + kv) * heads.dim..][..heads.dim];
        let dot: f64 = query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        let mut score = dot * f64::from(scale);
        if let Some(cap) = extras.soft_cap {
            score = f64::from(cap) * (score / f64::from(cap)).tanh();
        }
        if let Some(slopes) = &extras.alibi {
            score -= f64::from(slopes[head]) * (at as f64 - position as f64).abs();
        }
        if let Some(biases) = &extras.relative {
            let reach = reach(biases, heads);
            let distance = (at as i64 - position as i64).clamp(-reach, reach);
            score += f64::from(biases[head * (2 * reach as usize + 1)..][(distance + reach) as usize]);
        }
        scores.push(score);
    }
    let sink = extras.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
    let highest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
    let total = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - highest).exp());
    let mut out = vec![0.0; heads.v_dim];
    for (row, weight) in history[first..].iter().zip(&weights) {
        let value = &row[(heads.q + heads.kv) * heads.dim + kv * heads.v_dim..][..heads.v_dim];
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight / total * f64::from(*value));
    }
    out
}

/// A layer, a cache, and one ragged step.
pub struct Case<'a> {
    pub heads: Heads,
    pub block_size: usize,
    /// Of the cache.
    pub dtype: KvDType,
    /// What activations may be rounded to.
    pub acts: DType,
    pub parts: &'a [Part],
    pub extras: &'a Extras,
}

/// The rows and heads of a part that are checked.
fn samples(part: &Part, heads: Heads) -> impl Iterator<Item = (usize, usize)> {
    let steps = [0, part.rows / 2, part.rows - 1];
    let checked = move || (0..heads.q).step_by(13).chain([heads.q / 2, heads.q - 1]);
    steps.into_iter().flat_map(move |step| checked().map(move |head| (step, head)))
}

/// What every backend should find for the samples, part by part.
fn references(case: &Case<'_>, shared: &[usize], scale: f32) -> Vec<Vec<f64>> {
    let (heads, width) = (case.heads, width(case.heads));
    let mut all = Vec::new();
    for part in case.parts {
        let row = |at| rounded_row(width, owner(shared, part.sequence, at), at, case.acts);
        let mut rows: Vec<Vec<f32>> = (0..part.start + part.rows).map(row).collect();
        let (keys, values) = (heads.q * heads.dim, (heads.q + heads.kv) * heads.dim);
        for row in &mut rows {
            let kept = |x: &mut f32, scale: f32| *x = super::round_cached(*x * (1.0 / scale), case.dtype) * scale;
            for (head, key) in row[keys..values].chunks_mut(heads.dim).enumerate() {
                key.iter_mut().for_each(|x| kept(x, case.extras.scales_of(head).key));
            }
            for (head, value) in row[values..].chunks_mut(heads.v_dim).enumerate() {
                value.iter_mut().for_each(|x| kept(x, case.extras.scales_of(head).value));
            }
        }
        all.extend(samples(part, heads).map(|(step, head)| {
            reference(&rows, Query { position: part.start + step, heads, head }, scale, case.extras)
        }));
    }
    all
}

const SEED: u64 = 7;

/// A row as an activation buffer may keep it.
fn rounded_row(width: usize, sequence: usize, position: usize, acts: DType) -> Vec<f32> {
    row(SEED, width, sequence, position).into_iter().map(|x| super::round(x, acts)).collect()
}

/// Whose row a sequence has at a position, if it shares its first tokens with others.
fn owner(shared: &[usize], sequence: usize, position: usize) -> usize {
    const EVERYBODY: usize = 1 << 20;
    if shared.get(sequence).is_some_and(|tokens| position < *tokens) { EVERYBODY } else { sequence }
}

/// Fills sequences, runs the step, and checks some heads and rows of it.
pub fn check_case(backends: &mut [Box<dyn Backend>], case: &Case<'_>) {
    check_sharing(backends, case, &[]);
}

/// The same where the parts are of one sequence each, in order, whose first `shared` tokens, whole blocks, lie in the
/// same blocks: those of the sequence that shares most.
fn check_sharing(backends: &mut [Box<dyn Backend>], case: &Case<'_>, shared: &[usize]) {
    let Case { heads, block_size, dtype, acts, parts, extras } = *case;
    let scale = extras.scale.unwrap_or_else(|| (heads.dim as f32).sqrt().recip());
    let width = width(heads);
    let wanted = references(case, shared, scale);
    let lengths: Vec<usize> = parts.iter().map(|part| part.start + part.rows).collect();
    let first = (0..shared.len()).max_by_key(|&sequence| shared[sequence]);
    // Shared blocks are written once.
    let history = parts.iter().map(|part| {
        let begin = if first == Some(part.sequence) { 0 } else { shared.get(part.sequence).copied().unwrap_or(0) };
        Part { start: begin, rows: part.start - begin, ..*part }
    });
    let history: Vec<Part> = history.filter(|part| part.rows > 0).collect();
    for backend in backends {
        let backend = &mut **backend;
        let mut world = World { acts, ..World::new(backend, heads, block_size, dtype, &lengths) };
        for (sequence, tokens) in shared.iter().enumerate() {
            let blocks = tokens / block_size;
            let head = world.blocks[first.expect("some share")][..blocks].to_vec();
            world.blocks[sequence][..blocks].copy_from_slice(&head);
        }
        world.kv.scales = extras.scales;
        world.kv.head_scales = extras
            .head_scales
            .as_ref()
            .map(|[key, value]| HeadScales { key: backend.load_vector(key), value: backend.load_vector(value) });
        let row = |sequence, at| rounded_row(width, owner(shared, sequence, at), at, acts);
        world.step(backend, &history, row);
        let qkv = world.step(backend, parts, row);
        let layer = Attention {
            heads,
            scale,
            window: extras.window,
            soft_cap: extras.soft_cap,
            sinks: extras.sinks.as_ref().map(|sinks| backend.load_vector(sinks)),
            alibi: extras.alibi.as_ref().map(|slopes| backend.load_vector(slopes)),
            relative: extras.relative.as_ref().map(|biases| RelativeBias {
                table: backend.load_vector(biases),
                reach: reach(biases, heads) as usize,
            }),
            mask: extras.mask,
        };
        let out = backend.new_rounded_act(parts.iter().map(|part| part.rows).sum(), heads.q * heads.v_dim, acts);
        backend.host_mut(out).fill(f32::NAN);
        backend.attention(qkv, layer, world.kv, None, out);
        let what = format!(
            "{} {heads:?} blocks of {block_size} {dtype:?} {acts:?} {parts:?} sharing {shared:?} {extras:?}",
            backend.describe()
        );
        let got = backend.read(out);
        assert!(got.iter().all(|x| x.is_finite()), "{what}: not finite");
        check_rows(&what, got, case, &wanted, |_, _| true);
        // The last row of each part, as where only these go on to logits.
        let ends = parts.iter().scan(0, |end, part| {
            *end += part.rows;
            Some(*end)
        });
        let last: Vec<u32> = ends.map(|end| end as u32 - 1).collect();
        backend.host_mut(out).fill(f32::NAN);
        backend.attention(qkv, layer, world.kv, Some(RowSelection { rows: &last }), out);
        let what = format!("the last rows alone, {what}");
        check_rows(&what, backend.read(out), case, &wanted, |part, step| step + 1 == part.rows);
    }
}

/// Compares samples of a step, those of the rows that are looked at, with their references.
fn check_rows(what: &str, got: &[f32], case: &Case<'_>, wanted: &[Vec<f64>], looked_at: impl Fn(&Part, usize) -> bool) {
    let Case { heads, dtype, acts, parts, .. } = *case;
    let mut first_row = 0;
    let mut wanted = wanted.iter();
    for part in parts {
        for ((step, head), want) in
            samples(part, heads).zip(wanted.by_ref()).filter(|((step, _), _)| looked_at(part, *step))
        {
            let at = (first_row + step) * heads.q * heads.v_dim + head * heads.v_dim;
            let allowed = |index: usize| tolerance(dtype, acts) * want[index].abs().max(1.0);
            check(what, &got[at..at + heads.v_dim], want, allowed);
        }
        first_row += part.rows;
    }
}

/// Values are of size one, and so are results. With a bf16 cache a backend may round queries and weights to bf16.
pub fn tolerance(cache: KvDType, acts: DType) -> f64 {
    match (cache, acts) {
        (KvDType::Float(DType::Bf16), _) | (_, DType::Bf16) => 8e-3,
        (_, DType::F16) => 2e-3,
        _ => 2e-5,
    }
}

pub fn mix() -> Vec<Part> {
    [(0, 9), (30, 1), (130, 1), (16, 5), (63, 2)]
        .into_iter()
        .enumerate()
        .map(|(sequence, (start, rows))| Part { sequence, start, rows })
        .collect()
}

#[test]
fn head_shapes() {
    let mut backends = with_attention_kernels();
    let mut run = |heads, block_size, dtype| {
        check_case(
            &mut backends,
            &Case {
                heads,
                block_size,
                dtype: KvDType::Float(dtype),
                acts: DType::F32,
                parts: &mix(),
                extras: &Extras::default(),
            },
        );
    };
    for (index, dim) in [16, 32, 64, 80, 96, 112, 128, 256, 20].into_iter().enumerate() {
        for (q, kv) in [(3, 3), (8, 2), (7, 1)] {
            let dtype = [DType::F32, DType::Bf16, DType::F16][index % 3];
            run(Heads { q, kv, dim, v_dim: dim }, if index % 2 == 0 { 16 } else { 32 }, dtype);
        }
    }
    for (dim, v_dim) in [(192, 128), (24, 40), (64, 16)] {
        run(Heads { q: 4, kv: 2, dim, v_dim }, 16, DType::F32);
        run(Heads { q: 4, kv: 2, dim, v_dim }, 16, DType::Bf16);
    }
    run(Heads { q: 71, kv: 1, dim: 64, v_dim: 64 }, 16, DType::Bf16);
}

#[test]
fn block_sizes() {
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 4, kv: 2, dim: 32, v_dim: 32 };
    for block_size in [1, 5, 8, 16, 24, 32, 64, 128, 256] {
        for dtype in [DType::F32.into(), DType::Bf16.into(), DType::F16.into(), KvDType::E4m3] {
            check_case(
                &mut backends,
                &Case { heads, block_size, dtype, acts: DType::F32, parts: &mix(), extras: &Extras::default() },
            );
        }
    }
}

#[test]
fn windows_caps_sinks_and_slopes() {
    let heads = Heads { q: 4, kv: 2, dim: 64, v_dim: 64 };
    let (sinks, slopes) = (vec![0.5, -2.0, 3.0, 0.0], vec![0.5, 0.25, 0.125, 0.0625]);
    let cases = [
        Extras { window: Some(1), ..Extras::default() },
        Extras { window: Some(17), ..Extras::default() },
        Extras { window: Some(100), sinks: Some(sinks.clone()), ..Extras::default() },
        Extras { soft_cap: Some(2.0), ..Extras::default() },
        Extras { soft_cap: Some(50.0), window: Some(64), ..Extras::default() },
        Extras { sinks: Some(sinks), ..Extras::default() },
        Extras { alibi: Some(slopes), ..Extras::default() },
    ];
    let mut backends = with_attention_kernels();
    for extras in &cases {
        for dtype in [DType::F32.into(), DType::Bf16.into(), KvDType::E4m3] {
            check_case(&mut backends, &Case { heads, block_size: 16, dtype, acts: DType::F32, parts: &mix(), extras });
        }
    }
}

#[test]
fn scales_of_keys_and_values() {
    let mut backends = with_attention_kernels();
    let scales = KvScales { key: 0.013, value: 0.3 };
    for dim in [32, 64, 128] {
        let (heads, sinks) = (Heads { q: 4, kv: 2, dim, v_dim: dim }, Some(vec![0.5, -2.0, 3.0, 0.0]));
        let (alone, beside) = ([vec![0.013, 0.4], vec![0.02, 1.7]], [vec![0.7, 1.9], vec![1.2, 0.6]]);
        let head_scales = Some(beside);
        for extras in &[
            Extras { scales, ..Extras::default() },
            Extras { head_scales: Some(alone), ..Extras::default() },
            Extras { scales, head_scales, window: Some(50), sinks, soft_cap: Some(8.0), ..Extras::default() },
        ] {
            for acts in [DType::F32, DType::Bf16] {
                let parts = &mix();
                check_case(&mut backends, &Case { heads, block_size: 16, dtype: KvDType::E4m3, acts, parts, extras });
            }
        }
    }
}

#[test]
fn tokens_after_a_token_are_seen() {
    let part = |sequence, rows| Part { sequence, start: 0, rows };
    let mut backends = with_attention_kernels();
    let parts = [part(0, 1), part(1, 70), part(2, 9), part(3, 300)];
    let mask = Mask::Bidirectional;
    for heads in [Heads { q: 3, kv: 3, dim: 32, v_dim: 32 }, Heads { q: 4, kv: 2, dim: 64, v_dim: 64 }] {
        let slopes: Vec<f32> = (0..heads.q).map(|head| 0.5_f32.powi(head as i32 + 1)).collect();
        for extras in &[
            Extras { mask, ..Extras::default() },
            Extras { mask, window: Some(9), ..Extras::default() },
            Extras { mask, window: Some(130), ..Extras::default() },
            Extras { mask, alibi: Some(slopes), ..Extras::default() },
            Extras { mask, relative: Some(Random(3).values(heads.q * 33)), ..Extras::default() },
            Extras { mask, relative: Some(Random(4).values(heads.q * 257)), ..Extras::default() },
        ] {
            for (dtype, acts) in [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16), (DType::F16, DType::F16)] {
                let case = Case { heads, block_size: 16, dtype: dtype.into(), acts, parts: &parts, extras };
                check_case(&mut backends, &case);
            }
        }
    }
}

#[test]
fn long_contexts() {
    let part = |sequence, start, rows| Part { sequence, start, rows };
    let mut backends = with_attention_kernels();
    let heads = Heads { q: 2, kv: 1, dim: 32, v_dim: 32 };
    for extras in &[Extras::default(), Extras { window: Some(1500), ..Extras::default() }] {
        let one = [part(0, 3000, 1)];
        check_case(
            &mut backends,
            &Case { heads, block_size: 16, dtype: DType::Bf16.into(), acts: DType::F32, parts: &one, extras },
        );
        let mix = [part(0, 1000, 60), part(1, 2047, 3), part(2, 0, 1)];
        check_case(
            &mut backends,
            &Case { heads, block_size: 32, dtype: DType::F32.into(), acts: DType::F32, parts: &mix, extras },
        );
    }
}

/// A rotation of heads' first elements.
#[derive(Clone, Copy, Debug)]
struct Rotation {
    dim: usize,
    rotary_dim: usize,
    style: RopeStyle,
    mscale: f32,
}

#[test]
fn rope_rotates_and_the_cache_keeps_it() {
    for mut backend in backends() {
        let backend = &mut *backend;
        for (dim, rotary_dim, style, mscale) in [
            (64, 64, RopeStyle::Halves, 1.0),
            (80, 32, RopeStyle::Halves, 1.0),
            (96, 24, RopeStyle::Halves, 1.0),
            (80, 20, RopeStyle::Halves, 1.0),
            (64, 64, RopeStyle::Interleaved, 1.0),
            (128, 64, RopeStyle::Interleaved, 1.2),
            (96, 24, RopeStyle::Interleaved, 1.2),
        ] {
            let rotation = Rotation { dim, rotary_dim, style, mscale };
            check_rotation(backend, rotation, DType::F32, DType::F32.into(), 5e-5);
            // Heads of one width alone: attention is compiled for each.
            if dim == 96 {
                check_rotation(backend, rotation, DType::Bf16, DType::Bf16.into(), 8e-3);
                check_rotation(backend, rotation, DType::F16, KvDType::E4m3, 0.12);
            }
        }
    }
}

fn check_rotation(backend: &mut dyn Backend, rotation: Rotation, acts: DType, cache: KvDType, relative: f64) {
    let Rotation { dim, rotary_dim, style, mscale } = rotation;
    let what = |part: &str| format!("{part}, {rotation:?}, rows of {acts:?} in a cache of {}", cache.name());
    let heads = Heads { q: 4, kv: 2, dim, v_dim: dim };
    let mut world = World::new(backend, heads, 16, cache, &[2000]);
    world.acts = acts;
    let inv_freq: Vec<f32> =
        (0..rotary_dim / 2).map(|i| 10_000_f32.powf(-2.0 * i as f32 / rotary_dim as f32)).collect();
    world.rope = Some(Rope { inv_freq: backend.load_vector(&inv_freq), rotary_dim, style, mscale });
    let width = world.width();
    // Where tiles of keys begin: some kernels multiply all keys of one, and those before were never written.
    let part = Part { sequence: 0, start: 1920, rows: 3 };
    let make = |sequence, position| -> Vec<f32> {
        row(3, width, sequence, position).into_iter().map(|value| super::round(value, acts)).collect()
    };
    let qkv = world.step(backend, &[part], make);
    let mut want = Vec::new();
    for position in part.start..part.start + part.rows {
        let mut x: Vec<f64> = make(0, position).into_iter().map(f64::from).collect();
        for head in x[..6 * dim].chunks_exact_mut(dim) {
            rotate(head, &inv_freq, position, style, f64::from(mscale));
        }
        want.extend(x);
    }
    let rounding = if acts == DType::F32 { 1e-5 } else { 8e-3 };
    check_relative(&what("rotated"), backend.read(qkv), &want, rounding);

    // A window of one token, beside a sink of nothing, returns that token's value times the sigmoid of its score: the
    // cache holds k rotated, and v as it was.
    let out = filled_in(backend, 4 * dim, &vec![f32::NAN; 3 * 4 * dim], acts);
    let qkv = world.step(backend, &[part], make);
    let (window, sinks) = (Some(1), Some(backend.load_vector(&[0.0; 4])));
    let attention = Attention { window, sinks, ..Attention::causal(heads, 0.1) };
    backend.attention(qkv, attention, world.kv, None, out);
    let mut attended = Vec::new();
    for row in want.chunks_exact(width) {
        let (queries, rest) = row.split_at(4 * dim);
        let (keys, values) = rest.split_at(2 * dim);
        for (head, query) in queries.chunks_exact(dim).enumerate() {
            let [key, value] = [keys, values].map(|all| &all[head / 2 * dim..][..dim]);
            let score: f64 = query.iter().zip(key).map(|(q, k)| 0.1 * q * k).sum();
            attended.extend(value.iter().map(|value| value / (1.0 + (-score).exp())));
        }
    }
    check_relative(&what("attended"), backend.read(out), &attended, relative);
}

fn rotate(head: &mut [f64], inv_freq: &[f32], position: usize, style: RopeStyle, mscale: f64) {
    for (i, freq) in inv_freq.iter().enumerate() {
        let (sin, cos) = f64::from(position as f32 * freq).sin_cos();
        let (a, b) = match style {
            RopeStyle::Halves => (i, i + inv_freq.len()),
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = (x * cos - y * sin) * mscale;
        head[b] = (y * cos + x * sin) * mscale;
    }
}

#[test]
fn copied_blocks_hold_the_same() {
    for mut backend in backends() {
        let heads = Heads { q: 2, kv: 1, dim: 32, v_dim: 32 };
        let mut world = World::new(&mut *backend, heads, 16, DType::Bf16, &[40, 48]);
        let width = world.width();
        let make = |_: usize, position: usize| row(5, width, 0, position);
        world.step(&mut *backend, &[Part { sequence: 0, start: 0, rows: 40 }], make);
        let (from, to) = (world.blocks[0].clone(), world.blocks[1].clone());
        backend.copy_blocks(world.kv, &from, &to);
        let (window, soft_cap, sinks, alibi) = (None, None, None, None);
        let layer = Attention { window, soft_cap, sinks, alibi, ..Attention::causal(heads, 0.2) };
        let mut results = Vec::new();
        for sequence in [0, 1] {
            let qkv = world.step(&mut *backend, &[Part { sequence, start: 39, rows: 1 }], make);
            let out = backend.new_act(1, 64);
            backend.host_mut(out).fill(f32::NAN);
            backend.attention(qkv, layer, world.kv, None, out);
            results.push(backend.read(out).to_vec());
        }
        super::check_same("copy", &results[1], &results[0]);
        world.blocks.clear();
    }
}
