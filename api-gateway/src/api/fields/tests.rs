//! The table is what the parser does: no field is missing, each honoured one acts, and each named test exists.

mod schemas;

use std::{collections::BTreeSet, path::Path, sync::Arc};

use proto::{PoolingInfo, Request, pooling_info::Task};
use serde_json::{Map, Value, json};

use super::*;
use crate::{
    anthropic,
    api::shape::Served,
    engine::pipeline::Arrival,
    error::ApiError,
    openai::{
        chat,
        completion::{self, Envelope},
        fields::{Fields, asked},
        formats::Formats,
        params::Limits,
    },
    pooling::{self, Reading, classify, cohere, embeddings, pooled, rerank, score},
    responses::store::{Bounds, Store},
    routes::{detokenize, development, lora_adapters, tokenize},
};

pub(crate) fn limits() -> Limits {
    Limits {
        defaults: Default::default(),
        vocab_size: 100,
        max_logprobs: 20,
        max_prompts: 10,
        served_names: vec!["wren".into()],
        adapters: Arc::default(),
        own_tokenizer: None,
        trust_chat_template: true,
        formats: Formats::named("hermes", "").expect("a format"),
        exclude_unused_tools: false,
        template_kwargs: Map::new(),
        response_role: "assistant".into(),
        stream_interval: 1,
        force_usage: false,
        tokens_as_ids: false,
    }
}

fn envelope(arrival: Arrival) -> Envelope {
    let fresh_id = "fresh".to_owned();
    Envelope {
        arrival,
        request_id: None,
        fresh_id,
        traceparent: String::new(),
        prompt_tokens_details: false,
        request_metrics: false,
        routing: Default::default(),
    }
}

/// The least that a body must say.
fn least(body: Body) -> Value {
    let messages = json!([{"role": "user", "content": "x"}]);
    match body {
        Body::Chat | Body::CountTokens => json!({"messages": messages}),
        Body::Responses => json!({"input": "x"}),
        Body::Messages => json!({"messages": messages, "max_tokens": 9}),
        Body::Completion | Body::Tokenize => json!({"prompt": "x"}),
        Body::Detokenize => json!({"tokens": [1]}),
        Body::AbortRequests => json!({"request_ids": ["x"]}),
        Body::Embeddings | Body::Classify | Body::Pooling => json!({"input": "x"}),
        Body::Score => json!({"text_1": "x", "text_2": "y"}),
        Body::Rerank => json!({"query": "x", "documents": ["y"]}),
        Body::CohereEmbed => json!({"texts": ["x"]}),
        Body::StartProfile => json!({}),
        Body::LoadLoraAdapter => json!({"lora_name": "x", "lora_path": "y"}),
        Body::UnloadLoraAdapter => json!({"lora_name": "x"}),
    }
}

/// Reads a body of a route that pools.
fn pool(bytes: &[u8], task: Task, read: pooling::Read) -> Result<(), ApiError> {
    let (limits, envelope) = (limits(), envelope(Arrival::now()));
    let info = Arc::new(PoolingInfo { task: task.into(), score_class: Some(0), ..PoolingInfo::default() });
    read(bytes, &Reading { limits: &limits, envelope: &envelope, info: &info, max_len: None }).map(drop)
}

/// Reads a body as its route does, as far as its own fields go.
fn read(body: Body, json: &Value) {
    try_read(body, json).expect("the body is fine");
}

fn try_read(body: Body, json: &Value) -> Result<(), ApiError> {
    let (text, limits) = (json.to_string(), limits());
    let (bytes, envelope) = (text.as_bytes(), envelope(Arrival::now()));
    match body {
        Body::Chat => chat::read(bytes, &limits, &envelope).map(drop),
        Body::Completion => completion::read(bytes, &limits, &envelope).map(drop),
        Body::Responses => {
            let store = Store::new(Bounds { count: 1, bytes: 1 });
            Fields::parse(bytes).and_then(|mut fields| response::Asked::read(&mut fields, &store, "resp_1")).map(drop)
        }
        Body::Tokenize => tokenize::question(bytes, &limits).map(drop),
        Body::Detokenize => detokenize::question(bytes, &limits).map(drop),
        Body::AbortRequests => development::request_ids(bytes).map(drop),
        Body::Embeddings => pool(bytes, Task::Embed, embeddings::read),
        Body::Classify => pool(bytes, Task::Classify, classify::read),
        Body::Score => pool(bytes, Task::Classify, score::read),
        Body::Rerank => pool(bytes, Task::Classify, rerank::read),
        Body::Pooling => pool(bytes, Task::Embed, pooled::read),
        Body::CohereEmbed => pool(bytes, Task::Embed, cohere::read),
        Body::LoadLoraAdapter => lora_adapters::to_load(bytes).map(drop),
        Body::UnloadLoraAdapter => lora_adapters::to_unload(bytes).map(drop),
        Body::StartProfile => crate::profile::settings::overrides(bytes).map(drop),
        Body::Messages | Body::CountTokens => Fields::parse(bytes).and_then(|mut fields| {
            anthropic::request::chat_body(&mut fields)?;
            anthropic::strict::refuse_unread(&mut fields)
        }),
    }
}

