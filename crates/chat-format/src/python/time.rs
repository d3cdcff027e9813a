//! `strftime_now`, of a moment that the caller chose.

use jiff::Zoned;
use minijinja::{Error, ErrorKind, Value};

/// The function `strftime_now(format)`.
pub(crate) fn strftime_now(now: &Zoned) -> Value {
    let now = now.clone();
    Value::from_function(move |format: &str| {
        jiff::fmt::strtime::format(format, &now)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}")))
    })
}
