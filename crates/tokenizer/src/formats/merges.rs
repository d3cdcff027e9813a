//! Merges from scores: byte-pair encoding wants to know which two pieces make a third, vocabularies only how early the
//! third is made.

use std::{collections::HashMap, hash::Hash};

/// All pairs of pieces that make another piece, those that are made first at the front. `pieces` come in the order in
/// which they are made; `cuts` lists where a piece can be cut in two.
///
/// Where a piece can be made of several pairs, each counts; this is how conversions of the Hugging Face library do it.
pub(super) fn of_pieces<P: ?Sized + Hash + Eq>(
    pieces: &[(&P, u32)],
    cuts: impl Fn(&P) -> Vec<(&P, &P)>,
) -> Vec<(u32, u32)> {
    let ids: HashMap<&P, u32> = pieces.iter().copied().collect();
    let mut merges = Vec::new();
    for (piece, _) in pieces {
        let from = merges.len();
        merges.extend(cuts(piece).into_iter().filter_map(|(left, right)| Some((*ids.get(left)?, *ids.get(right)?))));
        merges[from..].sort_unstable();
    }
    merges
}
