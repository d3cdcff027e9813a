//! Texts that go round in circles: an end that is one pattern of tokens several times over.

use proto::RepetitionDetection;

/// Whether the last tokens are `min_count` times one pattern of the sizes that are looked for.
pub(crate) fn is_found(rule: &RepetitionDetection, output: &[u32]) -> bool {
    let count = rule.min_count as usize;
    let sizes = rule.min_pattern_size.max(1) as usize..=rule.max_pattern_size as usize;
    let fits = sizes.take_while(|size| size.saturating_mul(count) <= output.len());
    count >= 2 && fits.into_iter().any(|size| repeats(&output[output.len() - size * count..], size))
}

/// Whether each token is the one `size` before it.
fn repeats(tail: &[u32], size: usize) -> bool {
    tail[size..].iter().rev().eq(tail[..tail.len() - size].iter().rev())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sizes: (u32, u32), min_count: u32, output: &[u32], found: bool) {
        let (min_pattern_size, max_pattern_size) = sizes;
        let rule = RepetitionDetection { min_pattern_size, max_pattern_size, min_count };
        assert_eq!(is_found(&rule, output), found, "{rule:?} {output:?}");
    }

    #[test]
    fn patterns_of_the_sizes_that_are_looked_for() {
        check((1, 3), 3, &[5, 1, 2, 1, 2, 1, 2], true);
        check((1, 3), 4, &[5, 1, 2, 1, 2, 1, 2], false);
        check((3, 3), 2, &[1, 2, 1, 2, 1, 2], false);
        check((1, 1), 2, &[1, 2, 2], true);
        check((2, 4), 2, &[1, 2, 2], false);
        check((0, 1), 2, &[7, 7], true);
        check((1, 2), 3, &[1, 2, 1, 2, 1, 3], false);
        check((1, 2), 2, &[1, 2, 1, 2, 9], false);
        // No sizes, or a count of which everything is a repetition: off.
        check((0, 0), 2, &[7, 7], false);
        check((1, 4), 1, &[7, 7], false);
        check((1, 9), 2, &[], false);
    }
}
