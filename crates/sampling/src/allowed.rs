//! What a grammar allows next, as a set of tokens that is made for each row anew.

/// Tokens that may be chosen in one row.
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

    /// Makes the logits `[vocab]` of all other tokens -inf.
    pub(crate) fn apply(self, row: &mut [f32]) {
        match self {
            Self::All => {}
            Self::Some(words) => {
                for (at, chunk) in row.chunks_mut(32).enumerate() {
                    match words.get(at).copied().unwrap_or(0) {
                        0 => chunk.fill(f32::NEG_INFINITY),
                        u32::MAX => {}
                        word => keep(chunk, word),
                    }
                }
            }
            Self::Only(token) => {
                for (id, logit) in row.iter_mut().enumerate() {
                    if id != token as usize {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }

    /// The smallest id below `vocab` that is allowed, where not all are.
    pub(crate) fn first(self, vocab: usize) -> Option<u32> {
        match self {
            Self::All => None,
            Self::Some(words) => {
                let (at, word) = words.iter().enumerate().find(|(_, word)| **word != 0)?;
                Some(at as u32 * 32 + word.trailing_zeros()).filter(|id| (*id as usize) < vocab)
            }
            Self::Only(token) => Some(token).filter(|id| (*id as usize) < vocab),
        }
    }
}

fn keep(chunk: &mut [f32], word: u32) {
    for (bit, logit) in chunk.iter_mut().enumerate() {
        if word >> bit & 1 == 0 {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_can_never_be_chosen() {
        let kept = |allowed: Allowed<'_>| {
            let mut row = vec![0.5; 70];
            allowed.apply(&mut row);
            (0..70).filter(|id| row[*id as usize] == 0.5).collect::<Vec<u32>>()
        };
        let words = [1 << 3, u32::MAX];
        assert_eq!(kept(Allowed::Some(&words)), std::iter::once(3).chain(32..64).collect::<Vec<_>>());
        assert_eq!((kept(Allowed::Only(69)), kept(Allowed::Only(99))), (vec![69], vec![]));
        assert_eq!(kept(Allowed::All).len(), 70);
        let firsts = [Allowed::Some(&words), Allowed::Some(&[0]), Allowed::Only(9), Allowed::All];
        assert_eq!(firsts.map(|allowed| allowed.first(70)), [Some(3), None, Some(9), None]);
    }
}
