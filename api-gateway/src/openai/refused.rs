//! Fields that would constrain or change the output and that this server cannot honour yet. They are refused, never
//! ignored.

use serde_json::{Value, json};

use super::fields::Fields;
use crate::{api::operation::Body, error::ApiError};

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

/// A field that is refused.
struct Refusal {
    name: &'static str,
    /// The bodies that have no such field.
    of: &'static [Body],
    harmless: Harmless,
    /// What to do instead.
    instead: &'static str,
}

const BOTH: &[Body] = &[Body::Chat, Body::Completion];

const fn both(name: &'static str, harmless: Harmless, instead: &'static str) -> Refusal {
    Refusal { name, of: BOTH, harmless, instead }
}

/// Sorted by name. SGLang's and llama.cpp's names are among them: what they ask for would be missed all the same.
const REFUSED: &[Refusal] = &[
    both("audio", Harmless::Nothing, "answers are text"),
    both("custom_logit_processor", Harmless::Empty, "use `logit_bias`, `bad_words` or `allowed_token_ids`"),
    both("dry_multiplier", Harmless::Empty, "use `repetition_penalty`, `presence_penalty` or `frequency_penalty`"),
    both("dynatemp_range", Harmless::Empty, "use `temperature`"),
    both("function_call", Harmless::None, "use `tool_choice`"),
    both("functions", Harmless::Empty, "use `tools`"),
    both("kv_transfer_params", Harmless::Nothing, "prefill and decode run in one engine"),
    both("logits_processors", Harmless::Empty, "use `logit_bias`, `bad_words` or `allowed_token_ids`"),
    both("lora_path", Harmless::Empty, "name the adapter as `model`"),
    both("media_io_kwargs", Harmless::Empty, "messages are text"),
    both("mirostat", Harmless::Empty, "use `temperature`, `top_p` or `typical_p`"),
    both("mm_processor_kwargs", Harmless::Empty, "messages are text"),
    both("modalities", Harmless::TextOnly, "answers are text"),
    both("n_predict", Harmless::Nothing, "use `max_tokens`"),
    both("no_stop_trim", Harmless::Empty, "use `include_stop_str_in_output`"),
    both("prompt_embeds", Harmless::Empty, "send the prompt as text or token ids"),
    both("return_hidden_states", Harmless::Empty, "start the server with --runner pooling, and use /pooling"),
    both("smoothing_factor", Harmless::Empty, "use `temperature`"),
    both("stop_regex", Harmless::Empty, "use `stop`, or `structured_outputs`"),
    Refusal {
        of: &[Body::Completion],
        ..both("thinking_token_budget", Harmless::Nothing, "use /v1/chat/completions, which tells reasoning from text")
    },
    both("web_search_options", Harmless::Nothing, "search in a tool of your own"),
    both("xtc_probability", Harmless::Empty, "use `temperature`, `top_p` or `min_p`"),
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

/// The names of the refused fields, each with the bodies that lack it and with what to do instead.
pub fn names() -> impl Iterator<Item = (&'static str, &'static [Body], &'static str)> {
    REFUSED.iter().map(|refusal| (refusal.name, refusal.of, refusal.instead))
}

/// The values of a refused field that ask for nothing, beside null.
pub fn harmless(name: &str) -> Vec<Value> {
    let candidates = [json!(false), json!([]), json!({}), json!(""), json!(0), json!("none"), json!(["text"])];
    let found = REFUSED.iter().find(|refusal| refusal.name == name);
    found
        .map_or_else(Vec::new, |refusal| candidates.into_iter().filter(|value| refusal.harmless.holds(value)).collect())
}

/// Refuses what cannot be honoured in that body; reads what has no effect.
pub fn check(fields: &mut Fields<'_>, body: Body) -> Result<(), ApiError> {
    for Refusal { name, harmless, instead, .. } in REFUSED.iter().filter(|refusal| refusal.of.contains(&body)) {
        let Some(text) = fields.raw(name) else { continue };
        // What is too deep or malformed to look at is certainly not harmless.
        let value = serde_json::from_str(text).unwrap_or(Value::Bool(true));
        if !harmless.holds(&value) {
            return Err(ApiError::field(name, format!("`{name}` is not supported by this server: {instead}.")));
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

    fn verdict(of: Body, body: &str) -> Option<String> {
        let mut fields = Fields::parse(body.as_bytes()).expect("an object");
        check(&mut fields, of).err().and_then(|error| error.param)
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(REFUSED.is_sorted_by_key(|refusal| refusal.name));
    }

    #[test]
    fn constraints_are_never_ignored() {
        let rows = [
            (r#"{"kv_transfer_params":{}}"#, Some("kv_transfer_params")),
            (r#"{"modalities":["text"],"functions":[],"function_call":"none"}"#, None),
            (r#"{"modalities":["text","audio"]}"#, Some("modalities")),
            (r#"{"logits_processors":["x"]}"#, Some("logits_processors")),
            (r#"{"prompt_embeds":"gAJjdG9yY2g="}"#, Some("prompt_embeds")),
            (r#"{"stop_regex":"[0-9]+"}"#, Some("stop_regex")),
            (r#"{"n_predict":5}"#, Some("n_predict")),
        ];
        for (body, expected) in rows {
            assert_eq!(verdict(Body::Chat, body).as_deref(), expected, "{body}");
            assert_eq!(verdict(Body::Completion, body).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn completions_have_no_reasoning_to_end() {
        let budget = r#"{"thinking_token_budget":8}"#;
        assert_eq!(verdict(Body::Completion, budget).as_deref(), Some("thinking_token_budget"));
        assert_eq!(verdict(Body::Chat, budget), None);
    }
}
