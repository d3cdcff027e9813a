//! Which tokens attention lets a token see.

/// Which tokens a token sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mask {
    /// Itself and those before it.
    #[default]
    Causal,
    /// Those after it too, up to the end of its sequence's rows in the step, which must begin at position 0.
    Bidirectional,
}

impl Mask {
    /// The end of what a token at `position` sees of a sequence whose rows end at `end`.
    pub fn end(self, position: usize, end: usize, window: Option<usize>) -> usize {
        match self {
            Self::Causal => position + 1,
            Self::Bidirectional => window.map_or(end, |window| end.min(position.saturating_add(window))),
        }
    }
}
