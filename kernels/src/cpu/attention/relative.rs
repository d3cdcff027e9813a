//! Learned biases by the distance between query and key.

use crate::cpu::simd::Simd;

/// Lanes of the widest vector.
const MOST_LANES: usize = 16;

/// Biases of the keys that are `distance` tokens and more after a query, of a head's biases by distance: those of the
/// farthest keys at both ends, the query's own in the middle.
#[inline(always)]
pub(super) fn by_distance<S: Simd>(biases: &[f32], distance: i64) -> S {
    let farthest = biases.len() as i64 - 1;
    let first = distance + farthest / 2;
    if first >= 0 && first + S::N as i64 - 1 <= farthest {
        // SAFETY: the lanes' biases are all there.
        return unsafe { S::load(biases.as_ptr().add(first as usize)) };
    }
    let mut lanes = [0.0; MOST_LANES];
    for (lane, bias) in lanes.iter_mut().take(S::N).enumerate() {
        *bias = biases[(first + lane as i64).clamp(0, farthest) as usize];
    }
    // SAFETY: no vector has more lanes.
    unsafe { S::load(lanes.as_ptr()) }
}
