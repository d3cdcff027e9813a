//! Qwen3 Coder: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`; also Nemotron,
//! Step 3.5, MiMo.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, tagged::Format, value::Trim},
    tools::Tools,
};

/// The tags, without what stands around them.
pub(super) const FUNCTION: Format = Format {
    openers: &["<tool_call>", "<function="],
    sections: &[("<tool_call>", "</tool_call>")],
    call: "<function=",
    call_end: "</function>",
    key: "<parameter=",
    name_attribute: "",
    key_attribute: "",
    trim: Trim::Breaks,
    ..Format::INVOKE
};

/// Calls of Qwen3 Coder.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const CODER: Format = FUNCTION;
    CODER.shape(tools)
}

/// Calls of MiMo, whose values stand as they are.
pub(super) fn mimo(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const MIMO: Format = Format { trim: Trim::Nothing, ..FUNCTION };
    MIMO.shape(tools)
}

/// Calls of Seed OSS.
pub(super) fn seed(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const SEED: Format = Format {
        openers: &["<seed:tool_call>", "<function="],
        sections: &[("<seed:tool_call>", "</seed:tool_call>")],
        ..FUNCTION
    };
    SEED.shape(tools)
}
