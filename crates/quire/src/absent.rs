//! vLLM's subcommands that Quire does not have, each with what to do instead.

/// Sorted by name.
const ABSENT: &[(&str, &str)] = &[
    ("bench forward", "use quire bench cases"),
    ("bench mm-processor", "images, sound and video are not served"),
    ("bench sweep", "run quire bench serve once for each setting"),
    ("download-kernels", "use quire kernels: they are compiled here"),
    ("launch", "each process has a subcommand of its own: see quire --help"),
    ("preload", "use quire fetch"),
    ("run-batch", "send the lines of the file to a server one by one: they are batched"),
    ("snapshot", "a start needs none: see quire kernels and quire fetch"),
];

/// Why there is no such subcommand, if vLLM has it; `words` are those behind the program's name.
pub fn reason<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let words: Vec<&str> = words.into_iter().take(2).collect();
    let given = |name: &str| words.first() == Some(&name) || words.join(" ") == name;
    let (name, instead) = ABSENT.iter().find(|(name, _)| given(name))?;
    Some(format!("there is no subcommand `{name}`: {instead}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn subcommands_of_vllm_are_refused_with_a_reason() {
        assert!(ABSENT.is_sorted_by_key(|(name, _)| *name));
        for (name, instead) in ABSENT {
            let words: Vec<&str> = name.split(' ').chain(["--port", "8000"]).collect();
            assert!(reason(words.iter().copied()).is_some_and(|text| text.ends_with(instead)), "{name}");
            let known = crate::Cli::command().try_get_matches_from([&["quire"], &words[..]].concat());
            assert_eq!(known.map_err(|error| error.kind()), Err(clap::error::ErrorKind::InvalidSubcommand), "{name}");
        }
        assert_eq!(reason(["bench", "serve"]), None);
        assert_eq!(reason([]), None);
    }
}
