//! The flags that were given.

use std::collections::BTreeMap;

use super::value::Value;

/// The flags that were given, checked, by long name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) values: BTreeMap<&'static str, Value>,
    /// Flags of vLLM that make no difference here, each with the reason.
    pub(super) without_effect: Vec<String>,
}

impl Settings {
    /// Flags of vLLM that were given and make no difference here, each with the reason.
    pub fn without_effect(&self) -> &[String] {
        &self.without_effect
    }

    /// What was given for a flag.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// What was given for a flag that takes one text.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// What was given for a flag that takes several texts.
    pub fn list(&self, name: &str) -> &[String] {
        match self.get(name) {
            Some(Value::Many(texts)) => texts,
            _ => &[],
        }
    }

    /// What was given for a flag that takes a number; it was checked when it was parsed.
    pub fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.text(name)?.parse().ok()
    }
}
