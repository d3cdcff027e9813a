//! The flags that were given.

use std::collections::BTreeMap;

use super::{error::Source, value::Value};

/// The flags that were given, checked, by long name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub(super) values: BTreeMap<&'static str, Value>,
    /// Where each was given; of a variable, with its name.
    pub(super) sources: BTreeMap<&'static str, String>,
    /// Flags and variables of vLLM that make no difference here, each with the reason.
    pub(in crate::serve) without_effect: Vec<String>,
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

    /// Where a flag was given.
    pub fn source(&self, name: &str) -> Option<&str> {
        self.sources.get(name).map(String::as_str)
    }

    /// Sets a flag.
    pub(super) fn set(&mut self, name: &'static str, value: Value, at: &Source) {
        self.values.insert(name, value);
        self.sources.insert(name, at.to_string());
    }

    /// Takes over what `other` says and this does not.
    pub(super) fn add(&mut self, other: Self) {
        self.without_effect.extend(other.without_effect);
        for (name, value) in other.values {
            if let Some(source) = other.sources.get(name).filter(|_| !self.values.contains_key(name)) {
                self.sources.insert(name, source.clone());
            }
            self.values.entry(name).or_insert(value);
        }
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
