//! Sampling values of requests that do not set them: the model's `generation_config.json` and the user's overrides.

use serde_json::{Map, Value};

use crate::openai::sampling::{COUNT, PARAMETERS};

/// The cap on every request's `max_tokens`, in `generation_config.json`.
const MAX_TOKENS: &str = "max_new_tokens";

/// Defaults that a model or the user gives; absent ones are vLLM's own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Defaults {
    /// Of each of [`PARAMETERS`].
    numbers: [Option<f64>; COUNT],
    /// `max_new_tokens`: a cap on every request's `max_tokens`.
    pub max_tokens: Option<u32>,
}

impl Defaults {
    /// Reads the keys that count, as vLLM does; others are left alone.
    fn from_json(object: &Map<String, Value>) -> Result<Self, String> {
        let mut numbers = [None; COUNT];
        for (number, parameter) in numbers.iter_mut().zip(&PARAMETERS).filter(|(_, parameter)| parameter.is_of_model())
        {
            *number = match parameter.is_whole() {
                true => whole(object, parameter.name)?.map(|value| value as f64),
                false => self::number(object, parameter.name)?,
            };
        }
        let max_tokens = match whole(object, MAX_TOKENS)? {
            None => None,
            Some(tokens) => Some(u32::try_from(tokens).map_err(|_| format!("`{MAX_TOKENS}` is {tokens}"))?),
        };
        Ok(Self { numbers, max_tokens })
    }

    /// Reads `--override-generation-config`, of which nothing is left alone.
    pub fn of_flag(object: &Map<String, Value>) -> Result<Self, String> {
        let defaults = Self::from_json(object)?;
        let of_model = || PARAMETERS.iter().filter(|parameter| parameter.is_of_model());
        let is_known = |key: &str| key == MAX_TOKENS || of_model().any(|parameter| parameter.name == key);
        if let Some(key) = object.keys().find(|key| !is_known(key)) {
            let names: Vec<_> = of_model().map(|parameter| parameter.name).collect();
            return Err(format!("`{key}` is none of {}, {MAX_TOKENS}", names.join(", ")));
        }
        for (parameter, value) in PARAMETERS.iter().zip(defaults.numbers) {
            value.map_or(Ok(()), |value| parameter.check(value))?;
        }
        Ok(defaults)
    }

    /// Reads a whole `generation_config.json`; what is malformed there is the model's fault and counts as absent.
    pub fn of_model(json: &str) -> Self {
        let object: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
        Self::from_json(&object).unwrap_or_default()
    }

    /// The default of each of [`PARAMETERS`], in their order.
    pub fn numbers(&self) -> &[Option<f64>; COUNT] {
        &self.numbers
    }

    /// These defaults where set, else `other`'s.
    pub fn or(self, other: Self) -> Self {
        let mut numbers = self.numbers;
        for (number, other) in numbers.iter_mut().zip(other.numbers) {
            *number = number.or(other);
        }
        Self { numbers, max_tokens: self.max_tokens.or(other.max_tokens) }
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
        let read = |json: &str| Defaults::of_model(json);
        let model = read(r#"{"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2], "max_new_tokens": 7}"#);
        let both = read(r#"{"temperature": 0.0}"#).or(model);
        assert_eq!(both, read(r#"{"temperature": 0.0, "top_k": 20, "max_new_tokens": 7}"#));
    }

    #[test]
    fn a_flag_is_honoured_or_refused() {
        let read = |json: &str| Defaults::of_flag(&serde_json::from_str(json).unwrap());
        let given = r#"{"temperature": 0.0, "top_k": -1, "max_new_tokens": 7, "top_p": null}"#;
        assert_eq!(read(given), Ok(Defaults::of_model(given)));
        for (json, part) in [
            (r#"{"temprature": 1}"#, "`temprature` is none of min_p, "),
            (r#"{"do_sample": false}"#, "do_sample"),
            (r#"{"presence_penalty": 1}"#, "presence_penalty"),
            (r#"{"temperature": -5}"#, "`temperature` must be in [0, 2]"),
            (r#"{"top_k": -2}"#, "`top_k` must be between -1"),
            (r#"{"top_p": "x"}"#, "not a number"),
        ] {
            let refusal = read(json).unwrap_err();
            assert!(refusal.contains(part), "{json}: {refusal}");
        }
    }

    #[test]
    fn a_broken_file_counts_as_none() {
        for text in ["", "[]", "{", r#"{"temperature": "hot"}"#, r#"{"top_k": 1.5}"#] {
            assert_eq!(Defaults::of_model(text), Defaults::default(), "{text}");
        }
    }
}
