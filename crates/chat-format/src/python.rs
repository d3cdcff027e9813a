//! What Python does where minijinja does otherwise: JSON, printed containers, a few methods, time.

mod json;
mod methods;
mod number;
mod repr;
mod time;

pub(crate) use json::tojson;
pub(crate) use methods::unknown_method;
pub(crate) use repr::{format_output, to_string};
pub(crate) use time::strftime_now;