#[test]
fn every_field_that_is_read_is_listed_and_the_other_way_round() {
    for body in Body::ALL {
        let mut read_of_it = asked::during(|| read(body, &least(body)));
        if body == Body::Tokenize {
            read_of_it.extend(asked::during(|| read(body, &least(Body::Chat))));
        }
        let listed: BTreeSet<String> = of(body).iter().map(|field| field.name.to_owned()).collect();
        let unread: Vec<_> = listed.difference(&read_of_it).collect();
        assert!(unread.is_empty(), "{body:?} lists what is never read: {unread:?}");
        // A conversation's length is counted from a whole body, of which most does not matter.
        let unlisted: Vec<_> = read_of_it.difference(&listed).collect();
        assert!(body == Body::CountTokens || unlisted.is_empty(), "{body:?} does not list {unlisted:?}");
    }
}

#[test]
fn a_body_lists_a_field_once() {
    for body in Body::ALL {
        let fields = of(body);
        assert!(fields.is_sorted_by(|a, b| a.name < b.name), "{body:?}: {fields:?}");
    }
}

/// What a body makes of the request, with these fields besides the least.
fn meaning(body: Body, extra: &Value, arrival: Arrival) -> String {
    let mut json = least(body);
    json.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    let (text, limits, envelope) = (json.to_string(), limits(), envelope(arrival));
    let ready = match body {
        Body::Chat => chat::read(text.as_bytes(), &limits, &envelope),
        _ => completion::read(text.as_bytes(), &limits, &envelope),
    };
    let ready = ready.unwrap_or_else(|error| panic!("{json}: {error}"));
    let requests: &[Request] = &ready.requests;
    format!("{requests:?} {:?}", ready.plan)
}

/// A value that is not the default.
fn other_value(field: &Field, body: Body) -> Value {
    match field.name {
        "allowed_token_ids" | "logprob_token_ids" | "stop_token_ids" => json!([7]),
        "add_special_tokens" => (body == Body::Chat).into(),
        "bad_words" => json!(["x"]),
        "chat_template_kwargs" => json!({"a": 1}),
        "documents" => json!([{"text": "a"}]),
        "logit_bias" => json!({"7": 1.0}),
        "truncation_side" => "right".into(),
        name => match field.shape {
            Shape::Bool => (field.default != "true").into(),
            Shape::Text | Shape::Letters(..) | Shape::Served(Served::Template) => "x".into(),
            Shape::Whole(..) | Shape::Either([Shape::Whole(..), ..]) | Shape::Served(Served::Logprobs) => 3.into(),
            other => panic!("give `{name}` ({other}) a value here"),
        },
    }
}

#[test]
fn each_field_alone_changes_what_is_asked_for() {
    let arrival = Arrival::now();
    for body in [Body::Chat, Body::Completion] {
        let plain = meaning(body, &json!({}), arrival);
        for field in of(body).iter().filter(|field| field.test == EACH_ALONE) {
            let extra = json!({field.name: other_value(field, body)});
            // Reading tokens from the end of the prompt needs to know how many.
            let base = match field.name {
                "truncation_side" => json!({"truncate_prompt_tokens": 3}),
                _ => json!({}),
            };
            let mut both = base.clone();
            both.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
            let before = if base == json!({}) { plain.clone() } else { meaning(body, &base, arrival) };
            assert_ne!(meaning(body, &both, arrival), before, "{body:?}: {extra} changes nothing");
        }
    }
}

#[test]
fn fields_without_effect_have_none() {
    let arrival = Arrival::now();
    for body in [Body::Chat, Body::Completion] {
        for field in of(body).iter().filter(|field| matches!(field.fate, Fate::WithoutEffect(_))) {
            let extra = json!({field.name: "x"});
            assert_eq!(meaning(body, &extra, arrival), meaning(body, &json!({}), arrival), "{}", field.name);
        }
    }
}

#[test]
fn every_test_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let named: BTreeSet<&str> = all().map(|field| field.test).collect();
    for test in named {
        let (file, name) = test.split_once(": ").expect("file and name");
        let source = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {name}(")), "{file} has no {name}");
    }
}
