//! What a backend is told about sampling: a sequence's parameters once, and a few numbers for each row of a step.
//!
//! The parameters mean what they mean in the `sampling` crate, which compiles a request into them and is the reference
//! for every backend. A batch may refer to a sampled token before the host has read it (see [`last_token`]), so a step
//! can be submitted while the one before it still runs.

use std::ops::Range;

/// Sampling parameters of a slot's sequence.
///
/// Order: log-probabilities of the untouched row; what a mask forbids ([`SlotMask`]), all but `allowed`, `forbidden`
/// and held-back `stops` become -inf; `bias` is added; `penalties`; then, unless greedy, each logit's weight
/// `e^((logit - best) * inverse_temperature)`, the cuts by `min_p`, `top_k` and `top_p`, and the draw in token order.
/// NaN and -inf are never sampled; of equals, the lower id comes first.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// 1 / temperature; absent: greedy.
    pub inverse_temperature: Option<f32>,
    /// Keep tokens whose weight is at least this share of the best one's; 0: off.
    pub min_p: f32,
    /// Keep this many best tokens; 0: off.
    pub top_k: u32,
    /// Keep the shortest run of best tokens whose weights reach this share of all; 1: off.
    pub top_p: f64,
    /// Only these may be sampled; empty: all may. The first of them (below the vocabulary's size) is the result of a
    /// row in which everything is masked; token 0 when there is none.
    pub allowed: Vec<u32>,
    /// Never sampled.
    pub forbidden: Vec<u32>,
    /// Not sampled in rows with [`SampleRow::hold_stops`] (min tokens).
    pub stops: Vec<u32>,
    /// Numbers added to logits. A token may occur twice.
    pub bias: Vec<(u32, f32)>,
    /// Absent: off.
    pub penalties: Option<Penalties>,
    /// Each row's tokens are those of the slot's newest mask ([`crate::ops::Sample::set_masks`]).
    pub masked: bool,
    /// The sampled token's log-probability is wanted, and those of this many best tokens; absent: none.
    pub logprobs: Option<usize>,
}

impl Default for SampleParams {
    /// Greedy, and nothing else.
    fn default() -> Self {
        Self {
            inverse_temperature: None,
            min_p: 0.0,
            top_k: 0,
            top_p: 1.0,
            allowed: Vec::new(),
            forbidden: Vec::new(),
            stops: Vec::new(),
            bias: Vec::new(),
            penalties: None,
            masked: false,
            logprobs: None,
        }
    }
}

impl SampleParams {
    /// The token of a row in which everything is masked.
    pub fn fallback(&self, vocab: usize) -> u32 {
        self.allowed.iter().copied().find(|&token| (token as usize) < vocab).unwrap_or(0)
    }
}

/// Tokens that may be sampled next in one slot, made anew for each row (structured output).
#[derive(Clone, Copy, Debug)]
pub struct SlotMask<'a> {
    /// Whose parameters have [`SampleParams::masked`].
    pub slot: u32,
    /// The tokens. The first of them below the vocabulary's size is the result of a row in which everything is masked;
    /// token 0 when there is none.
    pub allowed: Allowed<'a>,
}

/// A set of tokens that may be sampled in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed<'a> {
    /// Any.
    All,
    /// Those whose bit is set: bit `id % 32` of word `id / 32`. Ids past the words may not.
    Some(&'a [u32]),
    /// This one.
    Only(u32),
}

