//! Reads request bodies: JSON, within a size and a time.

use std::{error::Error, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::{
    error::{ApiError, Fault},
    gateway::Gateway,
};

/// What is read and thrown away of a body that is too large, so that its client gets to read why.
const DISCARD_BYTES: usize = 256 << 20;
/// How long that may take.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// The body of a JSON request.
pub async fn read_json(gateway: &Gateway, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    if !is_json(headers) {
        return Err(not_json());
    }
    read(gateway, headers, body).await
}

/// The same where there may be no body. Clients name any type for one that is empty, `curl -d ''` a form's.
pub async fn read_optional(gateway: &Gateway, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let bytes = read(gateway, headers, body).await?;
    match bytes.is_empty() || is_json(headers) || !headers.contains_key(header::CONTENT_TYPE) {
        true => Ok(bytes),
        false => Err(not_json()),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    media_type.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

fn not_json() -> ApiError {
    ApiError::body("Unsupported Media Type: Only 'application/json' is allowed")
}

async fn read(gateway: &Gateway, headers: &HeaderMap, mut body: Body) -> Result<Bytes, ApiError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let limit = gateway.config.access.max_body_bytes;
    let too_large = || ApiError::new(Fault::TooLarge, format!("The request body is larger than {limit} bytes."));
    if announced.is_some_and(|length| length > limit) {
        discard(body).await;
        return Err(too_large());
    }
    let timeout = Duration::from_secs_f64(gateway.config.listen.body_timeout);
    let collected = tokio::time::timeout(timeout, Limited::new(&mut body, limit).collect()).await;
    match collected {
        Err(_) => Err(ApiError::new(Fault::Timeout, "The request body did not arrive in time.")),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if is_too_large(&*error) => {
            discard(body).await;
            Err(too_large())
        }
        Ok(Err(error)) => Err(ApiError::body(format!("The request body could not be read: {error}"))),
    }
}

fn is_too_large(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_large)
}

async fn discard(mut body: Body) {
    let all = async {
        let mut left = DISCARD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(length) {
                Some(less) => left = less,
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIME, all).await;
}
