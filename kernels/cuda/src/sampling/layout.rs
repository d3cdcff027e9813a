//! What the kernels of `kernels/cuda/csrc/sampling/choose*.cu` read and write, as numbers: settings of slots, rows, results.

use kernels::sample::{Logprobs, SampleParams, SampleRow, Sampled};

/// Largest vocabulary: token masses add up in 64 bits.
pub(crate) const MOST_VOCAB: usize = 1 << 19;
/// Biases of a slot at most.
pub(crate) const MOST_BIASES: usize = 512;
/// Best tokens whose log-probabilities can be had.
pub(crate) const MOST_TOP: usize = 20;
/// Blocks that share a row, until one block chooses.
pub(crate) const SPLITS: usize = 16;
/// Bytes of `struct SampleParams`.
pub(crate) const CHOICE_BYTES: usize = 56;
/// Bytes of `struct Cut`.
pub(crate) const CUT_BYTES: usize = 4 * 8 + 4 * 4 + 2048 * (8 + 4) + 1024 * 8 + 8 * SPLITS * 8;
/// Numbers of `struct Row`.
pub(crate) const ROW_NUMBERS: usize = 6;
/// Numbers of `struct Details`.
pub(crate) const DETAILS_NUMBERS: usize = 2 + 2 * MOST_TOP;

const NO_LOGPROBS: u32 = u32::MAX;
const NOBODY: u32 = u32::MAX;
const MASKED: u32 = 1;
const HOLDS: u32 = 2;
const PENALISED: u32 = 4;
const LISTED: u32 = 8;

/// Whether the kernels can do this, with so many columns of logits.
pub(crate) fn can_sample(params: &SampleParams, vocab: usize) -> bool {
    vocab <= MOST_VOCAB && params.bias.len() <= MOST_BIASES && params.logprobs.is_none_or(|top| top <= MOST_TOP)
}

/// Shared memory of a block of `choose_row`: its 8 regions of a row, and 3 numbers.
pub(crate) fn row_bytes(vocab: usize) -> usize {
    let region = vocab.div_ceil(4 * 8 * SPLITS) * 4;
    (8 * region + 3) * 4
}

/// Appends a slot's settings as `choose_set` reads them. Ids outside the vocabulary mean nothing to a device.
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
        | flag(!forbidden.is_empty(), MASKED)
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

/// Writes a row as `struct Row`; absent: one of no slot.
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
