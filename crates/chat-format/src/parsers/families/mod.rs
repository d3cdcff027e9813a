//! The formats of calls and reasoning by the names that users type. A format is a file; another name for it is a line
//! here.

use std::sync::Arc;

use super::{
    Tools,
    shapes::{Make, Shape},
};

mod apertus;
mod cohere;
mod deepseek_dsml;
mod deepseek_v3;
mod dots;
mod gemma;
mod gigachat3;
mod glm45;
mod granite;
mod hermes;
mod hunyuan_a13b;
mod inkling;
mod internlm;
mod jamba;
mod k2_horizon;
mod kimi_k2;
mod kimi_k3;
mod lfm2;
mod llama;
mod longcat;
mod minicpm5;
mod minimax_m2;
mod minimax_m3;
mod mistral;
mod muse;
mod olmo3;
mod openai;
mod phi4_mini;
mod plamo3;
mod pythonic;
mod qwen3;
mod step3;
mod think;
mod xlam;

/// How reasoning is written.
pub(crate) struct Reasoning {
    /// Markers before it.
    pub(crate) open: &'static [&'static str],
    /// Markers behind it.
    pub(crate) close: &'static [&'static str],
    /// An answer begins with reasoning although no marker says so, unless the end of the prompt says otherwise.
    pub(crate) implicit: bool,
    /// Blocks of it may stand anywhere, not only at the beginning.
    pub(crate) repeats: bool,
    /// A call ends it.
    pub(crate) ended_by_call: bool,
    /// Markers around content that say nothing.
    pub(crate) dropped: &'static [&'static str],
    /// Markers behind which a role or a name stands, up to the next marker.
    pub(crate) headers: &'static [&'static str],
    /// Text that the prompt ended with and that belongs to the content.
    pub(crate) prefix: &'static str,
    /// Markers behind which the answer stands, where they are others than `close`.
    pub(crate) answer: &'static [&'static str],
    /// Markers behind which the name of a call stands, where a call is an answer of its own.
    pub(crate) call: &'static [&'static str],
    /// Marker behind a message, where reasoning is one.
    pub(crate) message_end: &'static [&'static str],
    /// What stands between reasoning that is cut off and a marker of `answer` or `call`.
    pub(crate) turn: &'static str,
    /// The format is read as a whole, calls and content too.
    pub(crate) whole: Option<Whole>,
}

/// Makes a parser of whole answers, which looks for calls or not.
pub(crate) type Whole = fn(bool, &Arc<Tools>) -> Box<dyn Shape>;

/// Formats of calls by name, sorted.
#[rustfmt::skip]
pub(crate) const TOOLS: [(&str, Make); 57] = [
    ("apertus", apertus::tools),
    ("cohere_command3", cohere::tools),
    ("cohere_command4", cohere::tools),
    ("deepseek_v3", deepseek_v3::v3),
    ("deepseek_v31", deepseek_v3::v31),
    ("deepseek_v32", deepseek_dsml::v32),
    ("deepseek_v4", deepseek_dsml::v4),
    ("deepseek_v41", deepseek_dsml::v41),
    ("dots", dots::tools),
    ("ernie45", hermes::tools),
    ("functiongemma", gemma::function_gemma),
    ("gemma4", gemma::gemma4),
    ("gigachat3", gigachat3::tools),
    ("glm45", glm45::tools),
    ("glm47", glm45::tools),
    ("granite", granite::tools),
    ("granite-20b-fc", granite::function_calling),
    ("granite4", hermes::tools),
    ("hermes", hermes::tools),
    ("hunyuan_a13b", jamba::tools),
    ("hy_v3", glm45::hunyuan_3),
    ("hy_v4", glm45::hunyuan_4),
    ("inkling", inkling::tools),
    ("internlm", internlm::tools),
    ("jamba", jamba::tools),
    ("k2_horizon", k2_horizon::tools),
    ("kimi_k2", kimi_k2::tools),
    ("kimi_k3", kimi_k3::tools),
    ("lfm2", lfm2::tools),
    ("ling3", glm45::tools),
    ("llama3_json", llama::json),
    ("llama4_json", llama::json),
    ("llama4_pythonic", llama::pythonic),
    ("longcat", longcat::tools),
    ("mimo", qwen3::mimo),
    ("minicpm5", minicpm5::tools),
    ("minimax", jamba::tools),
    ("minimax_m2", minimax_m2::tools),
    ("minimax_m3", minimax_m3::tools),
    ("mistral", mistral::tools),
    ("muse", muse::spark_tools),
    ("muse_glimmer", muse::glimmer_tools),
    ("musespark1x", muse::spark_tools),
    ("olmo3", olmo3::tools),
    ("openai", openai::tools),
    ("phi4_mini_json", phi4_mini::tools),
    ("plamo3", plamo3::tools),
    ("poolside_v1", glm45::tools),
    ("pythonic", pythonic::tools),
    ("qwen3_coder", qwen3::tools),
    ("qwen3_json", hermes::tools),
    ("qwen3_xml", qwen3::tools),
    ("seed_oss", qwen3::seed),
    ("step3", step3::tools),
    ("step3p5", qwen3::tools),
    ("step5", qwen3::tools),
    ("xlam", xlam::tools),
];

