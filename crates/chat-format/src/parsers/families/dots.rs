//! dots: `<dots_function_call><invoke name="NAME"><parameter
//! name="KEY">VALUE</parameter></invoke></dots_function_call>`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, tagged::Format, value::Trim},
    tools::Tools,
};

/// Calls of dots.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const DOTS: Format = Format {
        openers: &["<dots_function_call>"],
        sections: &[("<dots_function_call>", "</dots_function_call>")],
        trim: Trim::All,
        ..Format::INVOKE
    };
    DOTS.shape(tools)
}
