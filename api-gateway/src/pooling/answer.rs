//! What answers of all routes have alike: how they begin, and lists of numbers.

use axum::response::Response;
use http::StatusCode;
use serde_json::Value;

use super::{Reading, encoding::Encoding};
use crate::{error::json_response, json};

/// What an answer says beside its outputs.
#[derive(Clone, Debug)]
pub struct Head {
    /// Of the request.
    pub id: String,
    /// Unix time, seconds.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// Whether `usage` tells of cached prompt tokens.
    pub details: bool,
}

impl Head {
    /// Of a request of that id.
    pub fn new(id: &str, reading: &Reading<'_>) -> Self {
        Self {
            id: id.to_owned(),
            created: reading.envelope.arrival.unix_seconds(),
            model: reading.limits.served_names[0].clone(),
            details: reading.envelope.prompt_tokens_details,
        }
    }

    /// `{"id", "object": "list", "created", "model", "data", "usage"}`; `write` appends an entry of `data`.
    pub fn list<T>(&self, items: &[T], usage: &Value, write: impl Fn(&mut Vec<u8>, usize, &T)) -> Response {
        let mut out = Vec::with_capacity(256);
        json::raw(&mut out, "{\"id\":");
        json::string(&mut out, &self.id);
        json::raw(&mut out, ",\"object\":\"list\",\"created\":");
        json::number(&mut out, self.created);
        json::raw(&mut out, ",\"model\":");
        json::string(&mut out, &self.model);
        json::raw(&mut out, ",\"data\":[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                json::raw(&mut out, ",");
            }
            write(&mut out, index, item);
        }
        json::raw(&mut out, "],\"usage\":");
        json::raw(&mut out, &usage.to_string());
        json::raw(&mut out, "}");
        json_response(StatusCode::OK, out)
    }
}

/// `{"index":…,"object":"…"`, of an entry that goes on.
pub fn begin(out: &mut Vec<u8>, index: usize, object: &str) {
    json::raw(out, "{\"index\":");
    json::number(out, index as u64);
    json::raw(out, ",\"object\":\"");
    json::raw(out, object);
    json::raw(out, "\"");
}

/// Numbers as an encoding writes them, appended as JSON.
pub fn numbers(out: &mut Vec<u8>, values: &[f32], encoding: Encoding) {
    match encoding.json_text(values) {
        Some(text) => json::string(out, &text),
        None => list(out, values),
    }
}

/// A number, with as many digits as tell it apart; what is no number is null.
pub fn number(out: &mut Vec<u8>, value: f32) {
    // Writing to memory cannot fail, and numbers are always JSON.
    let _ = serde_json::to_writer(out, &value);
}

/// A list of numbers, each with as many digits as tell it apart; what is no number is null.
pub fn list(out: &mut Vec<u8>, values: &[f32]) {
    json::raw(out, "[");
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            json::raw(out, ",");
        }
        number(out, *value);
    }
    json::raw(out, "]");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_of_their_type() {
        let mut out = Vec::new();
        list(&mut out, &[0.1, -2.5, 1e-8, f32::NAN]);
        assert_eq!(String::from_utf8(out).expect("text"), "[0.1,-2.5,1e-8,null]");
    }
}
