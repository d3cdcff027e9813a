//! Tells from a chat template how the model writes calls and reasoning.

use super::{ReasoningFormat, ToolFormat};

/// Texts that must all stand in a template, and the format that they mean. The first row that fits counts, so rare
/// marks come first.
#[rustfmt::skip]
const TOOLS: [(&[&str], &str); 36] = [
    (&["<|channel|>", "functions."], "openai"),
    (&["<|tool_calls_section_begin|>"], "kimi_k2"),
    (&["<|open|>", "<|sep|>", "argument"], "kimi_k3"),
    (&["｜DSML｜", "function_calls"], "deepseek_v32"),
    (&["｜DSML｜", "tool_calls"], "deepseek_v4"),
    (&["｜DSML｜", " calls"], "deepseek_v41"),
    (&["<｜tool▁calls▁begin｜>", "```json"], "deepseek_v3"),
    (&["<｜tool▁calls▁begin｜>"], "deepseek_v31"),
    (&["]<]minimax[>["], "minimax_m3"),
    (&["<minimax:tool_call>"], "minimax_m2"),
    (&["<dots_function_call>"], "dots"),
    (&["steptml:invoke"], "step3"),
    (&["<ifm|tool_call"], "k2_horizon"),
    (&["<arg_key>", "<tool_sep>"], "hy_v3"),
    (&["<arg_key>", "<tool_calls>"], "hy_v4"),
    (&["<arg_key>", "<tool_call>"], "glm45"),
    (&["<seed:tool_call>"], "seed_oss"),
    (&["<function=", "<parameter="], "qwen3_coder"),
    (&["<param name=", "<function name="], "minicpm5"),
    (&["atem:function_calls"], "muse"),
    (&["plamo:begin_tool_request"], "plamo3"),
    (&["<|content_invoke_tool_json|>"], "inkling"),
    (&["<longcat_tool_call>"], "longcat"),
    (&["<|tools_prefix|>"], "apertus"),
    (&["<start_function_call>"], "functiongemma"),
    (&["<|tool_call>"], "gemma4"),
    (&["<|tool_call_start|>"], "lfm2"),
    (&["<|action_start|>", "<|plugin|>"], "internlm"),
    (&["<|START_ACTION|>"], "cohere_command3"),
    (&["<|function_call|>"], "gigachat3"),
    (&["[TOOL_CALLS]"], "mistral"),
    (&["<|python_start|>"], "llama4_pythonic"),
    (&["functools["], "phi4_mini_json"),
    (&["<tool_calls>"], "jamba"),
    (&["<tool_call>", "arguments"], "hermes"),
    (&["\"parameters\": dictionary"], "llama3_json"),
];

/// The same for reasoning.
#[rustfmt::skip]
const REASONING: [(&[&str], &str); 14] = [
    (&["<|channel|>", "analysis"], "openai_gptoss"),
    (&["<|channel>", "thought"], "gemma4"),
    (&["<|open|>", "<|sep|>", "think"], "kimi_k3"),
    (&["<|START_THINKING|>"], "cohere_command3"),
    (&["<|content_thinking|>"], "inkling"),
    (&["<ifm|think"], "k2_horizon"),
    (&["<mm:think>"], "minimax_m3"),
    (&["<minimax:tool_call>", "<think>"], "minimax_m2"),
    (&["<seed:think>"], "seed_oss"),
    (&["plamo:begin_think"], "plamo3"),
    (&["[THINK]"], "mistral"),
    (&["<think>", "<answer>"], "hunyuan_a13b"),
    (&["Here is my thought process:"], "granite"),
    (&["<think>"], "qwen3"),
];

/// The format of calls that a template shows.
pub(crate) fn tools(template: &str) -> Option<ToolFormat> {
    first(&TOOLS, template).and_then(|name| ToolFormat::named(name).ok())
}

/// The format of reasoning that a template shows.
pub(crate) fn reasoning(template: &str) -> Option<ReasoningFormat> {
    first(&REASONING, template).and_then(|name| ReasoningFormat::named(name).ok())
}

fn first(rows: &[(&[&str], &'static str)], template: &str) -> Option<&'static str> {
    // Templates that build their text of strings escape the quotes in them.
    let template = template.replace("\\\"", "\"");
    let fits = |marks: &[&str]| marks.iter().all(|mark| template.contains(mark));
    rows.iter().find(|(marks, _)| fits(marks)).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_a_format() {
        for (marks, name) in TOOLS {
            assert!(ToolFormat::named(name).is_ok(), "{name}");
            let template = marks.join(" ");
            assert_eq!(tools(&template).map(|format| format.name), Some(name), "{template}");
        }
        for (marks, name) in REASONING {
            assert!(ReasoningFormat::named(name).is_ok(), "{name}");
            let template = marks.join(" ");
            assert_eq!(reasoning(&template).map(|format| format.name), Some(name), "{template}");
        }
    }

    #[test]
    fn templates_of_models_are_told_apart() {
        let qwen =
            r#"{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}"#;
        let llama =
            r#"{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name' }}"#;
        for (template, expected) in [(qwen, Some("hermes")), (llama, Some("llama3_json")), ("{{ messages }}", None)] {
            assert_eq!(tools(template).map(|format| format.name), expected, "{template}");
        }
        assert!(reasoning("{{ messages }}").is_none());
    }
}
