//! What the kernels of `kernels/cuda/csrc/sampling/sample*.cu` read and write, as numbers: settings of slots, rows,
//! results.

use crate::jit::layouts::twin;
use kernels::sample::{Logprobs, SampleParams, SampleRow, Sampled, SlotMask};

/// Largest vocabulary: token masses add up in 64 bits.
pub(crate) const MOST_VOCAB: usize = 1 << 19;
/// Biases of a slot at most.
pub(crate) const MOST_BIASES: usize = 512;
/// Best tokens whose log-probabilities can be had.
pub(crate) const MOST_TOP: usize = 20;
/// Blocks that share a row, until one block samples.
pub(crate) const SPLITS: usize = 16;
/// Bins of a histogram of a row's weights, and keys that are ranked side by side.
const BINS: usize = 2048;
const LIST: usize = 1024;
/// Regions of a row: a warp's share of a block's share.
const REGIONS: usize = SPLITS * 8;

/// Bytes of a slot's parameters on the device.
pub(crate) const PARAMS_BYTES: usize = size_of::<Params>();
/// Bytes of what is found out about a row.
pub(crate) const CUT_BYTES: usize = size_of::<Cut>();
/// Numbers of a row, of 4 bytes.
pub(crate) const ROW_NUMBERS: usize = size_of::<Row>() / size_of::<u32>();
/// Numbers of a row's log-probabilities, of 4 bytes.
pub(crate) const DETAILS_NUMBERS: usize = size_of::<Details>() / size_of::<u32>();

/// `struct SampleParams` of sampling/sample.cuh, which `sample_params` writes.
#[repr(C)]
#[allow(dead_code, reason = "of interest is its size")]
pub(crate) struct Params {
    top_p: f64,
    inverse_temperature: f32,
    min_p: f32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    greedy: u32,
    top_k: u32,
    fallback: u32,
    logprobs: u32,
    biases: u32,
    flags: u32,
}

twin!(Params = "SampleParams" {
    top_p, inverse_temperature, min_p, repetition, frequency, presence,
    greedy, top_k, fallback, logprobs, biases, flags,
});

/// `struct SampleRow` of sampling/sample.cuh, as [`write_row`] writes it.
#[repr(C)]
#[allow(dead_code, reason = "of interest is its size")]
pub(crate) struct Row {
    uniform: f64,
    row: u32,
    slot: u32,
    hold_stops: u32,
    unused: u32,
}

twin!(Row = "SampleRow" { uniform, row, slot, hold_stops, unused });

/// `struct Details` of sampling/sample.cuh, as [`read_row`] reads it.
#[repr(C)]
#[allow(dead_code, reason = "of interest is its size")]
pub(crate) struct Details {
    logprob: f32,
    rank: u32,
    ids: [u32; MOST_TOP],
    logprobs: [f32; MOST_TOP],
}

twin!(Details = "Details" { logprob, rank, ids, logprobs });

/// `struct Cut` of sampling/sample.cuh, which kernels alone read and write.
#[repr(C)]
#[allow(dead_code, reason = "of interest is its size")]
pub(crate) struct Cut {
    from: u64,
    total: u64,
    target: u64,
    before: u64,
    kind: u32,
    bin: u32,
    listed: u32,
    done: u32,
    masses: [u64; BINS],
    counts: [u32; BINS],
    list: [u64; LIST],
    regions: [u64; REGIONS],
}

twin!(Cut = "Cut" { from, total, target, before, kind, bin, listed, done, masses, counts, list, regions });

const NO_LOGPROBS: u32 = u32::MAX;
const NOBODY: u32 = u32::MAX;
const MASKED: u32 = 1;
const HOLDS: u32 = 2;
const PENALISED: u32 = 4;
const LISTED: u32 = 8;

/// Whether the kernels can do this, with `vocab` columns of logits.
pub(crate) fn can_sample(params: &SampleParams, vocab: usize) -> bool {
    // A mask takes the place of the sets that a sequence may begin with.
    let keeps_sets = params.allowed.is_empty() && params.forbidden.is_empty() && params.stops.is_empty();
    (keeps_sets || !params.masked)
        && vocab <= MOST_VOCAB
        && params.bias.len() <= MOST_BIASES
        && params.logprobs.is_none_or(|top| top <= MOST_TOP)
}