impl Allowed<'_> {
    /// Whether every token is.
    pub fn is_all(self) -> bool {
        self == Self::All
    }

    /// The smallest id below `vocab` that is allowed, where not all are.
    pub fn first(self, vocab: usize) -> Option<u32> {
        match self {
            Self::All => None,
            Self::Some(words) => {
                let (at, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
                Some(at as u32 * 32 + word.trailing_zeros()).filter(|id| (*id as usize) < vocab)
            }
            Self::Only(token) => Some(token).filter(|id| (*id as usize) < vocab),
        }
    }

    /// Word `at` of the set: the bits of tokens `32 * at` and the 31 after it.
    pub fn word(self, at: usize) -> u32 {
        match self {
            Self::All => u32::MAX,
            Self::Some(words) => words.get(at).copied().unwrap_or(0),
            Self::Only(token) if token as usize / 32 == at => 1 << (token % 32),
            Self::Only(_) => 0,
        }
    }

    /// Writes the set as words, from the first on; those that it does not have become 0.
    pub fn write(self, out: &mut [u32]) {
        match self {
            Self::All => out.fill(u32::MAX),
            Self::Some(words) => {
                let len = words.len().min(out.len());
                out[..len].copy_from_slice(&words[..len]);
                out[len..].fill(0);
            }
            Self::Only(token) => {
                out.fill(0);
                if let Some(word) = out.get_mut(token as usize / 32) {
                    *word = 1 << (token % 32);
                }
            }
        }
    }
}

/// Penalties on tokens that occurred: first `logit > 0 ? logit / repetition : logit * repetition` for those of prompt
/// and output, then `- frequency * count - presence` for those of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// 1: off.
    pub repetition: f32,
    /// 0: off.
    pub frequency: f32,
    /// 0: off.
    pub presence: f32,
}

/// One row of logits from which a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRow {
    /// Which row of the logits.
    pub row: u32,
    /// Whose parameters apply, and whose last token the sampled one becomes.
    pub slot: u32,
    /// The random number of this output position, in `[0, 1)`; unused when greedy.
    pub uniform: f64,
    /// [`SampleParams::stops`] are masked in this row (min tokens).
    pub hold_stops: bool,
}

/// Result of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The sampled token.
    pub token: u32,
    /// Present when they were asked for.
    pub logprobs: Option<Logprobs>,
}

/// One token's log-probability and its rank among all.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Natural logarithm of the token's probability; a floor stands for -inf.
    pub logprob: f32,
    /// 1 for the most likely token; of equals, the lower id comes first.
    pub rank: u32,
    /// The best tokens and their log-probabilities, best first.
    pub top: Vec<(u32, f32)>,
}

/// A step whose tokens were sampled, to be taken later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(pub u64);

/// Steps that may be in flight at the same time.
pub const STEPS_IN_FLIGHT: usize = 2;

/// Batch entries from here on name slots instead of tokens.
const SLOTS: Range<u32> = 1 << 31..u32::MAX;

/// The batch entry that stands for the token that was sampled last in `slot`, known to the host or not.
pub const fn last_token(slot: u32) -> u32 {
    SLOTS.start + slot
}

/// The slot whose last token a batch entry stands for; absent for a plain token.
pub fn slot_of(entry: u32) -> Option<u32> {
    SLOTS.contains(&entry).then(|| entry - SLOTS.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_tokens_are_bits() {
        let words = [1 << 3, u32::MAX];
        let firsts = [Allowed::Some(&words), Allowed::Some(&[0]), Allowed::Only(9), Allowed::Only(70), Allowed::All];
        assert_eq!(firsts.map(|allowed| allowed.first(70)), [Some(3), None, Some(9), None, None]);
        for (allowed, want) in [
            (Allowed::Some(&words), [8, u32::MAX, 0]),
            (Allowed::Only(69), [0, 0, 32]),
            (Allowed::Only(99), [0; 3]),
            (Allowed::All, [u32::MAX; 3]),
        ] {
            let mut written = [7; 3];
            allowed.write(&mut written);
            assert_eq!((written, [0, 1, 2].map(|at| allowed.word(at))), (want, want), "{allowed:?}");
        }
    }

    #[test]
    fn entries_are_tokens_or_slots() {
        assert_eq!([0, 151_935, (1 << 31) - 1, u32::MAX].map(slot_of), [None; 4]);
        assert_eq!([0, 1, 65_535].map(|slot| slot_of(last_token(slot))), [Some(0), Some(1), Some(65_535)]);
    }
}
