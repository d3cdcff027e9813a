//! `/v1/responses` and what is below it, OpenAI's Responses API.

use std::sync::Arc;

use axum::{
    extract::{Path, RawQuery, Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use http::StatusCode;
use serde_json::json;

use crate::{
    api::{
        operation::{Answer, Body, Errors, Method, Operation, Route, When},
        shape::{Shape, may},
    },
    error::{ApiError, Fault, json_response},
    gateway::Gateway,
    generate,
    responses::{background::follow, list::Page, request, store::Record},
};

/// Why a response that is named may not be had.
const KEPT: Errors = Errors::of(&[Fault::BadRequest, Fault::NotFound]);

/// The answer.
pub const ROUTE: Route = Route {
    path: "/v1/responses",
    handlers: || post(create),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Answers items with items; fields of chats are taken too",
        answer: Answer::Streamable(&["Response"], &["event of OpenAI's Responses API"]),
        errors: Errors::GENERATING,
        ..Operation::post("create_response", &[Body::Responses])
    }],
};

/// One that is kept.
pub const ONE: Route = Route {
    path: "/v1/responses/{id}",
    handlers: || get(retrieve).delete(delete),
    when: When::ALWAYS,
    operations: &[
        Operation {
            summary: "A response that is kept; with `?stream=true&starting_after=N` the events of one that was made in \
                      the background",
            query: &[
                may("stream", Shape::Bool, "Send its events"),
                may("starting_after", Shape::Whole(0, i64::MAX), "With stream: only events behind this number"),
                may("include_obfuscation", Shape::Flag(false), "Events are not padded"),
            ],
            answer: Answer::Streamable(&["Response"], &["event of OpenAI's Responses API"]),
            errors: KEPT,
            ..Operation::get("retrieve_response")
        },
        Operation {
            method: Method::Delete,
            summary: "Forgets a response, and ends it if it runs",
            answer: Answer::Json("ResponseDeleted"),
            errors: KEPT,
            ..Operation::get("delete_response")
        },
    ],
};

/// Ends one that runs in the background.
pub const CANCEL: Route = Route {
    path: "/v1/responses/{id}/cancel",
    handlers: || post(cancel_one),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Ends a response that runs in the background",
        answer: Answer::Json("Response"),
        errors: KEPT,
        ..Operation::post("cancel_response", &[])
    }],
};

/// What one was made from.
pub const INPUT_ITEMS: Route = Route {
    path: "/v1/responses/{id}/input_items",
    handlers: || get(list),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "The items that a response was made from, by `?after=`, `limit=` and `order=`",
        answer: Answer::Json("ResponseItems"),
        query: &[
            may("after", Shape::Text, "Only items behind the one of this id"),
            may("limit", Shape::Whole(1, 100), "Items of a page [default: 20]"),
            may("order", Shape::Word(&["asc", "desc"]), "Oldest or latest first [default: desc]"),
        ],
        errors: KEPT,
        ..Operation::get("list_input_items")
    }],
};

async fn create(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let store = gateway.responses.clone();
    generate::answer(gateway, request, move |body, limits, envelope| request::read(body, limits, envelope, &store))
        .await
}

async fn retrieve(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let record = gateway.responses.get(&id)?;
    let query = Query::read(query.as_deref().unwrap_or_default())?;
    match query.stream {
        true => follow(record, query.starting_after, gateway.config.keep_alive()),
        false => Ok(shown(&record)),
    }
}

async fn delete(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    gateway.responses.delete(&id)?;
    Ok(json_response(StatusCode::OK, json!({"id": id, "object": "response", "deleted": true}).to_string()))
}

async fn cancel_one(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let record = gateway.responses.get(&id)?;
    if record.position(None).is_none() {
        return Err(ApiError::body("Only a response that was created with `background` can be cancelled."));
    }
    record.cancel.cancel();
    record.ended_at_last().await;
    Ok(shown(&record))
}

async fn list(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let record = gateway.responses.get(&id)?;
    let query = query.unwrap_or_default();
    if let Some((name, _)) = pairs(&query).find(|(name, _)| matches!(*name, "include" | "include[]")) {
        return Err(said_before(name));
    }
    let page = Page::read(pairs(&query))?.of(record.context())?;
    Ok(json_response(StatusCode::OK, page.to_string()))
}

fn shown(record: &Record) -> Response {
    json_response(StatusCode::OK, record.response()).into_response()
}

/// Names and values of a query. None of the values that count here needs an escape.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query.split('&').filter_map(|pair| pair.split_once('='))
}

/// What a retrieval may say.
#[derive(Default)]
struct Query {
    stream: bool,
    starting_after: Option<u64>,
}

impl Query {
    fn read(text: &str) -> Result<Self, ApiError> {
        let mut query = Self::default();
        for (name, value) in pairs(text) {
            let wrong = |expected: &str| ApiError::field(name, format!("`{name}` must be {expected}, got {value}."));
            match name {
                "stream" => query.stream = flag(value).ok_or_else(|| wrong("true or false"))?,
                "starting_after" => {
                    query.starting_after = Some(value.parse().map_err(|_| wrong("the number of an event"))?);
                }
                "include_obfuscation" if flag(value) != Some(false) => return Err(wrong("false")),
                "include" | "include[]" => return Err(said_before(name)),
                _ => {}
            }
        }
        Ok(query)
    }
}

/// What is shown of a response is said when it is made.
fn said_before(name: &str) -> ApiError {
    let message = format!("`{name}` is not supported here: say it when the response is created.");
    ApiError::field(name, message)
}

fn flag(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" => Some(true),
        "false" | "0" => Some(false),
        _ => None,
    }
}
