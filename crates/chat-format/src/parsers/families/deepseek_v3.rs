//! DeepSeek 3 and R1: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, then the arguments in a block of code; 3.1 without
//! both.

use std::sync::Arc;

use crate::parsers::{
    shapes::{
        Shape,
        named::{Format, Head},
    },
    tools::Tools,
};

const BARE: Format = Format {
    openers: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    sections: &[("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")],
    open: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    close: "<｜tool▁call▁end｜>",
    ignored: &[],
    fences: &[],
    head: Head::plain,
};

/// Calls of DeepSeek 3 and R1.
pub(super) fn v3(_: &Arc<Tools>) -> Box<dyn Shape> {
    const V3: Format = Format {
        openers: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>"],
        open: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        separator: "\n",
        fences: &["```json", "```"],
        ..BARE
    };
    V3.shape()
}

/// Calls of DeepSeek 3.1.
pub(super) fn v31(_: &Arc<Tools>) -> Box<dyn Shape> {
    BARE.shape()
}
