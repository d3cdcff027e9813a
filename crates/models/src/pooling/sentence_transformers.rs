//! The files that sentence-transformers writes beside a model: `modules.json`, its modules' settings, and prompts.

use std::collections::BTreeMap;
use std::path::Path;

use model_spec::{Activation, ConfigError, ConfigFile, HeadActivation, ProjectionSpec};
use serde_json::Value;

use super::PoolingMethod;

/// What they say.
#[derive(Debug, Default)]
pub(crate) struct SentenceFiles {
    /// There is a `modules.json`.
    pub found: bool,
    /// Absent without a module that pools.
    pub pooling: Option<PoolingMethod>,
    /// Linear layers after pooling; without pooling, of each token.
    pub projections: Vec<ProjectionSpec>,
    pub normalize: bool,
    pub prompts: BTreeMap<String, String>,
    pub default_prompt: Option<String>,
    pub max_len: Option<usize>,
}

impl SentenceFiles {
    pub(crate) fn read(dir: &Path) -> Result<Self, ConfigError> {
        let mut files = Self::default();
        files.read_modules(dir)?;
        if files.found {
            files.read_settings(dir)?;
        }
        Ok(files)
    }

    /// Whether the modules make a vector of each token, as ColBERT does.
    pub(super) fn embeds_tokens(&self) -> bool {
        self.pooling.is_none() && !self.projections.is_empty()
    }

    fn read_modules(&mut self, dir: &Path) -> Result<(), ConfigError> {
        let path = dir.join("modules.json");
        // A list, which is read as the one member of an object.
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => format!("{{\"modules\":{text}}}"),
            Err(_) => return Ok(()),
        };
        self.found = true;
        let file = ConfigFile::parse(&path, text.as_bytes())?;
        let no_list = || file.unsupported("modules", "expected a list of modules with a type each");
        let modules = file.get("modules").and_then(Value::as_array).ok_or_else(no_list)?;
        for module in modules {
            let text = |key| module.get(key).and_then(Value::as_str);
            let kind = text("type").and_then(|kind| kind.rsplit('.').next()).ok_or_else(no_list)?;
            let folder = text("path").unwrap_or_default();
            if self.normalize && matches!(kind, "Pooling" | "Dense") {
                return Err(file.unsupported("modules", &format!("expected Normalize after {kind}")));
            }
            match kind {
                "Transformer" | "MLMTransformer" => {}
                "SpladePooling" if self.projections.is_empty() => {
                    self.pooling = Some(sparse_method(&ConfigFile::read(&dir.join(folder).join("config.json"))?)?);
                }
                "Pooling" if self.projections.is_empty() => {
                    self.pooling = Some(method(&ConfigFile::read(&dir.join(folder).join("config.json"))?)?);
                }
                "Dense" => {
                    let projection = projection(dir, folder)?;
                    self.projections.push(projection);
                }
                "Normalize" => self.normalize = true,
                other => {
                    let reason =
                        format!("a module of type {other}; there are Transformer, Pooling, then Dense and Normalize");
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
            // PyLate's name for them.
            for (name, key) in [("query", "query_prefix"), ("document", "document_prefix")] {
                if let Some(prefix) = file.text_opt(key)?.filter(|_| self.embeds_tokens()) {
                    self.prompts.entry(name.to_owned()).or_insert(prefix);
                }
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

/// A `Dense` module.
fn projection(dir: &Path, folder: &str) -> Result<ProjectionSpec, ConfigError> {
    let settings = ConfigFile::read(&dir.join(folder).join("config.json"))?;
    if settings.flag_or("use_residual", false)? {
        return Err(settings.unsupported("use_residual", "expected a linear layer alone"));
    }
    let key = "activation_function";
    let name = settings.text_or(key, "Tanh")?;
    let activation = match name.rsplit('.').next() {
        Some("Identity") => None,
        Some("Tanh") => Some(HeadActivation::Tanh),
        Some("ReLU") => Some(HeadActivation::Of(Activation::Relu)),
        Some("GELU") => Some(HeadActivation::Of(Activation::Gelu)),
        Some("SiLU") => Some(HeadActivation::Of(Activation::Silu)),
        _ => return Err(settings.unsupported(key, "expected Identity, Tanh, ReLU, GELU or SiLU")),
    };
    let safetensors = dir.join(folder).join("model.safetensors").is_file();
    let file = if safetensors { "model.safetensors" } else { "pytorch_model.bin" };
    Ok(ProjectionSpec {
        file: Some(format!("{folder}/{file}")),
        inputs: settings.size("in_features")?,
        outputs: settings.size("out_features")?,
        bias: settings.flag_or("bias", true)?,
        activation,
    })
}

/// Ways of pooling, as `pooling_mode` calls them now, and as the flags that begin with `pooling_mode_` did.
const MODES: [(&str, &str, PoolingMethod); 6] = [
    ("cls", "cls_token", PoolingMethod::Cls),
    ("lasttoken", "lasttoken", PoolingMethod::Last),
    ("max", "max_tokens", PoolingMethod::Max),
    ("mean", "mean_tokens", PoolingMethod::Mean),
    ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", PoolingMethod::MeanSqrtLen),
    ("weightedmean", "weightedmean_tokens", PoolingMethod::WeightedMean),
];

/// What a `SpladePooling` module does.
fn sparse_method(settings: &ConfigFile) -> Result<PoolingMethod, ConfigError> {
    let (key, usual) = ("activation_function", "relu");
    if settings.text_or(key, usual)? != usual {
        return Err(settings.unsupported(key, "expected relu"));
    }
    let key = "pooling_strategy";
    match settings.text_or(key, "max")?.as_str() {
        "max" => Ok(PoolingMethod::SparseMax),
        "sum" => Ok(PoolingMethod::SparseSum),
        _ => Err(settings.unsupported(key, "expected max or sum")),
    }
}

/// The one way of pooling that is switched on.
fn method(settings: &ConfigFile) -> Result<PoolingMethod, ConfigError> {
    let mut found = None;
    for (_, flag, method) in MODES {
        let key = format!("pooling_mode_{flag}");
        if settings.flag_or(&key, false)? && found.replace(method).is_some() {
            return Err(settings.unsupported(&key, "expected one way of pooling alone, not several side by side"));
        }
    }
    if let Some(method) = found {
        return Ok(method);
    }
    let named = settings.text_opt("pooling_mode")?;
    let known = MODES.iter().find(|(name, ..)| named.as_deref() == Some(name));
    known.map(|(.., method)| *method).ok_or_else(|| {
        let names: Vec<&str> = MODES.iter().map(|(name, ..)| *name).collect();
        settings.unsupported("pooling_mode", &format!("expected one of {}", names.join(", ")))
    })
}
