//! Keeps the tokens of a row that a grammar allows next.

pub use kernels::sample::Allowed;

/// Makes the logits `[vocab]` of all other tokens -inf.
pub(crate) fn apply(allowed: Allowed<'_>, row: &mut [f32]) {
    match allowed {
        Allowed::All => {}
        Allowed::Some(words) => {
            for (at, chunk) in row.chunks_mut(32).enumerate() {
                match words.get(at).copied().unwrap_or(0) {
                    0 => chunk.fill(f32::NEG_INFINITY),
                    u32::MAX => {}
                    word => keep(chunk, word),
                }
            }
        }
        Allowed::Only(token) => {
            for (id, logit) in row.iter_mut().enumerate() {
                if id != token as usize {
                    *logit = f32::NEG_INFINITY;
                }
            }
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
            apply(allowed, &mut row);
            (0..70).filter(|id| row[*id as usize] == 0.5).collect::<Vec<u32>>()
        };
        let words = [1 << 3, u32::MAX];
        assert_eq!(kept(Allowed::Some(&words)), std::iter::once(3).chain(32..64).collect::<Vec<_>>());
        assert_eq!((kept(Allowed::Only(69)), kept(Allowed::Only(99))), (vec![69], vec![]));
        assert_eq!(kept(Allowed::All).len(), 70);
    }
}
