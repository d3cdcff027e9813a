//! What can go wrong, whose fault it is, and what the client reads of it.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use proto::failure::Kind;

/// Why the gateway cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A flag's value is impossible.
    #[error("{name}: {problem}")]
    Flag {
        /// The flag.
        name: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the TLS flags cannot be used.
    #[error("{flag} {path}: {problem}")]
    Tls {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The address is taken or not ours.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Host and port, or path.
        address: String,
        /// The system's words.
        source: std::io::Error,
    },
}

/// Whose fault a refused request is; decides the status code and vLLM's error type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The client sent something that cannot be served: 400.
    BadRequest,
    /// The same of what it asks of the server, where vLLM calls it so: 400.
    UserInput,
    /// The client named something that does not exist: 404.
    NotFound,
    /// The body did not arrive in time: 408.
    Timeout,
    /// The body is too large: 413.
    TooLarge,
    /// Known, but not implemented: 501.
    NotImplemented,
    /// Busy, or a process of the pipeline is away; trying again helps: 503.
    Unavailable,
    /// A bug: 500.
    Internal,
}

impl Fault {
    /// All of them, by status.
    pub const ALL: [Self; 8] = [
        Self::BadRequest,
        Self::UserInput,
        Self::NotFound,
        Self::Timeout,
        Self::TooLarge,
        Self::Internal,
        Self::NotImplemented,
        Self::Unavailable,
    ];

    /// The HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Self::BadRequest | Self::UserInput => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// When it occurs, for documentation.
    pub fn help(self) -> &'static str {
        match self {
            Self::BadRequest => "a field is wrong or cannot be honoured, or the body is no JSON object",
            Self::UserInput => "an adapter is to be loaded or unloaded without its name or path, or is loaded already",
            Self::NotFound => "the model, or another thing that the request names, does not exist",
            Self::Timeout => "the body did not arrive in time; the connection is closed",
            Self::TooLarge => "the body is larger than `--max-body-bytes`; the connection is closed",
            Self::Internal => "a bug",
            Self::NotImplemented => "the model cannot do what is asked for",
            Self::Unavailable => {
                "the server is full, starting or draining, or a process was lost; try again after `Retry-After`"
            }
        }
    }

    /// The `type` of the error body.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadRequest | Self::Timeout | Self::TooLarge => "BadRequestError",
            Self::UserInput => "InvalidUserInput",
            Self::NotFound => "NotFoundError",
            Self::NotImplemented => "NotImplementedError",
            Self::Unavailable => "ServiceUnavailableError",
            Self::Internal => "InternalServerError",
        }
    }
}

/// A refused or failed request, as the client sees it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Whose fault it is.
    pub fault: Fault,
    /// Words for a person.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
}

impl ApiError {
    /// An error without a field.
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), param: None }
    }

    /// A field of the request is wrong.
    pub fn field(param: &str, message: impl Into<String>) -> Self {
        Self { fault: Fault::BadRequest, message: message.into(), param: Some(param.to_owned()) }
    }

    /// The body as a whole is wrong.
    pub fn body(message: impl Into<String>) -> Self {
        Self::new(Fault::BadRequest, message)
    }

    /// A process is away or the server is full; the client should try again.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Fault::Unavailable, message)
    }

    /// The JSON body: `{"error":{"message","type","param","code"}}`.
    pub fn to_json(&self) -> String {
        serde_json::json!({"error": {
            "message": self.message,
            "type": self.fault.name(),
            "param": self.param,
            "code": self.fault.status().as_u16(),
        }})
        .to_string()
    }
}

impl From<proto::Failure> for ApiError {
    fn from(failure: proto::Failure) -> Self {
        let fault = match failure.kind() {
            Kind::Invalid => Fault::BadRequest,
            Kind::InvalidUserInput => Fault::UserInput,
            Kind::NotFound => Fault::NotFound,
            Kind::Unimplemented => Fault::NotImplemented,
            Kind::Overloaded | Kind::Unavailable => Fault::Unavailable,
            Kind::Internal | Kind::Unspecified => Fault::Internal,
        };
        let param = (!failure.param.is_empty()).then_some(failure.param);
        Self { fault, message: failure.message, param }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.fault.status(), self.to_json());
        let headers = response.headers_mut();
        match self.fault {
            Fault::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // What is left of the body is not read.
            Fault::TooLarge | Fault::Timeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// A response with a JSON body.
pub fn json_response(status: StatusCode, body: impl Into<axum::body::Body>) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body.into()).into_response()
}

/// What vLLM answers for paths and methods that do not exist.
pub fn no_route(status: StatusCode) -> Response {
    let phrase = status.canonical_reason().unwrap_or("Error");
    let body = serde_json::json!({"error": {
        "message": phrase, "type": phrase, "param": null, "code": status.as_u16(),
    }});
    json_response(status, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_become_status_codes() {
        let rows = [
            (Kind::Invalid, 400),
            (Kind::InvalidUserInput, 400),
            (Kind::NotFound, 404),
            (Kind::Unimplemented, 501),
            (Kind::Overloaded, 503),
            (Kind::Unavailable, 503),
            (Kind::Internal, 500),
            (Kind::Unspecified, 500),
        ];
        for (kind, code) in rows {
            let failure = proto::Failure { kind: kind.into(), message: "m".into(), param: String::new() };
            let error = ApiError::from(failure);
            assert_eq!(error.fault.status().as_u16(), code, "{kind:?}");
            assert_eq!(error.param, None);
        }
    }

    #[test]
    fn bodies_are_vllms() {
        let body: serde_json::Value = serde_json::from_str(&ApiError::field("n", "no").to_json()).unwrap();
        assert_eq!(body, serde_json::json!({"error":{"message":"no","type":"BadRequestError","param":"n","code":400}}));
    }
}
