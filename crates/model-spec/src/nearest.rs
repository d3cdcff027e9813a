//! The most similar of a set of names, for error messages.

/// The candidate with the fewest single-character edits to `name`, if at most a third of `name` differs.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    let ranked = candidates.into_iter().map(|candidate| (edit_distance(name, candidate), candidate));
    ranked.min().filter(|(distance, _)| *distance <= allowed).map(|(_, candidate)| candidate)
}

/// Levenshtein distance, ignoring case.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.to_lowercase().chars().enumerate() {
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
            [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("LLaMA", "llama", 0), ("ab", "ba", 2)]
        {
            assert_eq!(edit_distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn suggests_only_what_is_similar() {
        let names = ["LlamaForCausalLM", "MistralForCausalLM"];
        assert_eq!(nearest("Llama4ForCausalLM", names), Some("LlamaForCausalLM"));
        assert_eq!(nearest("BertModel", names), None);
        assert_eq!(nearest("x", []), None);
    }
}