/// Shared memory of a block of `sample_row`: its 8 regions of a row, and 3 numbers.
pub(crate) fn row_bytes(vocab: usize) -> usize {
    let region = vocab.div_ceil(4 * 8 * SPLITS) * 4;
    (8 * region + 3) * 4
}

/// Appends a slot's settings as `sample_params` reads them. Ids outside the vocabulary mean nothing to a device.
pub(crate) fn write_settings(
    slot: u32,
    params: &SampleParams,
    counts: &[(u32, u32)],
    vocab: usize,
    out: &mut Vec<u32>,
) {
    let known = |token: &u32| (*token as usize) < vocab;
    let ids = |list: &[u32]| -> Vec<u32> { list.iter().copied().filter(known).collect() };
    let (allowed, forbidden, stops) = (ids(&params.allowed), ids(&params.forbidden), ids(&params.stops));
    let biases = || params.bias.iter().filter(|(token, _)| known(token));
    let counts = || counts.iter().filter(|(token, _)| known(token) && params.penalties.is_some());
    let penalties = params.penalties.map_or([1.0, 0.0, 0.0], |p| [p.repetition, p.frequency, p.presence]);
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    let flags = flag(!params.allowed.is_empty(), MASKED | LISTED)
        | flag(!forbidden.is_empty() || params.masked, MASKED)
        | flag(!stops.is_empty(), HOLDS)
        | flag(params.penalties.is_some(), PENALISED);
    let top_p = params.top_p.to_bits();
    let logprobs = params.logprobs.map_or(NO_LOGPROBS, |top| top as u32);
    let len = |count: usize| count as u32;
    out.extend([slot, u32::from(params.inverse_temperature.is_none())]);
    out.extend([params.inverse_temperature.unwrap_or(0.0).to_bits(), params.min_p.to_bits(), params.top_k]);
    out.extend([top_p as u32, (top_p >> 32) as u32, params.fallback(vocab)]);
    out.extend(penalties.map(f32::to_bits));
    out.extend([flags, logprobs, len(allowed.len()), len(forbidden.len()), len(stops.len())]);
    out.extend([len(biases().count()), len(counts().count())]);
    out.extend(allowed.into_iter().chain(forbidden).chain(stops));
    out.extend(biases().flat_map(|(token, bias)| [*token, bias.to_bits()]));
    out.extend(counts().flat_map(|(token, count)| [*token, *count]));
}

/// Numbers of masks, of 4 bytes, as `sample_masks` reads them.
pub(crate) fn masks_numbers(masks: usize, vocab: usize) -> usize {
    masks * (2 + vocab.div_ceil(32))
}

/// Writes masks as `sample_masks` reads them.
pub(crate) fn write_masks(masks: &[SlotMask<'_>], vocab: usize, out: &mut [u32]) {
    let (heads, words) = out.split_at_mut(2 * masks.len());
    let rows = heads.chunks_exact_mut(2).zip(words.chunks_exact_mut(vocab.div_ceil(32)));
    for ((head, words), mask) in rows.zip(masks) {
        head.copy_from_slice(&[mask.slot, mask.allowed.first(vocab).unwrap_or(0)]);
        mask.allowed.write(words);
    }
}

/// Writes a row as `struct SampleRow`; absent: one of no slot.
pub(crate) fn write_row(row: Option<&SampleRow>, out: &mut [u32]) {
    let Some(row) = row else { return out.copy_from_slice(&[0, 0, 0, NOBODY, 0, 0]) };
    let uniform = row.uniform.to_bits();
    let numbers = [uniform as u32, (uniform >> 32) as u32, row.row, row.slot, u32::from(row.hold_stops), 0];
    out.copy_from_slice(&numbers);
}

/// A row's result from its token and `struct Details`, of which `top` best tokens are wanted, if any.
pub(crate) fn read_row(token: u32, details: &[u32], top: Option<usize>, vocab: usize) -> Sampled {
    let logprobs = top.map(|top| {
        let (ids, values) = details[2..].split_at(MOST_TOP);
        let best = ids.iter().copied().zip(values.iter().copied().map(f32::from_bits));
        let top = best.take(top.min(vocab)).collect();
        Logprobs { logprob: f32::from_bits(details[0]), rank: details[1], top }
    });
    Sampled { token, logprobs }
}
