//! The special tokens that `tokenizer_config.json` and `special_tokens_map.json` name.

use serde_json::{Map, Value};

/// Names of the special tokens, in the order in which they are looked for.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The special tokens of a model, by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    roles: Vec<(String, String)>,
    additional: Vec<String>,
}

impl SpecialTokens {
    /// Reads both files; what `config` says wins over `map`. A token is a string or an object with `content`.
    pub fn from_json(config: &Map<String, Value>, map: &Map<String, Value>) -> Self {
        let mut found = Self::default();
        for role in ROLES {
            if let Some(text) = content(config.get(role)).or_else(|| content(map.get(role))) {
                found.roles.push((role.to_owned(), text));
            }
        }
        for source in [config, map] {
            let Some(Value::Array(list)) = source.get("additional_special_tokens") else { continue };
            for text in list.iter().filter_map(|token| content(Some(token))) {
                if !found.additional.contains(&text) {
                    found.additional.push(text);
                }
            }
        }
        found
    }

    /// Adds roles that are not taken yet.
    pub(crate) fn complete(&mut self, roles: Vec<(String, String)>) {
        for (role, text) in roles {
            if self.get(&role).is_none() {
                self.roles.push((role, text));
            }
        }
    }

    /// The text of the token with this role, such as `bos_token`.
    pub fn get(&self, role: &str) -> Option<&str> {
        self.roles.iter().find(|(name, _)| name == role).map(|(_, text)| text.as_str())
    }

    /// Role and text of each token that has a role.
    pub fn roles(&self) -> impl Iterator<Item = (&str, &str)> {
        self.roles.iter().map(|(role, text)| (role.as_str(), text.as_str()))
    }

    /// Texts of all special tokens, each once.
    pub fn texts(&self) -> Vec<&str> {
        let mut texts: Vec<&str> = Vec::new();
        for text in self.roles.iter().map(|(_, text)| text).chain(&self.additional) {
            if !texts.contains(&text.as_str()) {
                texts.push(text);
            }
        }
        texts
    }
}

/// The text of a token that is written as a string or as an object.
fn content(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => fields.get("content")?.as_str().map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).expect("test JSON")
    }

    #[test]
    fn config_wins_and_objects_count() {
        let config = object(
            r#"{"bos_token":{"content":"<s>","lstrip":false},"pad_token":null,
                "additional_special_tokens":["<x>",{"content":"<y>"}]}"#,
        );
        let map = object(r#"{"bos_token":"other","eos_token":"</s>","additional_special_tokens":["<y>","<z>"]}"#);
        let tokens = SpecialTokens::from_json(&config, &map);
        assert_eq!(tokens.get("bos_token"), Some("<s>"));
        assert_eq!(tokens.get("eos_token"), Some("</s>"));
        assert_eq!(tokens.get("pad_token"), None);
        assert_eq!(tokens.texts(), ["<s>", "</s>", "<x>", "<y>", "<z>"]);
    }
}
