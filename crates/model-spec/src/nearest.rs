//! The most similar of a set of names, for error messages.

/// The candidate with the fewest single-character edits to `name`, if at most a third of `name` differs; letters' case
/// only tells equals apart.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    let lower = name.to_lowercase();
    let distances =
        |candidate: &str| [edit_distance(&lower, &candidate.to_lowercase()), edit_distance(name, candidate)];
    let ranked = candidates.into_iter().map(|candidate| (distances(candidate), candidate));
    ranked.min().filter(|([distance, _], _)| *distance <= allowed).map(|(_, candidate)| candidate)
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, expected) in
            [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("LLaMA", "llama", 4), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn suggests_only_what_is_similar() {
        let names = ["LlamaForCausalLM", "MistralForCausalLM"];
        assert_eq!(nearest("Llama4ForCausalLM", names), Some("LlamaForCausalLM"));
        assert_eq!(nearest("Llama4ForCausalLM", ["LLaMAForCausalLM", "LlamaForCausalLM"]), Some("LlamaForCausalLM"));
        assert_eq!(nearest("llamaforcausallm", names), Some("LlamaForCausalLM"));
        assert_eq!(nearest("BertModel", names), None);
        assert_eq!(nearest("x", []), None);
    }
}
