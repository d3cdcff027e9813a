//! How prompts are attended to in the expanded form: which of a step's sequences are, and in which rounds their keys
//! and values are made.

use crate::jit::layouts::twin;

/// Parts of a round; rows of a tile of `attention_expanded.cu`; and keys, which parts begin at multiples of.
const PARTS: usize = 16;
pub(crate) const ROWS: usize = 128;
pub(crate) const TILE: usize = 128;

/// Elements of a key and of a value in the latent space, and of those of a head.
pub(crate) const LATENT: [usize; 2] = [576, 512];
pub(crate) const EXPANDED: [usize; 2] = [192, 128];
/// Of a head's key, what is made anew: the rest of it is cached as it is.
pub(crate) const NOPE_DIM: usize = 128;

/// `struct ExpandedPart` of expanded.cuh: some rows of a sequence, and keys that they see.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    sequence: u32,
    first_row: u32,
    rows: u32,
    begin: u32,
    keys: u32,
    at: u32,
}

twin!(Part = "ExpandedPart" { sequence, first_row, rows, begin, keys, at });

/// `struct ExpandedRound` of expanded.cuh: as much of the context of sequences as there is room for.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    count: u32,
    tokens: u32,
    parts: [Part; PARTS],
}

twin!(Round = "ExpandedRound" { count, tokens, parts });

impl Round {
    /// Keys of all parts, with zeros up to whole tiles.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens as usize
    }

    fn parts(&self) -> &[Part] {
        &self.parts[..self.count as usize]
    }

    /// Tiles of `size` rows.
    pub(crate) fn row_tiles(&self, size: usize) -> usize {
        self.parts().iter().map(|part| (part.rows as usize).div_ceil(size)).sum()
    }

    fn has_room(&self, keys: usize, limits: Limits) -> bool {
        self.parts().len() < PARTS && self.tokens() + keys.next_multiple_of(TILE) <= limits.tokens
    }

    fn push(&mut self, part: Part) {
        self.parts[self.count as usize] = Part { at: self.tokens, ..part };
        self.count += 1;
        self.tokens += part.keys.next_multiple_of(TILE as u32);
    }
}

/// What there is room for: keys and values of a round, a multiple of [`TILE`]; and rows that go on in the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) tokens: usize,
    pub(crate) rows: usize,
}

/// A sequence's rows in a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rows {
    /// Which of the batch's.
    pub(crate) sequence: usize,
    /// Tokens before them.
    pub(crate) start: usize,
    pub(crate) count: usize,
}

impl Rows {
    /// The rows in pieces that may go on from round to round: the first and the end of each.
    fn pieces(self, most: usize) -> impl Iterator<Item = [usize; 2]> {
        (0..self.count).step_by(most).map(move |first| [first, self.count.min(first + most)])
    }

    /// Whether the expanded form takes less time than the absorbed one on a device with `multiprocessors`, by
    /// multiplications: of pairs of row and key, and of what makes keys and values, or brings values out of the latent
    /// space. Tiles of rows that do not fill the device take as long as if they did: in this form their keys are not
    /// divided among blocks.
    pub(crate) fn gain_by_expanding(self, heads: usize, multiprocessors: usize, limits: Limits) -> bool {
        let [latent, expanded] = [LATENT, EXPANDED].map(|dims| dims.iter().sum::<usize>());
        let Self { start, count, .. } = self;
        let absorbed = heads * (pairs(start, 0, count) * latent + count * LATENT[1] * EXPANDED[1]);
        let of_piece = |[first, end]: [usize; 2]| {
            let tiles = (heads * (end - first).div_ceil(ROWS)).max(multiprocessors);
            let keys_of_tile = pairs(start, first, end).div_ceil(end - first);
            tiles * ROWS * keys_of_tile * expanded + heads * (start + end) * LATENT[1] * (NOPE_DIM + EXPANDED[1])
        };
        self.pieces(limits.rows).map(of_piece).sum::<usize>() < absorbed
    }
}

/// Pairs of a key and a row that sees it, of rows `first..end` after `start` tokens.
fn pairs(start: usize, first: usize, end: usize) -> usize {
    (end - first) * (start + first) + (end - first) * (end - first + 1) / 2
}

