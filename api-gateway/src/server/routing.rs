//! What a client says of the engine that shall have its request: a session, or a rank.

use http::{HeaderMap, HeaderName};

use crate::error::ApiError;

/// Requests of one session go to one engine.
const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// The engine itself.
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Longer sessions are refused, bytes.
const MAX_SESSION: usize = 1024;

/// What the headers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// `X-Session-ID`; empty: none.
    pub session: String,
    /// `X-data-parallel-rank`.
    pub rank: Option<u32>,
}

/// Reads the headers.
///
/// # Errors
/// When one of them is no session, or no rank.
pub fn of_client(headers: &HeaderMap) -> Result<Routing, ApiError> {
    let session = match headers.get(SESSION).map(|value| value.to_str()) {
        None => String::new(),
        Some(Ok(session)) if session.len() <= MAX_SESSION => session.trim().to_owned(),
        Some(_) => {
            return Err(ApiError::field(
                "X-Session-ID",
                format!("`X-Session-ID` is ASCII of {MAX_SESSION} bytes at most."),
            ));
        }
    };
    let rank = match headers.get(RANK).map(|value| value.to_str().ok().and_then(|text| text.trim().parse().ok())) {
        None => None,
        Some(Some(rank)) => Some(rank),
        Some(None) => {
            let message = "`X-data-parallel-rank` must be the number of an engine: 0, 1, …";
            return Err(ApiError::field("X-data-parallel-rank", message));
        }
    };
    Ok(Routing { session, rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(session: Option<&str>, rank: Option<&str>) -> Result<Routing, String> {
        let mut headers = HeaderMap::new();
        session.map(|value| headers.insert(SESSION, value.parse().unwrap()));
        rank.map(|value| headers.insert(RANK, value.parse().unwrap()));
        of_client(&headers).map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn headers_are_read_or_refused() {
        let routing = |session: &str, rank| Ok(Routing { session: session.into(), rank });
        assert_eq!(of(None, None), routing("", None));
        assert_eq!(of(Some("a b"), Some("3")), routing("a b", Some(3)));
        for bad in ["", "-1", "1.0", "one", "4294967296"] {
            assert_eq!(of(None, Some(bad)), Err("X-data-parallel-rank".into()), "{bad}");
        }
        assert_eq!(of(Some(&"s".repeat(MAX_SESSION + 1)), None), Err("X-Session-ID".into()));
    }
}
