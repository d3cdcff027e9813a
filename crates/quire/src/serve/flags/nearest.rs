//! Finds the name that somebody probably meant.

/// The candidate that takes the fewest changes to reach, if that is few enough to be what was meant.
pub(super) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = candidates.map(|candidate| (distance(name, candidate), candidate));
    let (changes, best) = scored.min()?;
    (changes <= 1 + name.len() / 4).then_some(best)
}

/// Edit distance after Levenshtein, in bytes.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_seen_through() {
        let names = ["max-model-len", "max-num-seqs", "port"];
        let near = |name| nearest(name, names.into_iter());
        assert_eq!(near("max-model-length"), Some("max-model-len"));
        assert_eq!(near("prot"), Some("port"));
        assert_eq!(near("frobnicate"), None);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
