//! `<think>…</think>`, and what differs: whether the answer begins inside, and whether a call ends it.

use super::Reasoning;

impl Reasoning {
    /// `<think>…</think>` at the beginning of the answer, or begun by the prompt.
    pub(crate) const THINK: Self = Self {
        open: &["<think>"],
        close: &["</think>"],
        implicit: false,
        repeats: false,
        ended_by_call: false,
        dropped: &[],
        headers: &[],
        prefix: "",
        answer: &[],
        call: &[],
        message_end: &[],
        turn: "",
        whole: None,
    };
}

/// DeepSeek 3, Hunyuan 3: only when the marker is there.
pub(super) const EXPLICIT: Reasoning = Reasoning::THINK;

/// DeepSeek R1, Step 3: the marker stands in the prompt, or nowhere.
pub(super) const IMPLICIT: Reasoning = Reasoning { implicit: true, ..Reasoning::THINK };

/// Qwen3, GLM: a call ends it too. Whether the prompt begins it is told by the prompt's end.
pub(super) const UNTIL_CALL: Reasoning = Reasoning { ended_by_call: true, ..Reasoning::THINK };

/// Step 3.5: both.
pub(super) const IMPLICIT_UNTIL_CALL: Reasoning = Reasoning { ended_by_call: true, ..IMPLICIT };

/// ERNIE 4.5: the answer perhaps between `<response>` and `</response>`.
pub(super) const ERNIE: Reasoning = Reasoning { dropped: &["<response>", "</response>"], ..IMPLICIT };

/// Seed OSS: markers of its own.
pub(super) const SEED: Reasoning =
    Reasoning { open: &["<seed:think>"], close: &["</seed:think>"], ended_by_call: true, ..Reasoning::THINK };
