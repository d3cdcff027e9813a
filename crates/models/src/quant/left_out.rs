//! Modules that a `quantization_config` leaves as plain numbers. A checkpoint shows which they are by its tensors; of
//! weights that are made up, the config alone says it.

use model_spec::{ConfigError, ConfigFile};
use regex::Regex;

/// What lists of such modules are called.
const KEYS: [&str; 5] = ["exclude", "exclude_modules", "ignore", "ignored_layers", "modules_to_not_convert"];

/// The modules.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    names: Vec<String>,
    patterns: Vec<Regex>,
}

impl LeftOut {
    pub(super) fn read(config: &ConfigFile) -> Result<Self, ConfigError> {
        // Model Optimizer's files have it one level deeper.
        let inner = config.object("quantization")?;
        let config = inner.as_ref().unwrap_or(config);
        let mut found = Self::default();
        for key in KEYS {
            for text in config.texts_opt(key)?.unwrap_or_default() {
                match text.strip_prefix("re:") {
                    Some(pattern) => found.patterns.push(regex(config, key, pattern)?),
                    None => found.names.push(text.trim_matches('*').trim_matches('.').to_owned()),
                }
            }
        }
        // GPTQModel's: a minus before what is left out.
        if let Some(dynamic) = config.object("dynamic")? {
            for pattern in dynamic.keys().filter_map(|key| key.strip_prefix("-:")) {
                found.patterns.push(regex(config, "dynamic", pattern)?);
            }
        }
        Ok(found)
    }

    /// Whether a weight is left out, by its plain tensor's name.
    pub(crate) fn covers(&self, tensor: &str) -> bool {
        let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
        let path = format!(".{module}.");
        self.names.iter().any(|name| path.contains(&format!(".{name}.")))
            || self.patterns.iter().any(|pattern| pattern.is_match(module))
    }
}

fn regex(config: &ConfigFile, key: &str, pattern: &str) -> Result<Regex, ConfigError> {
    Regex::new(&format!("^(?:{pattern})")).map_err(|_| config.unsupported(key, "one of them is no regular expression"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn names_and_patterns_leave_modules_out() {
        let text = br#"{"ignore": ["lm_head", "re:.*layers\\.0\\.mlp"], "modules_to_not_convert": ["mlp.gate"],
            "dynamic": {"-:.*o_proj": {}, "+:.*q_proj": {"bits": 8}}}"#;
        let left_out = LeftOut::read(&ConfigFile::parse(Path::new("config.json"), text).expect("JSON")).expect("lists");
        let layer = |name: &str| left_out.covers(&format!("model.layers.{name}.weight"));
        assert!(left_out.covers("lm_head.weight") && layer("0.mlp.up_proj") && layer("1.mlp.gate"));
        assert!(layer("3.self_attn.o_proj"));
        assert!(!layer("1.mlp.gate_proj") && !layer("3.self_attn.q_proj") && !layer("10.mlp.up_proj"));
    }
}
