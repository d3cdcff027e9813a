//! The draw: inverse of the cumulative distribution, walked in token order.

use crate::candidates::Candidates;

/// The token at `uniform` (in `[0, 1)`) of the candidates' total weight; `None` when there are none.
pub(crate) fn draw(candidates: &Candidates, uniform: f64) -> Option<u32> {
    let candidates = candidates.as_slice();
    let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
    let target = uniform * total;
    let mut sum = 0.0;
    let found = candidates.iter().find(|candidate| {
        sum += f64::from(candidate.weight);
        sum > target
    });
    // The same additions in the same order end at `total` exactly, so the last token is only a formality.
    found.or(candidates.last()).map(|candidate| candidate.token)
}
