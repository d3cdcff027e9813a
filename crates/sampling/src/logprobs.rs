//! Log-probabilities of a row as the model gave it: before penalties, masks and temperature (vLLM's `raw_logprobs`).

use std::{cmp::Reverse, collections::BinaryHeap};

use kernels::sample::Logprobs;

use crate::math;

/// The lowest log-probability that is reported: vLLM's stand-in for -inf, which JSON cannot hold.
pub const FLOOR: f32 = -9999.0;

/// Log-probability and rank of `token` in an untouched row of logits, and the `top` best tokens; each at least
/// [`FLOOR`].
pub fn token_logprobs(row: &[f32], token: u32, top: usize) -> Logprobs {
    let normalizer = log_sum_exp(row);
    let logprob = |logit: f32| finite((f64::from(logit) - normalizer) as f32);
    let chosen = row.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let better = row.iter().filter(|&&logit| logit > chosen).count();
    let equal = row.iter().take(token as usize).filter(|&&logit| logit == chosen).count();
    let rank = 1 + (better + equal) as u32;
    let top = best(row, top).into_iter().map(|id| (id, logprob(row[id as usize]))).collect();
    Logprobs { logprob: logprob(chosen), rank, top }
}

/// Log-probability and rank of `token`, and those of `listed` tokens, in their order; unknown ones at [`FLOOR`].
pub(crate) fn listed_logprobs(row: &[f32], token: u32, listed: &[u32]) -> Logprobs {
    let normalizer = log_sum_exp(row);
    let logprob =
        |id: &u32| row.get(*id as usize).map_or(FLOOR, |logit| finite((f64::from(*logit) - normalizer) as f32));
    Logprobs { top: listed.iter().map(|id| (*id, logprob(id))).collect(), ..token_logprobs(row, token, 0) }
}

fn finite(logprob: f32) -> f32 {
    if logprob > FLOOR { logprob.min(0.0) } else { FLOOR }
}

/// `ln(sum(e^x))`, NaN passed over.
pub(crate) fn log_sum_exp(row: &[f32]) -> f64 {
    let max = math::max(row);
    if !max.is_finite() {
        return f64::from(max);
    }
    let mut lanes = [0.0f64; 16];
    let chunks = row.chunks_exact(lanes.len());
    let rest: f64 = chunks.remainder().iter().map(|&x| f64::from(math::exp(x - max))).sum();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane += f64::from(math::exp(x - max)));
    }
    let sum = lanes.iter().sum::<f64>() + rest;
    f64::from(max) + sum.ln()
}

/// Ids of the `top` largest logits, largest first, lower ids first among equals. A bounded heap: one comparison for
/// most tokens.
pub(crate) fn best(row: &[f32], top: usize) -> Vec<u32> {
    let top = top.min(row.len());
    let mut heap = BinaryHeap::with_capacity(top + 1);
    for (&logit, id) in row.iter().zip(0..) {
        let key = Reverse(key(logit, id));
        if heap.len() < top {
            heap.push(key);
        } else if let Some(mut worst) = heap.peek_mut()
            && key < *worst
        {
            *worst = key;
        }
    }
    heap.into_sorted_vec().into_iter().map(|Reverse(key)| !(key as u32)).collect()
}

/// Orders (logit, lower id first) as one integer; NaN lies with -inf.
fn key(logit: f32, id: u32) -> u64 {
    let bits = if logit.is_nan() { f32::NEG_INFINITY.to_bits() } else { (logit + 0.0).to_bits() };
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn equals_sorting(
            row in prop::collection::vec((-20i32..20).prop_map(|x| x as f32 / 3.0), 1..200),
            top in 0usize..220, token in any::<prop::sample::Index>(),
        ) {
            let mut order: Vec<usize> = (0..row.len()).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            let token = token.index(row.len());
            let got = token_logprobs(&row, token as u32, top);
            prop_assert_eq!(got.rank as usize, 1 + order.iter().position(|&id| id == token).unwrap());
            prop_assert!((f64::from(got.logprob) - (f64::from(row[token]) - sum.ln())).abs() < 1e-5);
            let ids: Vec<usize> = got.top.iter().map(|&(id, _)| id as usize).collect();
            prop_assert_eq!(&ids[..], &order[..top.min(row.len())]);
            for (id, logprob) in got.top {
                prop_assert!((f64::from(logprob) - (f64::from(row[id as usize]) - sum.ln())).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn listed_tokens_come_in_their_order() {
        let row = [0.5, 2.0, -1.0, f32::NEG_INFINITY];
        let (all, listed) = (token_logprobs(&row, 1, 4), listed_logprobs(&row, 1, &[2, 1, 3, 9]));
        assert_eq!((listed.logprob, listed.rank), (all.logprob, 1));
        assert_eq!(listed.top, [all.top[2], all.top[0], (3, FLOOR), (9, FLOOR)]);
    }

    #[test]
    fn rows_without_numbers_stay_finite() {
        for row in [vec![f32::NAN; 3], vec![f32::NEG_INFINITY; 3], vec![f32::INFINITY, 0.0, f32::NAN], vec![]] {
            let got = token_logprobs(&row, 1, 3);
            assert!(got.logprob.is_finite() && got.top.iter().all(|&(_, logprob)| logprob.is_finite()), "{got:?}");
        }
        let masked = token_logprobs(&[0.0, f32::NEG_INFINITY], 1, usize::MAX);
        assert_eq!(masked, Logprobs { logprob: FLOOR, rank: 2, top: vec![(0, 0.0), (1, FLOOR)] });
    }
}
