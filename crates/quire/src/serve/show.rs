//! `quire config show`: the effective configuration of `quire serve`, and where each value came from. What it prints is
//! a file for `--config`.

use std::{fmt::Write, path::Path};

use model_source::{Model, Need, Options, Quiet};
use model_spec::ConfigFile;
use serde_json::Value as Json;

use super::{
    flags::{self, Effective, Settings, Value},
    options, read,
};
use crate::environment::Environment;

/// Column in which sources begin.
const SOURCES: usize = 52;
/// Flags whose values are not shown.
const SECRETS: [&str; 2] = ["api-key", "hf-token"];
/// Keys of generation_config.json that are sampling defaults.
const SAMPLING: [&str; 7] =
    ["max_new_tokens", "min_p", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p"];

/// Prints it.
pub fn show(words: &[String], environment: &Environment) -> anyhow::Result<()> {
    let settings = read(words, environment)?;
    // What is not in the cache is not downloaded for this.
    let options = Options { offline: true, ..options(&settings, environment) };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let need = if settings.text("load-format") == Some("dummy") { Need::NoWeights } else { Need::Everything };
    let found = runtime.block_on(model_source::resolve(settings.text("model"), need, &options, &Quiet));
    print!("{}", page(&settings, found.as_ref().map_err(ToString::to_string)));
    Ok(())
}

fn page(settings: &Settings, model: Result<&Model, String>) -> String {
    let mut page = format!("# quire {}\n", service_kit::VERSION);
    match &model {
        Ok(model) => page.push_str(&format!("# model: {} at {}\n", model.name, model.path.display())),
        Err(problem) => page.push_str(&format!("# model: not looked at: {problem}\n")),
    }
    let mut topic = "";
    for flag in flags::effective(settings) {
        if flag.topic != topic {
            topic = flag.topic;
            page.push_str(&format!("\n# {topic}\n"));
        }
        page.push_str(&line(&flag, model.as_ref().ok().copied()));
    }
    if let Ok(model) = model
        && settings.text("generation-config") != Some("vllm")
    {
        page.push_str(&sampling(&model.path));
    }
    for note in settings.without_effect() {
        // Writing to a String cannot fail.
        let _ = write!(page, "\n# {note}");
    }
    page.trim_end().to_owned() + "\n"
}

/// `max-num-seqs: 256    # default`
fn line(flag: &Effective, model: Option<&Model>) -> String {
    let of_model = model.and_then(|model| of_model(flag.name, model));
    let (text, source) = match (&flag.value, &flag.default, of_model) {
        (Some(_), ..) if SECRETS.contains(&flag.name) => (None, "given, not shown".to_owned()),
        (Some(Value::Text(value)), _, Some(of_model)) if value == "auto" => {
            (Some(value.clone()), format!("{}: the model's is {of_model}", source(flag)))
        }
        (Some(value), ..) => (Some(yaml(value)), source(flag)),
        (None, Some(default), Some(of_model)) => (Some(yaml(default)), format!("default: the model's is {of_model}")),
        (None, None, Some(of_model)) => (Some(of_model), "model".to_owned()),
        (None, Some(default), None) => (Some(yaml(default)), "default".to_owned()),
        (None, None, None) => (None, flag.default_in_words.clone().unwrap_or_else(|| "none".to_owned())),
    };
    let name = flag.name;
    let setting = text.map_or_else(|| format!("# {name}:"), |text| format!("{name}: {text}"));
    format!("{setting:<SOURCES$} # {source}\n")
}

fn source(flag: &Effective) -> String {
    flag.source.clone().unwrap_or_else(|| "command line".to_owned())
}

/// A value as YAML.
fn yaml(value: &Value) -> String {
    match value {
        Value::Bool(on) => on.to_string(),
        Value::Text(text) => scalar(text),
        Value::Many(texts) => format!("[{}]", texts.iter().map(|text| scalar(text)).collect::<Vec<_>>().join(", ")),
    }
}

fn scalar(text: &str) -> String {
    // JSON is quoted too: a YAML list would repeat the flag.
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { Json::from(text).to_string() }
}

/// What the model's files say where a flag leaves it to them.
fn of_model(flag: &str, model: &Model) -> Option<String> {
    let config = || ConfigFile::of_model(&model.path).ok();
    match flag {
        "max-model-len" => Some(model_spec::context_len(&config()?).ok()?.to_string()),
        "model" | "served-model-name" => Some(scalar(&model.name)),
        "dtype" => Some(format!("{:?}", config()?.float_type().ok()??).to_lowercase()),
        _ => None,
    }
}

/// The sampling defaults of the model, as comments: they are no flags.
fn sampling(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("generation_config.json")).unwrap_or_default();
    let config: Json = serde_json::from_str(&text).unwrap_or_default();
    let set = SAMPLING.iter().filter_map(|key| Some((key, config.get(key).filter(|value| !value.is_null())?)));
    let lines: String = set.map(|(key, value)| format!("#   {key}: {value}\n")).collect();
    if lines.is_empty() { lines } else { format!("\n# Sampling defaults of generation_config.json\n{lines}") }
}

