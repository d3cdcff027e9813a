//! What a request says that its response repeats or is written by.

use serde_json::{Map, Value, json};

/// What a request says that its response repeats or is written by.
#[derive(Clone, Debug)]
pub struct Turn {
    /// The members of the response that the request decides, in the order in which they are shown.
    pub said: Map<String, Value>,
    /// The items that it was made from, those of previous responses first.
    pub context: Vec<Value>,
    /// Whether it is kept once it has ended.
    pub store: bool,
    /// Whether it runs on its own.
    pub background: bool,
    /// Whether its client reads events.
    pub stream: bool,
    /// Whether log-probabilities are shown.
    pub logprobs: bool,
    /// How reasoning is shown.
    pub reasoning: ShownReasoning,
}

/// How reasoning is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShownReasoning {
    /// As what, in its item.
    pub place: Place,
    /// Whether its item also carries it as one opaque text.
    pub opaque: bool,
}

/// As what reasoning is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Content of its item.
    #[default]
    Content,
    /// The summary of its item: the whole of it, because it is never shortened here.
    Summary,
}

/// What a response is at some time.
pub struct Outcome<'a> {
    /// `queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`.
    pub status: &'static str,
    /// Items so far.
    pub output: &'a [Value],
    /// Why it failed.
    pub error: Value,
    /// What was used; null before the end.
    pub usage: Value,
}

impl Turn {
    /// The response as it is at some time.
    pub fn response(&self, id: &str, outcome: Outcome<'_>) -> Value {
        let Outcome { status, output, error, usage } = outcome;
        let incomplete = if status == "incomplete" { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        let mut response = Map::new();
        response.insert("id".into(), id.into());
        response.insert("object".into(), "response".into());
        response.insert("status".into(), status.into());
        response.insert("error".into(), error);
        response.insert("incomplete_details".into(), incomplete);
        response.insert("output".into(), output.into());
        response.insert("usage".into(), usage);
        response.extend(self.said.clone());
        Value::Object(response)
    }
}
