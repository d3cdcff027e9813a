//! Sampling values of requests that do not set them: the model's `generation_config.json` and the user's overrides.

use serde_json::{Map, Value};

/// Defaults that a model or the user gives; absent ones are vLLM's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Absent: 1.
    pub temperature: Option<f64>,
    /// Absent: 1.
    pub top_p: Option<f64>,
    /// Absent: 0, off.
    pub top_k: Option<i64>,
    /// Absent: 0.
    pub min_p: Option<f64>,
    /// Absent: 1.
    pub repetition_penalty: Option<f64>,
    /// `max_new_tokens`: a cap on every request's `max_tokens`.
    pub max_tokens: Option<u32>,
}

impl Defaults {
    /// Reads the keys that count, as vLLM does; others are left alone.
    pub fn from_json(object: &Map<String, Value>) -> Result<Self, String> {
        Ok(Self {
            temperature: number(object, "temperature")?,
            top_p: number(object, "top_p")?,
            top_k: whole(object, "top_k")?,
            min_p: number(object, "min_p")?,
            repetition_penalty: number(object, "repetition_penalty")?,
            max_tokens: match whole(object, "max_new_tokens")? {
                None => None,
                Some(tokens) => Some(u32::try_from(tokens).map_err(|_| format!("`max_new_tokens` is {tokens}"))?),
            },
        })
    }

    /// Reads a whole `generation_config.json`; what is malformed there is the model's fault and counts as absent.
    pub fn of_model(json: &str) -> Self {
        let object: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
        Self::from_json(&object).unwrap_or_default()
    }

    /// These defaults where set, else `other`'s.
    pub fn or(self, other: Self) -> Self {
        Self {
            temperature: self.temperature.or(other.temperature),
            top_p: self.top_p.or(other.top_p),
            top_k: self.top_k.or(other.top_k),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            max_tokens: self.max_tokens.or(other.max_tokens),
        }
    }
}

fn number(object: &Map<String, Value>, key: &str) -> Result<Option<f64>, String> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_f64().map(Some).ok_or_else(|| format!("`{key}` is {value}, not a number")),
    }
}

fn whole(object: &Map<String, Value>, key: &str) -> Result<Option<i64>, String> {
    match number(object, key)? {
        None => Ok(None),
        Some(number) if number.fract() == 0.0 && number.abs() < 1e15 => Ok(Some(number as i64)),
        Some(number) => Err(format!("`{key}` is {number}, not a whole number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_win() {
        let model = Defaults::of_model(r#"{"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]}"#);
        let user = Defaults { temperature: Some(0.0), ..Defaults::default() };
        let both = user.or(model);
        assert_eq!((both.temperature, both.top_k, both.top_p), (Some(0.0), Some(20), None));
    }

    #[test]
    fn a_broken_file_counts_as_none() {
        for text in ["", "[]", "{", r#"{"temperature": "hot"}"#] {
            assert_eq!(Defaults::of_model(text), Defaults::default(), "{text}");
        }
    }
}
