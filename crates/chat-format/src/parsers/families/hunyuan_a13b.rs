//! Hunyuan A13B: `<think>\n…\n</think>\n<answer>\n…\n</answer>`.

use super::Reasoning;

/// The reasoning, and the markers of the answer behind it.
pub(super) const REASONING: Reasoning = Reasoning { dropped: &["<answer>", "</answer>"], ..Reasoning::THINK };
