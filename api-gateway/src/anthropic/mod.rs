//! Anthropic's shapes: a body of `/v1/messages` becomes a chat ([`request`]), and what comes of it is written as
//! blocks, whole ([`answer`]) or as events ([`stream`]).

pub mod answer;
pub mod request;
pub mod stream;
pub mod strict;

use axum::response::Response;
use http::StatusCode;
use proto::FinishReason;
use serde_json::{Value, json};

use crate::{
    engine::mailbox::ChoiceUpdate,
    error::{ApiError, Fault, json_response},
};

/// An error as Anthropic's clients read it.
pub fn refuse(error: &ApiError) -> Response {
    json_response(status(error.fault), error_body(error).to_string())
}

/// The status of a fault.
pub fn status(fault: Fault) -> StatusCode {
    match fault {
        // Their clients try again after this one.
        Fault::Unavailable => StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        fault => fault.status(),
    }
}

fn error_body(error: &ApiError) -> Value {
    let kind = match error.fault {
        Fault::BadRequest | Fault::UserInput | Fault::NotImplemented => "invalid_request_error",
        Fault::NotFound => "not_found_error",
        Fault::Timeout => "timeout_error",
        Fault::TooLarge => "request_too_large",
        Fault::Unavailable => "overloaded_error",
        Fault::Internal => "api_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}

/// Why an answer ended: the reason, and the stop sequence if it was one.
struct Stop {
    reason: &'static str,
    sequence: Option<String>,
}

impl Stop {
    fn of(growth: &ChoiceUpdate, finish: &str) -> Self {
        let sequence = growth.details().stop_text.clone().filter(|_| growth.finish == Some(FinishReason::Stop));
        let reason = match finish {
            "tool_calls" => "tool_use",
            "length" => "max_tokens",
            _ if sequence.is_some() => "stop_sequence",
            _ => "end_turn",
        };
        Self { reason, sequence }
    }
}
