//! The help text of `quire serve`.

use super::{
    FLAGS, Flag,
    value::{Shape, Value},
};

const INTRO: &str = "\
Serve a model over OpenAI's API: start the five kinds of process, supervise them, restart those that die.

Usage: quire serve [MODEL] [FLAGS]

  MODEL  a folder, a .gguf file, or a Hugging Face id such as Qwen/Qwen3-0.6B (found in the local cache, or downloaded).
         If a repository has several GGUF files, append part of a file's name: owner/name:Q4_K_M.
         Default: Wren, a small chat model built into this program.

Examples:
  quire serve                                      try it: no network, no GPU, ready in a second
  quire serve ./my-model --port 9000               a folder with config.json, tokenizer files and weights
  quire serve ./my-model.gguf                      one file with everything in it
  quire serve Qwen/Qwen3-0.6B --max-model-len 16k  limit the context length, and with it KV memory
  quire serve --config server.yaml                 flags from a file: `max-model-len: 16k`

Flags have vLLM's names and defaults. Switches have an opposite: --no-enable-prefix-caching. Members of JSON values can
be given one by one: --override-generation-config.temperature 0.5
";

const END: &str = "
Other flags of vLLM are accepted with their default value, reported if they make no difference here, and otherwise
refused by name, with what to do instead. docs/configuration.md lists them all.
";

/// The whole text.
pub fn help() -> String {
    let mut text = INTRO.to_owned();
    let mut topic = "";
    for flag in FLAGS.iter() {
        if flag.topic != topic {
            topic = flag.topic;
            text.push_str(&format!("\n{topic}:\n"));
        }
        text.push_str(&line(flag));
    }
    text + END
}

fn line(flag: &Flag) -> String {
    let short = flag.aliases.iter().map(|alias| format!(", {alias}"));
    let name = format!("--{}{}{}", flag.name, short.collect::<String>(), flag.placeholder());
    let default = flag.default().map_or(String::new(), |default| format!(" [default: {default}]"));
    let env = flag.variable().map_or(String::new(), |variable| format!(" [env: {variable}]"));
    let choices = match flag.choices() {
        words if words.is_empty() => String::new(),
        words => format!(" ({})", words.join(", ")),
    };
    format!("  {name:<44} {}{choices}{default}{env}\n", flag.help())
}

impl Flag {
    /// ` N`, ` VALUE...`, or nothing for a switch.
    pub(super) fn placeholder(&self) -> String {
        if self.shape.is_bool() {
            return String::new();
        }
        let name = self.arg.get_value_names().and_then(|names| names.first()).map_or("VALUE", |name| name.as_str());
        let more = if self.shape == Shape::List { "..." } else { "" };
        format!(" {name}{more}")
    }

    /// Its default, unless the help says it in words.
    pub(super) fn default(&self) -> Option<String> {
        let words: Vec<_> = self.arg.get_default_values().iter().map(|word| word.to_string_lossy()).collect();
        match (self.shape, words.join(" ").as_str()) {
            (Shape::Switch, _) => Some("off".to_owned()),
            (Shape::Toggle, "true") => Some("on".to_owned()),
            (Shape::Toggle, "false") => Some("off".to_owned()),
            (_, "") => None,
            (_, default) => Some(default.to_owned()),
        }
    }

    /// Its default as a value.
    pub(super) fn default_value(&self) -> Option<Value> {
        if self.shape == Shape::Switch {
            return Some(Value::Bool(false));
        }
        let values: Vec<_> = self.arg.get_default_values().iter().map(|word| word.to_string_lossy()).collect();
        match values.as_slice() {
            [value] if !value.is_empty() => self.check(value).ok(),
            _ => None,
        }
    }

    /// Its default in the words of the help: `the model's`.
    pub(super) fn default_in_words(&self) -> Option<String> {
        let help = self.help();
        Some(help.split_once(" [default: ")?.1.split_once(']')?.0.to_owned())
    }

    /// The environment variable that stands for it.
    pub(super) fn variable(&self) -> Option<String> {
        self.arg.get_env().map(|name| name.to_string_lossy().into_owned())
    }

    /// What it does.
    pub(super) fn help(&self) -> String {
        self.arg.get_help().map(ToString::to_string).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_explained() {
        let text = help();
        for flag in FLAGS.iter() {
            assert!(text.contains(&format!("\n  --{}", flag.name)) && !flag.help().is_empty(), "{}", flag.name);
        }
        for part in ["--tensor-parallel-size, -tp N", "--enable-prefix-caching ", "[default: 0.92]", "--api-key KEY..."]
        {
            assert!(text.contains(part), "{part}");
        }
    }
}