#[cfg(test)]
mod tests {
    use model_source::Origin;

    use super::*;
    use crate::serve::{flags::parse, variables};

    fn shown(line: &str, variables: &[(&str, &str)], folder: &Path) -> String {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let mut settings = parse(&words).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        variables::apply(&mut settings, &variables).unwrap();
        let model = Model { path: folder.to_owned(), name: "wren".to_owned(), origin: Origin::Folder };
        page(&settings, Ok(&model))
    }

    /// The value and the source of a flag.
    fn of<'p>(page: &'p str, flag: &str) -> (&'p str, &'p str) {
        let line = page.lines().find_map(|line| line.trim_start_matches("# ").strip_prefix(&format!("{flag}:")));
        let (value, source) = line.unwrap_or_else(|| panic!("no {flag} in {page}")).split_once('#').unwrap();
        (value.trim(), source.trim())
    }

    #[test]
    fn every_value_has_its_source() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), r#"{"max_position_embeddings": 512}"#).unwrap();
        std::fs::write(folder.path().join("generation_config.json"), r#"{"temperature": 0.6, "eos_token_id": 2}"#)
            .unwrap();
        let file = folder.path().join("a.yaml");
        std::fs::write(&file, "max-num-seqs: 7\nport: 9000\n").unwrap();
        let line = format!("--port 1 --api-key secret --trust-remote-code --config {}", file.display());
        let page = shown(&line, &[("VLLM_LOGGING_LEVEL", "DEBUG")], folder.path());
        assert_eq!(of(&page, "port"), ("1", "command line"));
        assert_eq!(of(&page, "max-num-seqs"), ("7", file.display().to_string().as_str()));
        assert_eq!(of(&page, "log-level"), ("debug", "environment VLLM_LOGGING_LEVEL"));
        assert_eq!(of(&page, "block-size"), ("16", "default"));
        assert_eq!(of(&page, "max-model-len"), ("512", "model"));
        assert_eq!(of(&page, "api-key"), ("", "given, not shown"));
        assert_eq!(of(&page, "kv-cache-memory-bytes"), ("", "measured"));
        assert!(page.contains("#   temperature: 0.6\n") && !page.contains("eos_token_id"), "{page}");
        assert!(page.contains("--trust-remote-code makes no difference") && !page.contains("secret"), "{page}");
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let line = r#"--served-model-name a b --override-generation-config {"top_k":3} --no-enable-prefix-caching"#;
        let page = shown(line, &[], folder.path());
        let file = folder.path().join("again.yaml");
        std::fs::write(&file, &page).unwrap();
        let again = parse(&["--config".to_owned(), file.display().to_string()]).unwrap();
        assert_eq!(again.list("served-model-name"), ["a", "b"]);
        assert_eq!(again.text("override-generation-config"), Some(r#"{"top_k":3}"#));
        assert_eq!(again.get("enable-prefix-caching"), Some(&Value::Bool(false)));
    }
}
