//! GLM 4.5: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`; also Ling 3, Poolside and
//! Hunyuan 3, which have a marker more.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, tagged::Format},
    tools::Tools,
};

/// Calls of GLM.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const GLM: Format = Format::ARG_KEY;
    GLM.shape(tools)
}

/// Calls of Hunyuan 3: `<tool_calls><tool_call>NAME<tool_sep>…`
pub(super) fn hunyuan_3(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const HUNYUAN: Format = Format { call_head_end: Some("<tool_sep>"), ..IN_SECTION };
    HUNYUAN.shape(tools)
}

/// Calls of Hunyuan 4: the same without `<tool_sep>`.
pub(super) fn hunyuan_4(tools: &Arc<Tools>) -> Box<dyn Shape> {
    IN_SECTION.shape(tools)
}

const IN_SECTION: Format = Format {
    openers: &["<tool_calls>", "<tool_call>"],
    sections: &[("<tool_calls>", "</tool_calls>")],
    ..Format::ARG_KEY
};
