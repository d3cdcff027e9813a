//! The files that sentence-transformers writes beside a model: `modules.json`, its modules' settings, and prompts.

use std::collections::BTreeMap;
use std::path::Path;

use model_spec::{ConfigError, ConfigFile};
use serde_json::Value;

use super::PoolingMethod;

/// What they say.
#[derive(Debug, Default)]
pub(super) struct SentenceFiles {
    /// Absent without `modules.json`.
    pub pooling: Option<PoolingMethod>,
    pub normalize: bool,
    pub prompts: BTreeMap<String, String>,
    pub default_prompt: Option<String>,
    pub max_len: Option<usize>,
}

impl SentenceFiles {
    pub(super) fn read(dir: &Path) -> Result<Self, ConfigError> {
        let mut files = Self::default();
        files.read_modules(dir)?;
        if files.pooling.is_some() {
            files.read_settings(dir)?;
        }
        Ok(files)
    }

    fn read_modules(&mut self, dir: &Path) -> Result<(), ConfigError> {
        let path = dir.join("modules.json");
        // A list, which is read as the one member of an object.
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => format!("{{\"modules\":{text}}}"),
            Err(_) => return Ok(()),
        };
        let file = ConfigFile::parse(&path, text.as_bytes())?;
        let no_list = || file.unsupported("modules", "expected a list of modules with a type each");
        let modules = file.get("modules").and_then(Value::as_array).ok_or_else(no_list)?;
        for module in modules {
            let text = |key| module.get(key).and_then(Value::as_str);
            let kind = text("type").and_then(|kind| kind.rsplit('.').next()).ok_or_else(no_list)?;
            match kind {
                "Transformer" => {}
                "Pooling" => {
                    let settings = ConfigFile::read(&dir.join(text("path").unwrap_or_default()).join("config.json"))?;
                    self.pooling = Some(method(&settings)?);
                }
                "Normalize" => self.normalize = true,
                other => {
                    let reason = format!("a module of type {other}; there are Transformer, Pooling and Normalize");
                    return Err(file.unsupported("modules", &reason));
                }
            }
        }
        Ok(())
    }

    fn read_settings(&mut self, dir: &Path) -> Result<(), ConfigError> {
        if let Some(file) = ConfigFile::read_optional(&dir.join("config_sentence_transformers.json"))? {
            let prompts = file.object("prompts")?;
            for (name, prompt) in prompts.iter().flat_map(|prompts| prompts.keys().map(move |name| (name, prompts))) {
                self.prompts.insert(name.to_owned(), prompt.text_or(name, "")?);
            }
            self.default_prompt = file.text_opt("default_prompt_name")?;
            if let Some(name) = &self.default_prompt
                && !self.prompts.contains_key(name)
            {
                return Err(file.unsupported("default_prompt_name", "it is none of `prompts`"));
            }
        }
        if let Some(file) = ConfigFile::read_optional(&dir.join("sentence_bert_config.json"))? {
            self.max_len = file.size_opt("max_seq_length")?;
        }
        Ok(())
    }
}

/// The one way of pooling that is switched on.
fn method(settings: &ConfigFile) -> Result<PoolingMethod, ConfigError> {
    const MODES: [(&str, Option<PoolingMethod>); 7] = [
        ("cls_token", Some(PoolingMethod::Cls)),
        ("lasttoken", Some(PoolingMethod::Last)),
        ("max_tokens", None),
        ("mean_sqrt_len_tokens", None),
        ("mean_tokens", Some(PoolingMethod::Mean)),
        ("weightedmean_tokens", None),
        ("multi", None),
    ];
    let mut found = None;
    for (mode, method) in MODES {
        let key = format!("pooling_mode_{mode}");
        if !settings.flag_or(&key, false)? {
            continue;
        }
        match (method, found) {
            (Some(method), None) => found = Some(method),
            (None, _) => return Err(settings.unsupported(&key, "expected cls_token, mean_tokens or lasttoken")),
            (Some(_), Some(_)) => return Err(settings.unsupported(&key, "expected one way of pooling alone")),
        }
    }
    if let Some(method) = found {
        return Ok(method);
    }
    match settings.text_opt("pooling_mode")?.as_deref() {
        Some("cls") => Ok(PoolingMethod::Cls),
        Some("lasttoken") => Ok(PoolingMethod::Last),
        Some("mean") => Ok(PoolingMethod::Mean),
        _ => Err(settings.unsupported("pooling_mode", "expected cls, mean or lasttoken")),
    }
}
