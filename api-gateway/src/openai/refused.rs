//! Fields that would constrain or change the output and that this server cannot honour yet. They are refused, never
//! ignored.

use serde_json::{Value, json};

use super::fields::Fields;
use crate::error::ApiError;

/// Values of a refused field that ask for nothing.
#[derive(Clone, Copy)]
enum Harmless {
    /// Only null.
    Nothing,
    /// `false`, `[]`, `{}`, `""`, `0`.
    Empty,
    /// `"none"`, and what is empty.
    None,
    /// `["text"]`.
    TextOnly,
}

/// Each with what to do instead, where there is something. Sorted by name. SGLang's and llama.cpp's names are among
/// them: what they ask for would be missed all the same.
const REFUSED: [(&str, Harmless, &str); 13] = [
    ("audio", Harmless::Nothing, "answers are text"),
    ("dry_multiplier", Harmless::Empty, "use `repetition_penalty`, `presence_penalty` or `frequency_penalty`"),
    ("function_call", Harmless::None, "use `tool_choice`"),
    ("functions", Harmless::Empty, "use `tools`"),
    ("kv_transfer_params", Harmless::Nothing, "prefill and decode run in one engine"),
    ("logits_processors", Harmless::Empty, "use `logit_bias`, `bad_words` or `allowed_token_ids`"),
    ("media_io_kwargs", Harmless::Empty, "messages are text"),
    ("mirostat", Harmless::Empty, "use `temperature`, `top_p` or `typical_p`"),
    ("mm_processor_kwargs", Harmless::Empty, "messages are text"),
    ("modalities", Harmless::TextOnly, "answers are text"),
    ("prompt_embeds", Harmless::Empty, "send the prompt as text or token ids"),
    ("web_search_options", Harmless::Nothing, "search in a tool of your own"),
    ("xtc_probability", Harmless::Empty, "use `temperature`, `top_p` or `min_p`"),
];

/// Fields that steer nothing this server does, each with the reason. Known, so that they make no noise in the log.
pub const WITHOUT_EFFECT: [(&str, &str); 10] = [
    ("metadata", "requests are not stored"),
    ("prediction", "answers are the same with it: it is for servers that draft tokens from it"),
    ("prompt_cache_key", "the prefix cache finds equal prompts by itself"),
    ("prompt_cache_retention", "prefixes stay cached while there is memory"),
    ("safety_identifier", "users are not told apart"),
    ("service_tier", "there is one tier; see `priority`"),
    ("session_id", "there is one engine, so a session needs no route"),
    ("store", "answers are not stored"),
    ("user", "users are not told apart"),
    ("verbosity", "no model served here knows it"),
];

/// The names of the refused fields, each with what to do instead.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    REFUSED.iter().map(|(name, _, instead)| (*name, *instead))
}

/// The values of a refused field that ask for nothing, beside null.
pub fn harmless(name: &str) -> Vec<Value> {
    let candidates = [json!(false), json!([]), json!({}), json!(""), json!(0), json!("none"), json!(["text"])];
    let found = REFUSED.iter().find(|(refused, ..)| *refused == name);
    found.map_or_else(Vec::new, |(_, harmless, _)| {
        candidates.into_iter().filter(|value| harmless.holds(value)).collect()
    })
}

/// Refuses what cannot be honoured; reads what has no effect.
pub fn check(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for (name, harmless, instead) in REFUSED {
        let Some(text) = fields.raw(name) else { continue };
        // What is too deep or malformed to look at is certainly not harmless.
        let value = serde_json::from_str(text).unwrap_or(Value::Bool(true));
        if !harmless.holds(&value) {
            let instead = if instead.is_empty() { String::new() } else { format!(": {instead}") };
            return Err(ApiError::field(name, format!("`{name}` is not supported by this server{instead}.")));
        }
    }
    for (name, _) in WITHOUT_EFFECT {
        fields.raw(name);
    }
    Ok(())
}

impl Harmless {
    fn holds(self, value: &Value) -> bool {
        let empty = match value {
            Value::Null => true,
            Value::Bool(flag) => !flag,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(object) => object.is_empty(),
        };
        match self {
            Self::Nothing => value.is_null(),
            Self::Empty => empty,
            Self::None => empty || value == "none",
            Self::TextOnly => empty || value == &json!(["text"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(body: &str) -> Option<String> {
        let mut fields = Fields::parse(body.as_bytes()).expect("an object");
        check(&mut fields).err().and_then(|error| error.param)
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(REFUSED.is_sorted_by_key(|(name, ..)| *name));
    }

    #[test]
    fn constraints_are_never_ignored() {
        let rows = [
            (r#"{"kv_transfer_params":{}}"#, Some("kv_transfer_params")),
            (r#"{"modalities":["text"],"functions":[],"function_call":"none"}"#, None),
            (r#"{"modalities":["text","audio"]}"#, Some("modalities")),
            (r#"{"logits_processors":["x"]}"#, Some("logits_processors")),
            (r#"{"prompt_embeds":"gAJjdG9yY2g="}"#, Some("prompt_embeds")),
        ];
        for (body, expected) in rows {
            assert_eq!(verdict(body).as_deref(), expected, "{body}");
        }
    }
}
