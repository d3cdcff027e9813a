//! The help text of `quire serve`.

use super::{Flag, table, value::Kind};

const INTRO: &str = "\
Serve a model over OpenAI's API: starts the five kinds of process, watches over them, and restarts what dies.

Usage: quire serve [MODEL] [FLAGS]

  MODEL  a folder, a .gguf file, or a Hugging Face id such as Qwen/Qwen3-0.6B (found in the local cache, or downloaded);
         behind a colon, part of a file's name where a repository has several GGUF files: owner/name:Q4_K_M.
         Without one, Wren is served: a small chat model that is part of this program.

Examples:
  quire serve                                      try it: no network, no GPU, ready in a second
  quire serve ./my-model --port 9000               a folder with config.json, tokenizer files and weights
  quire serve ./my-model.gguf                      one file with everything in it
  quire serve Qwen/Qwen3-0.6B --max-model-len 16k  bound the context, and with it the memory
  quire serve --config server.yaml                 flags from a file: `max-model-len: 16k`

Flags have vLLM's names and defaults. Switches have an opposite: --no-enable-prefix-caching. Members of JSON values can be
given one by one: --override-generation-config.temperature 0.5
";

/// The whole text.
pub fn help() -> String {
    let mut text = INTRO.to_owned();
    for group in table::GROUPS {
        text.push_str(&format!("\n{}:\n", group.title));
        for flag in group.flags {
            text.push_str(&line(flag));
        }
    }
    text.push_str("\nOther flags of vLLM are accepted with their default value, and otherwise refused by name.\n");
    text
}

fn line(flag: &Flag) -> String {
    let short = flag.aliases.iter().filter(|alias| !alias.starts_with("--")).map(|alias| format!(", {alias}"));
    let name = format!("--{}{}{}", flag.name, short.collect::<String>(), placeholder(flag.kind));
    let default = if flag.default.is_empty() { String::new() } else { format!(" [default: {}]", flag.default) };
    let choices = match flag.kind {
        Kind::Choice(choices) => format!(" ({})", choices.join(", ")),
        _ => String::new(),
    };
    format!("  {name:<44} {}{choices}{default}\n", flag.help)
}

fn placeholder(kind: Kind) -> &'static str {
    match kind {
        Kind::Switch | Kind::Toggle => "",
        Kind::Text | Kind::Choice(_) => " VALUE",
        Kind::Count { .. } | Kind::Fraction | Kind::Share => " N",
        Kind::Size { .. } | Kind::MaxLen => " SIZE",
        Kind::Seconds => " SECONDS",
        Kind::Json => " JSON",
        Kind::List => " VALUE...",
        Kind::Counts { .. } => " N...",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_explained() {
        let text = help();
        for flag in table::GROUPS.iter().flat_map(|group| group.flags) {
            assert!(text.contains(&format!("\n  --{}", flag.name)), "{}", flag.name);
        }
        assert!(text.contains("--tensor-parallel-size, -tp N"));
    }
}
