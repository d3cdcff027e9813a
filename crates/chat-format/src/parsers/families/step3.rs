//! Step 3: `<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME"><steptml:parameter
//! name="KEY">VALUE</steptml:parameter> </steptml:invoke><｜tool_call_end｜>` in a section.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, tagged::Format, value::Trim},
    tools::Tools,
};

/// Calls of Step 3.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const STEP: Format = Format {
        openers: &["<｜tool_calls_begin｜>"],
        sections: &[("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")],
        ignored: &["<｜tool_call_begin｜>", "<｜tool_call_end｜>", "<｜tool_sep｜>", "function<｜tool_sep｜>"],
        call: "<steptml:invoke",
        call_end: "</steptml:invoke>",
        key: "<steptml:parameter",
        value_end: "</steptml:parameter>",
        trim: Trim::All,
        ..Format::INVOKE
    };
    STEP.shape(tools)
}
