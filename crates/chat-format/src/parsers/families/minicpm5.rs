//! MiniCPM 5: `<function name="NAME"><param name="KEY">VALUE</param></function>`, a value perhaps as CDATA.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, tagged::Format, value::Trim},
    tools::Tools,
};

/// Calls of MiniCPM 5.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const MINICPM: Format = Format {
        openers: &["<function"],
        call: "<function",
        call_end: "</function>",
        key: "<param",
        value_end: "</param>",
        trim: Trim::All,
        ..Format::INVOKE
    };
    MINICPM.shape(tools)
}
