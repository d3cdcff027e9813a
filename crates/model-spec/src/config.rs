//! `config.json` and its siblings: typed access whose errors name the file and the key.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::ConfigError;
use crate::spec::DType;

/// A JSON object from a model folder. `null` counts as absent.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    file: PathBuf,
    /// Path of this object inside the file: empty, or `"rope_scaling."`.
    prefix: String,
    object: Map<String, Value>,
}

impl ConfigFile {
    /// Reads a file that holds a JSON object.
    pub fn read(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })?;
        Self::parse(file, &text)
    }

    /// Reads a file that need not exist.
    pub fn read_optional(file: &Path) -> Result<Option<Self>, ConfigError> {
        match std::fs::read(file) {
            Ok(text) => Self::parse(file, &text).map(Some),
            // A model that is one file has nothing beside it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(source) => Err(ConfigError::Read { file: file.to_owned(), source }),
        }
    }

    /// The same from memory; `file` is for messages.
    pub fn parse(file: &Path, text: &[u8]) -> Result<Self, ConfigError> {
        let not_json = |reason: String| ConfigError::NotJson { file: file.to_owned(), reason };
        match serde_json::from_slice(text).map_err(|error| not_json(error.to_string()))? {
            Value::Object(object) => Ok(Self::from_object(file, object)),
            other => Err(not_json(format!("it holds {}", describe(&other)))),
        }
    }

    /// An object that stands for a file's content.
    pub(crate) fn from_object(file: &Path, object: Map<String, Value>) -> Self {
        Self { file: file.to_owned(), prefix: String::new(), object }
    }

    /// The file this came from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether it is what a GGUF file's metadata say: such files have layouts of their own.
    pub fn is_gguf(&self) -> bool {
        self.file.extension().is_some_and(|extension| extension == "gguf")
    }

    /// The raw value, unless absent or `null`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Its keys whose values are there, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.object.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    /// A nested object.
    pub fn object(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        self.typed(key, "an object", |value| value.as_object().cloned()).map(|object| {
            object.map(|object| Self { file: self.file.clone(), prefix: format!("{}{key}.", self.prefix), object })
        })
    }

    /// A whole number that must be there and at least 1: a size or a count.
    pub fn size(&self, key: &str) -> Result<usize, ConfigError> {
        self.size_opt(key)?.ok_or_else(|| self.missing(key, "a whole number of at least 1"))
    }

    /// A whole number of at least 1, or absent.
    pub fn size_opt(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.typed(key, "a whole number from 1 to 2^31", |value| {
            whole(value).filter(|&n| (1..=1 << 31).contains(&n)).and_then(|n| usize::try_from(n).ok())
        })
    }

    /// A whole number of at least 1, or the default.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.size_opt(key)?.unwrap_or(default))
    }

    /// The first of `keys` that is there: families spell the same size differently.
    pub fn spelled<'a>(&self, keys: &[&'a str]) -> Option<&'a str> {
        keys.iter().copied().find(|key| self.get(key).is_some())
    }

    /// A finite number, or absent.
    pub fn number_opt(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.typed(key, "a number", |value| value.as_f64().filter(|x| x.is_finite()))
    }

    /// A finite number that must be there.
    pub fn number(&self, key: &str) -> Result<f64, ConfigError> {
        self.number_opt(key)?.ok_or_else(|| self.missing(key, "a number"))
    }

    /// A finite number, or the default.
    pub fn number_or(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.number_opt(key)?.unwrap_or(default))
    }

    /// A list of finite numbers, or absent.
    pub fn numbers_opt(&self, key: &str) -> Result<Option<Vec<f64>>, ConfigError> {
        self.typed(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// A truth value, or the default.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A string, or absent.
    pub fn text_opt(&self, key: &str) -> Result<Option<String>, ConfigError> {
        self.typed(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A string, or the default.
    pub fn text_or(&self, key: &str, default: &str) -> Result<String, ConfigError> {
        Ok(self.text_opt(key)?.unwrap_or_else(|| default.to_owned()))
    }

    /// A list of strings, or absent.
    pub fn texts_opt(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        self.typed(key, "a list of strings", |value| {
            value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
        })
    }

    /// Token ids: a number, a list of numbers, or absent (then none).
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let id = |value: &Value| whole(value).and_then(|n| u32::try_from(n).ok());
        let ids = self.typed(key, "a token id or a list of token ids", |value| match value {
            Value::Array(items) => items.iter().map(id).collect(),
            single => id(single).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// The architecture's name: the first of `architectures`.
    pub fn architecture(&self) -> Result<String, ConfigError> {
        let names = self.texts_opt("architectures")?.unwrap_or_default();
        names.into_iter().next().ok_or_else(|| self.missing("architectures", "a list like [\"LlamaForCausalLM\"]"))
    }

    /// What the weights are meant to be computed in: `dtype` or the older `torch_dtype`.
    pub fn float_type(&self) -> Result<Option<DType>, ConfigError> {
        for key in ["torch_dtype", "dtype"] {
            let Some(name) = self.text_opt(key)? else { continue };
            let plain = name.strip_prefix("torch.").unwrap_or(&name);
            return match DType::from_name(plain) {
                Some(dtype) => Ok(Some(dtype)),
                None => Err(self.unsupported(key, "expected bfloat16, float16 or float32")),
            };
        }
        Ok(None)
    }

    /// The error for a key that is not there.
    pub fn missing(&self, key: &str, remedy: &str) -> ConfigError {
        ConfigError::Missing { file: self.file.clone(), key: self.path(key), remedy: remedy.to_owned() }
    }

    /// The error for a value that cannot be served.
    pub fn unsupported(&self, key: &str, reason: &str) -> ConfigError {
        let value = self.object.get(key).map_or_else(|| "absent".to_owned(), short);
        ConfigError::Unsupported { file: self.file.clone(), key: self.path(key), value, reason: reason.to_owned() }
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| ConfigError::WrongType {
            file: self.file.clone(),
            key: self.path(key),
            expected,
            found: short(value),
        })
    }
}

/// Whole numbers are sometimes written as `1024.0`.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && *x >= 0.0 && *x < 1e15).map(|x| x as u64))
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The value as JSON, cut to a length fit for a message.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> ConfigFile {
        ConfigFile::parse(Path::new("m/config.json"), text.as_bytes()).expect("valid JSON")
    }

    #[test]
    fn reads_what_is_there() {
        let c = config(r#"{"a": 3, "b": 2.0, "c": null, "d": {"e": 1.5}, "f": [1, 2], "g": 7, "h": "x", "i": true}"#);
        assert_eq!(c.size("a").unwrap(), 3);
        assert_eq!(c.size("b").unwrap(), 2);
        assert_eq!(c.size_or("c", 9).unwrap(), 9);
        assert_eq!(c.object("d").unwrap().unwrap().number("e").unwrap(), 1.5);
        assert_eq!(c.token_ids("f").unwrap(), [1, 2]);
        assert_eq!(c.token_ids("g").unwrap(), [7]);
        assert_eq!(c.token_ids("zz").unwrap(), [0u32; 0]);
        assert_eq!(c.text_or("h", "").unwrap(), "x");
        assert!(c.flag_or("i", false).unwrap());
    }

    #[test]
    fn errors_name_file_and_key() {
        let c = config(r#"{"a": -1, "b": "x", "d": {"e": "y"}, "torch_dtype": "int8", "t": 4294967296}"#);
        let messages = [
            c.size("a").unwrap_err().to_string(),
            c.size("b").unwrap_err().to_string(),
            c.size("nope").unwrap_err().to_string(),
            c.object("d").unwrap().unwrap().number("e").unwrap_err().to_string(),
            c.float_type().unwrap_err().to_string(),
            c.token_ids("t").unwrap_err().to_string(),
            c.architecture().unwrap_err().to_string(),
        ];
        for (message, key) in
            messages.iter().zip(["\"a\"", "\"b\"", "\"nope\"", "\"d.e\"", "torch_dtype", "\"t\"", "architectures"])
        {
            assert!(message.contains("m/config.json") && message.contains(key), "{message}");
        }
    }

    #[test]
    fn refuses_what_is_no_object() {
        for text in ["", "[]", "3", "{", "{\"a\":1}x"] {
            assert!(ConfigFile::parse(Path::new("x"), text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn float_types() {
        for (text, expected) in [
            (r#"{"torch_dtype": "bfloat16"}"#, Some(DType::Bf16)),
            (r#"{"dtype": "torch.float16"}"#, Some(DType::F16)),
            (r#"{"torch_dtype": null, "dtype": "float32"}"#, Some(DType::F32)),
            ("{}", None),
        ] {
            assert_eq!(config(text).float_type().unwrap(), expected, "{text}");
        }
    }
}
