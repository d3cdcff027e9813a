//! Who may call: paths of the API need one of the keys, when there are keys.

use axum::response::Response;
use http::{HeaderMap, Method, StatusCode, header};

use crate::error::json_response;

/// Prefixes of the paths that need a key.
const GUARDED: [&str; 9] =
    ["/classify", "/cohere", "/inference", "/invocations", "/pooling", "/rerank", "/score", "/v1", "/v2"];

/// The header in which Anthropic's clients present their key.
pub const ANTHROPIC_KEY: &str = "x-api-key";

/// The keys that clients may present.
pub struct Keys {
    keys: Vec<Vec<u8>>,
}

impl Keys {
    /// No keys: everybody may call.
    pub fn new(keys: &[String]) -> Self {
        Self { keys: keys.iter().map(|key| key.clone().into_bytes()).collect() }
    }

    /// Whether a request may pass.
    pub fn admit(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        self.keys.is_empty() || !is_guarded(path) || method == Method::OPTIONS || self.presented(headers)
    }

    fn presented(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return headers.get(ANTHROPIC_KEY).is_some_and(|key| self.knows(key.as_bytes().trim_ascii()));
        };
        let value = value.as_bytes();
        let Some((scheme, token)) = value.iter().position(|byte| *byte == b' ').map(|at| value.split_at(at)) else {
            return false;
        };
        self.knows(token.trim_ascii()) && scheme.eq_ignore_ascii_case(b"bearer")
    }

    /// All keys are looked at, each to its end: the time tells nothing of how near a guess is.
    fn knows(&self, token: &[u8]) -> bool {
        self.keys.iter().fold(false, |known, key| known | same(key, token))
    }
}

/// Whether a path needs a key, where there are keys.
pub fn is_guarded(path: &str) -> bool {
    GUARDED.iter().any(|prefix| path.starts_with(prefix))
}

fn same(key: &[u8], token: &[u8]) -> bool {
    key.len() == token.len() && key.iter().zip(token).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// vLLM's answer to a missing or wrong key, to the letter.
pub fn unauthorized() -> Response {
    json_response(StatusCode::UNAUTHORIZED, r#"{"error":"Unauthorized"}"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_passes() {
        let keys = Keys::new(&["secret".into(), "other".into()]);
        let rows = [
            ("GET", "/v1/models", None, false),
            ("GET", "/v1/models", Some("Bearer secret"), true),
            ("GET", "/v1/models", Some("bearer other"), true),
            ("GET", "/v1/models", Some("Bearer secre"), false),
            ("GET", "/v1/models", Some("Bearer secrets"), false),
            ("GET", "/v1/models", Some("Bearer "), false),
            ("GET", "/v1/models", Some("secret"), false),
            ("GET", "/v1/models", Some("Basic secret"), false),
            ("OPTIONS", "/v1/models", None, true),
            ("GET", "/health", None, true),
            ("POST", "/tokenize", None, true),
        ];
        for (method, path, value, passes) in rows {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::AUTHORIZATION, value.parse().expect("a header"));
            }
            let method: Method = method.parse().expect("a method");
            assert_eq!(keys.admit(&method, path, &headers), passes, "{method} {path} {value:?}");
        }
        assert!(Keys::new(&[]).admit(&Method::GET, "/v1/models", &HeaderMap::new()));
    }
}