/// Formats of reasoning by name, sorted.
#[rustfmt::skip]
pub(crate) const REASONING: [(&str, &Reasoning); 40] = [
    ("cohere_command3", &cohere::REASONING),
    ("cohere_command4", &cohere::REASONING),
    ("deepseek_r1", &think::IMPLICIT),
    ("deepseek_v3", &think::EXPLICIT),
    ("deepseek_v4", &think::UNTIL_CALL),
    ("deepseek_v41", &think::UNTIL_CALL),
    ("ernie45", &think::ERNIE),
    ("gemma4", &gemma::REASONING),
    ("glm45", &think::UNTIL_CALL),
    ("glm47", &think::UNTIL_CALL),
    ("granite", &granite::REASONING),
    ("granite_thinking_parser", &think::UNTIL_CALL),
    ("holo2", &think::IMPLICIT),
    ("hunyuan_a13b", &hunyuan_a13b::REASONING),
    ("hy_v3", &think::EXPLICIT),
    ("hy_v4", &think::EXPLICIT),
    ("inkling", &inkling::REASONING),
    ("k2_horizon", &k2_horizon::REASONING),
    ("kimi_k2", &kimi_k2::REASONING),
    ("kimi_k3", &kimi_k3::REASONING),
    ("ling3", &think::UNTIL_CALL),
    ("mimo", &think::UNTIL_CALL),
    ("minicpmv", &think::UNTIL_CALL),
    ("minimax_m2", &minimax_m2::REASONING),
    ("minimax_m2_append_think", &minimax_m2::APPENDED),
    ("minimax_m3", &minimax_m3::REASONING),
    ("mistral", &mistral::REASONING),
    ("muse", &muse::SPARK_REASONING),
    ("muse_glimmer", &muse::GLIMMER_REASONING),
    ("musespark1x", &muse::SPARK_REASONING),
    ("nemotron_v3", &think::UNTIL_CALL),
    ("olmo3", &think::IMPLICIT),
    ("openai_gptoss", &openai::REASONING),
    ("plamo3", &plamo3::REASONING),
    ("poolside_v1", &think::EXPLICIT),
    ("qwen3", &think::UNTIL_CALL),
    ("seed_oss", &think::SEED),
    ("step3", &think::IMPLICIT),
    ("step3p5", &think::IMPLICIT_UNTIL_CALL),
    ("step5", &think::IMPLICIT),
];

/// Names that vLLM knows and this server does not, and why.
pub(crate) const REFUSED: [(&str, &str); 2] = [
    ("beam", "its format is told by metadata of the checkpoint, not by a published format"),
    ("hf", "formats told by a checkpoint's `response_template` are not supported; give the model's own format"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted() {
        assert!(TOOLS.is_sorted_by(|one, other| one.0 < other.0));
        assert!(REASONING.is_sorted_by(|one, other| one.0 < other.0));
        assert!(REFUSED.is_sorted_by(|one, other| one.0 < other.0));
    }
}
