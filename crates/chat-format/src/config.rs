//! Finds a model's chat templates and the special tokens that they mention.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use model_files::{Gguf, gguf_of};
use serde_json::{Map, Value};

use crate::ChatError;

/// The special tokens that Hugging Face hands to templates by name.
const TOKEN_ROLES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Templates by name, and variables for them.
pub(crate) struct ModelTemplates {
    /// Name and text; the usual one is `default`, the one for requests with tools `tool_use`.
    pub(crate) templates: Vec<(String, String)>,
    /// `bos_token` and the like.
    pub(crate) tokens: Map<String, Value>,
}

impl ModelTemplates {
    /// Reads a tokenizer's folder, or a GGUF file. A `chat_template.jinja` or `chat_template.json` wins over
    /// `tokenizer_config.json`, and each of them over what a GGUF file in the folder says.
    pub(crate) fn read(model: &Path) -> Result<Self, ChatError> {
        let config = object(&model.join("tokenizer_config.json"))?;
        let map = object(&model.join("special_tokens_map.json"))?;
        let mut templates = match text(&model.join("chat_template.jinja"))? {
            Some(template) => vec![("default".to_owned(), template)],
            None => match object(&model.join("chat_template.json"))?.get("chat_template") {
                Some(template) => named(template),
                None => config.get("chat_template").map(named).unwrap_or_default(),
            },
        };
        templates.extend(additional(&model.join("additional_chat_templates"))?);
        let mut tokens = tokens(&config, &map);
        if templates.is_empty()
            && let Some(file) = gguf_of(model)?
        {
            let gguf = Gguf::read(&file)?;
            templates = templates_of(&gguf)?;
            for (role, token) in gguf.token_roles()? {
                tokens.entry(role).or_insert_with(|| token.into());
            }
        }
        Ok(Self { templates, tokens })
    }
}

/// The templates in a GGUF file: the usual one, and others by name.
fn templates_of(gguf: &Gguf) -> Result<Vec<(String, String)>, ChatError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut found = Vec::new();
    found.extend(gguf.text(KEY)?.map(|template| ("default".to_owned(), template.to_owned())));
    for name in gguf.texts("tokenizer.chat_templates")?.unwrap_or_default() {
        let template = gguf.text(&format!("{KEY}.{name}"))?;
        found.extend(template.map(|template| (name.to_owned(), template.to_owned())));
    }
    Ok(found)
}

/// Where a template given by the user comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// A file.
    File(PathBuf),
    /// The template itself.
    Text(String),
}

/// What `--chat-template` means: a file where there is one, else the template itself (`\n` may be written as two
/// characters).
///
/// # Errors
/// When it is no file and does not look like a template.
pub fn template_source(argument: &str) -> Result<TemplateSource, ChatError> {
    let path = Path::new(argument);
    if path.is_file() {
        return Ok(TemplateSource::File(path.to_owned()));
    }
    if !argument.contains(['{', '}', '\n']) {
        return Err(ChatError::NoSuchTemplate { text: argument.to_owned() });
    }
    Ok(TemplateSource::Text(argument.replace("\\n", "\n")))
}

impl TemplateSource {
    /// The template's text.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn text(&self) -> Result<String, ChatError> {
        match self {
            Self::File(path) => {
                fs::read_to_string(path).map_err(|source| ChatError::Read { path: path.clone(), source })
            }
            Self::Text(text) => Ok(text.clone()),
        }
    }
}

/// A template is a string, or a list of objects with `name` and `template`.
fn named(value: &Value) -> Vec<(String, String)> {
    match value {
        Value::String(template) => vec![("default".to_owned(), template.clone())],
        Value::Array(list) => list
            .iter()
            .filter_map(|entry| {
                Some((entry.get("name")?.as_str()?.to_owned(), entry.get("template")?.as_str()?.to_owned()))
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// `additional_chat_templates/NAME.jinja`, sorted by name.
fn additional(dir: &Path) -> Result<Vec<(String, String)>, ChatError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(source) => return Err(ChatError::Read { path: dir.to_owned(), source }),
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "jinja")
            && let Some(name) = path.file_stem().and_then(|stem| stem.to_str())
            && let Some(template) = text(&path)?
        {
            found.push((name.to_owned(), template));
        }
    }
    found.sort();
    Ok(found)
}

fn tokens(config: &Map<String, Value>, map: &Map<String, Value>) -> Map<String, Value> {
    let content = |value: &Value| match value {
        Value::String(_) => Some(value.clone()),
        Value::Object(fields) => fields.get("content").filter(|content| content.is_string()).cloned(),
        _ => None,
    };
    let mut found = Map::new();
    for role in TOKEN_ROLES {
        let token = config.get(role).and_then(content).or_else(|| map.get(role).and_then(content));
        found.extend(token.map(|token| (role.to_owned(), token)));
    }
    let list = config.get("additional_special_tokens").or_else(|| map.get("additional_special_tokens"));
    if let Some(Value::Array(list)) = list {
        found.insert("additional_special_tokens".to_owned(), list.iter().filter_map(content).collect());
    }
    found
}

/// A file's text; `None` when there is no file.
fn text(path: &Path) -> Result<Option<String>, ChatError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        // A model that is one file has nothing beside it.
        Err(source) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(source) => Err(ChatError::Read { path: path.to_owned(), source }),
    }
}

/// A JSON object from a file; empty when there is no file.
fn object(path: &Path) -> Result<Map<String, Value>, ChatError> {
    let Some(text) = text(path)? else { return Ok(Map::new()) };
    serde_json::from_str(&text).map_err(|source| ChatError::Json { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_file_or_a_template() {
        let text = template_source("{{ messages }}\\n").expect("a template");
        assert_eq!(text, TemplateSource::Text("{{ messages }}\n".to_owned()));
        assert!(matches!(template_source("missing.jinja"), Err(ChatError::NoSuchTemplate { .. })));
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(template_source(here).expect("a file"), TemplateSource::File(here.into()));
    }
}