/// The rounds of some sequences. What has not seen all its keys after a round goes on in the next, and nothing else
/// does: rows that need several rounds have whole ones but the last, which others may share.
pub(crate) fn rounds(sequences: impl IntoIterator<Item = Rows>, limits: Limits) -> Vec<Round> {
    let (mut rounds, mut open) = (Vec::new(), Round::default());
    for rows in sequences {
        for [first, end] in rows.pieces(limits.rows) {
            let seen = rows.start + end;
            for begin in (0..seen).step_by(limits.tokens) {
                let keys = limits.tokens.min(seen - begin);
                if !open.has_room(keys, limits) {
                    rounds.push(std::mem::take(&mut open));
                }
                let [sequence, first_row, rows, begin, keys] =
                    [rows.sequence, first, end - first, begin, keys].map(|number| number as u32);
                open.push(Part { sequence, first_row, rows, begin, keys, at: 0 });
            }
        }
    }
    rounds.push(open);
    rounds.retain(|round| round.count > 0);
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { tokens: 1024, rows: 512 };

    fn rows(sequence: usize, start: usize, count: usize) -> Rows {
        Rows { sequence, start, count }
    }

    #[test]
    fn every_row_sees_every_key_once_and_in_order() {
        let sequences = [rows(0, 0, 300), rows(1, 5000, 700), rows(3, 1000, 24), rows(4, 0, 1), rows(7, 90, 2000)];
        let rounds = rounds(sequences, LIMITS);
        let mut seen = std::collections::HashMap::new();
        for round in &rounds {
            assert!(round.tokens() <= LIMITS.tokens, "{round:?}");
            let mut at = 0;
            for part in round.parts() {
                assert_eq!((part.at, part.begin % TILE as u32), (at, 0), "{part:?}");
                at += part.keys.next_multiple_of(TILE as u32);
                let end = seen.entry((part.sequence, part.first_row, part.rows)).or_insert(0);
                assert_eq!(part.begin, *end, "{part:?}");
                *end += part.keys;
            }
            assert_eq!(round.tokens, at, "{round:?}");
        }
        for Rows { sequence, start, count } in sequences {
            let mut of: Vec<_> = seen.iter().filter(|((of, ..), _)| *of == sequence as u32).collect();
            of.sort();
            let mut next = 0;
            for ((_, first, rows), end) in of {
                assert_eq!((*first, *end), (next, (start as u32) + first + rows), "sequence {sequence}");
                next += rows;
            }
            assert_eq!(next as usize, count, "rows of sequence {sequence}");
        }
    }

    #[test]
    fn rows_that_go_on_are_the_only_ones_in_a_round() {
        let rounds = rounds([rows(0, 0, 200), rows(1, 3000, 100), rows(2, 1900, 200), rows(3, 0, 100)], LIMITS);
        for round in &rounds {
            let goes_on = |part: &&Part| part.begin > 0 || part.keys as usize == LIMITS.tokens;
            assert!(round.parts().iter().filter(goes_on).count() <= 1, "{round:?}");
        }
        // The last keys of rows that went on share a round with what fits there as a whole.
        let last = rounds.last().map(|round| round.parts().iter().map(|part| part.sequence).collect::<Vec<_>>());
        assert_eq!(last, Some(vec![2, 3]));
    }

    #[test]
    fn a_round_has_as_many_parts_as_there_is_room_for() {
        let many = rounds((0..40).map(|sequence| rows(sequence, 0, 3)), Limits { tokens: 1 << 20, rows: 512 });
        assert_eq!(many.iter().map(|round| round.count).collect::<Vec<_>>(), [16, 16, 8]);
    }

    #[test]
    fn pieces_have_all_pairs_between_them() {
        let whole: usize = (0..700).map(|row| 40 + row + 1).sum();
        assert_eq!(pairs(40, 0, 700), whole);
        assert_eq!(pairs(40, 0, 512) + pairs(40, 512, 700), whole);
    }

    #[test]
    fn the_expanded_form_is_for_many_rows() {
        let limits = Limits { tokens: 8192, rows: 8192 };
        let gains = |start, count| rows(0, start, count).gain_by_expanding(16, 132, limits);
        assert!(gains(0, 1024) && gains(0, 8192) && gains(100_000, 2048) && gains(30_000, 512));
        // Keys and values made for so few rows cost more than what these save.
        assert!(!gains(100_000, 256) && !gains(0, 200) && !gains(5000, 1));
    }
}
