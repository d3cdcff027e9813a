//! `<|tools_prefix|>[{"NAME": {…}}]<|tools_suffix|>`.

use std::sync::Arc;

use crate::parsers::{
    shapes::{Shape, json::Format},
    tools::Tools,
};

/// Calls of Apertus.
pub(super) fn tools(tools: &Arc<Tools>) -> Box<dyn Shape> {
    const APERTUS: Format =
        Format { openers: &["<|tools_prefix|>"], closers: &["<|tools_suffix|>"], keyed: true, ..Format::PLAIN };
    APERTUS.shape(tools)
}
