//! The id that a client gives its request.

use http::{HeaderMap, HeaderName};

/// The header that carries it, both ways.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longer ids, and ids with unprintable characters, are not taken over.
const MAX_REQUEST_ID: usize = 256;

/// The request's id as the client gave it, if it is usable.
pub fn of_client(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?.trim();
    (!id.is_empty() && id.len() <= MAX_REQUEST_ID).then(|| id.to_owned())
}
