//! One sequence under its constraint.

use llguidance::{Matcher as Engine, toktrie::SimpleVob};

use crate::error::MatchError;

/// Follows the text of one sequence.
pub struct Matcher {
    engine: Engine,
}

/// Which tokens may come next: bit `id % 32` of word `id / 32`.
pub struct TokenMask {
    set: SimpleVob,
}

impl Matcher {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// Which tokens may come next; once the text is complete, only those that end it.
    pub fn mask(&mut self) -> Result<TokenMask, MatchError> {
        let set = self.engine.compute_mask_or_eos();
        set.map(|set| TokenMask { set }).map_err(|error| MatchError::TooComplex { reason: error.to_string() })
    }

    /// The tokens that must come next, as the tokenizer writes them; what may still join a later text is left out.
    /// Empty where there is a choice, or the vocabulary does not know its tokenizer.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.engine.is_stopped() {
            return Vec::new();
        }
        let mut forced = self.engine.compute_ff_tokens();
        // A text of tokens that the grammar itself would refuse is none.
        let valid = self.engine.validate_tokens(&forced).unwrap_or(0);
        forced.truncate(valid);
        forced
    }

    /// Appends a token. End tokens behind the end of the text change nothing.
    pub fn accept(&mut self, token: u32) -> Result<(), MatchError> {
        if self.engine.is_stopped() && !self.engine.is_error() {
            return Ok(());
        }
        match self.engine.try_consume_tokens(&[token]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(MatchError::Forbidden { token }),
            Err(error) => Err(MatchError::TooComplex { reason: error.to_string() }),
        }
    }

    /// Whether the text is complete: nothing but its end may follow.
    pub fn is_complete(&self) -> bool {
        self.engine.is_stopped()
    }
}

impl TokenMask {
    /// Whether a token may come next; ids outside the vocabulary may not.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.set.len() && self.set.is_allowed(token)
    }

    /// The smallest id that may come next.
    pub fn first(&self) -> Option<u32> {
        self.set.first_bit_set().and_then(|id| u32::try_from(id).ok())
    }

    /// The mask's words, 32 tokens each; bits past the vocabulary are 0.
    pub fn words(&self) -> &[u32] {
        self.set.as_slice()
    }
}
