//! Commit subjects: imperative, at most 72 characters, so that history can be read as a list.

use std::{path::Path, process::Command};

/// The last commit before the rule; what came before is exempt.
const RULE_BEGAN: &str = "50d71dd2b0da30852a5ecd3ca7761827f3ce7dd3";

/// Commits of branches that were begun before the rule and merged after it, and others that landed without an area.
const EXEMPT: &[&str] = &["b86339b", "967bfa0", "9725984", "760fdd6", "ce63a06"];

/// Characters of a subject.
const MOST_CHARACTERS: usize = 72;

/// First words that begin a description or a thing, not an order.
const NOT_VERBS: &[&str] = &[
    "a", "all", "an", "and", "another", "as", "at", "both", "by", "each", "every", "for", "from", "how", "if", "in",
    "is", "it", "its", "more", "new", "no", "nobody", "of", "on", "one", "only", "some", "that", "the", "their",
    "there", "these", "they", "this", "those", "two", "we", "what", "whatever", "when", "where", "whether", "which",
    "who", "whoever", "with", "without",
];

/// Verbs whose imperative looks like another form.
const VERBS: &[&str] = &[
    "bless", "bring", "bypass", "canvas", "compress", "cross", "discuss", "embed", "exceed", "express", "feed",
    "focus", "guess", "miss", "need", "pass", "ping", "press", "process", "ring", "seed", "shed", "speed", "string",
    "suppress",
];

/// Every subject since the rule began that breaks it. Where history does not reach back so far, none is checked.
pub(super) fn check(root: &Path) -> Vec<String> {
    let range = format!("{RULE_BEGAN}..HEAD");
    let log = Command::new("git").args(["log", "--no-merges", "--format=%h %s", &range]).current_dir(root).output();
    let Some(log) = log.ok().filter(|log| log.status.success()) else {
        println!("tidy: commit subjects are not checked: this history does not hold {RULE_BEGAN}");
        return Vec::new();
    };
    let log = String::from_utf8_lossy(&log.stdout).into_owned();
    let exempt = |id: &str| EXEMPT.iter().any(|short| id.starts_with(short));
    let commits = log.lines().filter_map(|line| line.split_once(' ')).filter(|(id, _)| !exempt(id));
    commits.filter_map(|(id, subject)| problem(subject).map(|problem| format!("{id} {subject:?} {problem}"))).collect()
}

/// What is wrong with a subject such as `link: refuse other protocol versions`.
fn problem(subject: &str) -> Option<String> {
    let characters = subject.chars().count();
    if characters > MOST_CHARACTERS {
        return Some(format!("has {characters} characters, more than {MOST_CHARACTERS}"));
    }
    if subject.starts_with("Revert \"") {
        return None;
    }
    let Some((_, order)) = subject.split_once(": ") else {
        return Some("does not begin with an area, as in `link: refuse …`".to_owned());
    };
    let verb = order.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_lowercase();
    (!is_imperative(&verb)).then(|| format!("is not in the imperative: {verb:?} is no order"))
}

/// Whether a word may be an imperative. Nouns pass, too: telling them apart is the reviewer's.
fn is_imperative(word: &str) -> bool {
    let inflected = ["ed", "ing", "s"].iter().any(|ending| word.ends_with(ending));
    !word.is_empty() && !NOT_VERBS.contains(&word) && (VERBS.contains(&word) || !inflected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_pass() {
        for subject in [
            "link: refuse other protocol versions",
            "models: move the forward pass to decoder/walk.rs",
            "quire, worker-svc: pass the step timeout on",
            "kernels: embed rows in one launch",
            "Revert \"link: refuse other protocol versions\"",
        ] {
            assert_eq!(problem(subject), None, "{subject}");
        }
    }

    #[test]
    fn descriptions_do_not() {
        for subject in [
            "kernels: the way of a step, in a file of its own",
            "docs: described the flags",
            "link: refuses other protocol versions",
            "refuse other protocol versions",
            "serve: --help says what prompts get",
            &format!("link: refuse {}", "x".repeat(72)),
        ] {
            assert!(problem(subject).is_some(), "{subject}");
        }
    }

    #[test]
    fn the_tables_are_sorted() {
        assert!(NOT_VERBS.is_sorted() && VERBS.is_sorted());
    }
}
