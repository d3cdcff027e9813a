//! DeepSeek from 3.2 on: `<｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY"
//! string="true">VALUE</｜DSML｜parameter></｜DSML｜invoke>`, in a section that each version calls otherwise.
//! `string="true"` is a text, all else JSON.

use std::sync::Arc;

use crate::parsers::{
    shapes::{
        Shape,
        tagged::{Format, Typing},
    },
    tools::Tools,
};

const INVOKE: Format = Format {
    call: "<｜DSML｜invoke",
    call_end: "</｜DSML｜invoke>",
    key: "<｜DSML｜parameter",
    value_end: "</｜DSML｜parameter>",
    typing: Typing::StringAttribute,
    ..Format::INVOKE
};

/// Calls of DeepSeek 3.2.
pub(super) fn v32(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const V32: Format = Format {
        openers: &["<｜DSML｜function_calls>", "<｜DSML｜invoke"],
        sections: &[("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")],
        ..INVOKE
    };
    V32.shape(tools)
}

/// Calls of DeepSeek 4, with the spellings that it also writes.
pub(super) fn v4(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const V4: Format = Format {
        openers: &["<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>", "<｜DSML｜invoke"],
        sections: &[
            ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
            ("<｜DSML｜toolcalls>", "</｜DSML｜toolcalls>"),
            ("<｜DSML｜tool>", "</｜DSML｜tool>"),
        ],
        ..INVOKE
    };
    V4.shape(tools)
}

/// Calls of DeepSeek 4.1.
pub(super) fn v41(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const V41: Format = Format {
        openers: &["<｜DSML｜ calls>", "<｜DSML｜ invoke"],
        sections: &[("<｜DSML｜ calls>", "</｜DSML｜ calls>")],
        call: "<｜DSML｜ invoke",
        call_end: "</｜DSML｜ invoke>",
        key: "<｜DSML｜ parameter",
        value_end: "</｜DSML｜ parameter>",
        ..INVOKE
    };
    V41.shape(tools)
}
