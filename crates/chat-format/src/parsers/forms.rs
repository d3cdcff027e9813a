//! How calls are written whose arguments are JSON: the texts around name and arguments, so that a call can be demanded.

/// The texts around the calls of an answer: `before`, then calls parted by `separator`, each `begin`, its name,
/// `middle`, its arguments, `end`; then `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallForm {
    /// Before the first call.
    pub before: &'static str,
    /// Before a name.
    pub begin: &'static str,
    /// Between name and arguments.
    pub middle: &'static str,
    /// Behind the arguments.
    pub end: &'static str,
    /// Between two calls.
    pub separator: &'static str,
    /// Behind the last call.
    pub after: &'static str,
    /// What tells calls from other text; empty: nothing does.
    pub trigger: &'static str,
}

impl CallForm {
    const OBJECTS: Self = Self {
        before: "",
        begin: "{\"name\": \"",
        middle: "\", \"arguments\": ",
        end: "}",
        separator: "",
        after: "",
        trigger: "",
    };
    const LIST: Self = Self { before: "[", separator: ", ", after: "]", ..Self::OBJECTS };
    /// A message whose header names the function.
    pub const HEADED: Self = Self { begin: "", middle: " <|constrain|>json<|message|>", end: "", ..Self::OBJECTS };
    /// A list that every parser of bare JSON reads.
    pub const PLAIN: Self = Self::LIST;
}

const HERMES: CallForm = CallForm {
    begin: "<tool_call>\n{\"name\": \"",
    end: "}\n</tool_call>",
    separator: "\n",
    trigger: "<tool_call>",
    ..CallForm::OBJECTS
};

const DEEPSEEK: CallForm = CallForm {
    before: "<｜tool▁calls▁begin｜>",
    begin: "<｜tool▁call▁begin｜>",
    middle: "<｜tool▁sep｜>",
    end: "<｜tool▁call▁end｜>",
    separator: "",
    after: "<｜tool▁calls▁end｜>",
    trigger: "<｜tool▁calls▁begin｜>",
};

const LONGCAT: CallForm = CallForm {
    begin: "<longcat_tool_call>\n{\"name\": \"",
    end: "}\n</longcat_tool_call>",
    trigger: "<longcat_tool_call>",
    ..HERMES
};

/// By the format's name, sorted.
#[rustfmt::skip]
pub(crate) const FORMS: [(&str, CallForm); 17] = [
    ("deepseek_v3", CallForm {
        begin: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", middle: "\n```json\n",
        end: "\n```<｜tool▁call▁end｜>", separator: "\n", ..DEEPSEEK
    }),
    ("deepseek_v31", DEEPSEEK),
    ("ernie45", HERMES),
    ("granite", CallForm { before: "<|tool_call|>[", trigger: "<|tool_call|>", ..CallForm::LIST }),
    ("granite4", HERMES),
    ("hermes", HERMES),
    ("hunyuan_a13b", JAMBA),
    ("internlm", CallForm {
        begin: "<|action_start|><|plugin|>\n{\"name\": \"", middle: "\", \"parameters\": ", end: "}<|action_end|>",
        trigger: "<|action_start|>", ..CallForm::OBJECTS
    }),
    ("jamba", JAMBA),
    ("llama3_json", LLAMA),
    ("llama4_json", LLAMA),
    ("longcat", LONGCAT),
    ("minimax", JAMBA),
    ("mistral", CallForm { before: "[TOOL_CALLS][", trigger: "[TOOL_CALLS]", ..CallForm::LIST }),
    ("phi4_mini_json", CallForm { before: "functools[", trigger: "functools[", ..CallForm::LIST }),
    ("qwen3_json", HERMES),
    ("xlam", CallForm::LIST),
];

const JAMBA: CallForm =
    CallForm { before: "<tool_calls>[", after: "]</tool_calls>", trigger: "<tool_calls>", ..CallForm::LIST };

const LLAMA: CallForm = CallForm { middle: "\", \"parameters\": ", separator: "; ", ..CallForm::OBJECTS };

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::parsers::{Message, ReasoningFormat, Setup, ToolFormat, Tools};

    #[test]
    fn the_table_is_sorted() {
        assert!(FORMS.is_sorted_by(|one, other| one.0 < other.0));
    }

    #[test]
    fn a_call_in_a_channel_is_read() {
        let format = ReasoningFormat::named("openai_gptoss").expect("a format");
        let form = format.call_form().expect("a form");
        let text = format!(
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant{}f{}{{}}",
            format.call_marks()[0],
            form.middle
        );
        let tools = Arc::new(Tools::new(&[json!({"type": "function", "function": {"name": "f"}})]));
        let message = Message::read(&text, Setup::new(ToolFormat::named("openai").ok(), Some(format), tools));
        let calls: Vec<_> = message.calls.iter().map(|call| (&*call.name, &*call.arguments)).collect();
        assert_eq!((calls.as_slice(), message.content.trim()), (&[("f", "{}")][..], ""));
    }

    #[test]
    fn what_is_written_so_is_read_as_calls() {
        let offered = json!([{"type": "function", "function": {"name": "f"}},
            {"type": "function", "function": {"name": "g"}}]);
        let tools = Arc::new(Tools::new(offered.as_array().expect("a list")));
        let plain = [("llama3_json", CallForm::PLAIN)];
        for (name, form) in FORMS.iter().chain(&plain) {
            let call = |name: &str| format!("{}{name}{}{{\"a\": \"<b>\"}}{}", form.begin, form.middle, form.end);
            let text = format!("{}{}{}{}{}", form.before, call("f"), form.separator, call("g"), form.after);
            let format = ToolFormat::named(name).expect("a format");
            let message = Message::read(&text, Setup::new(Some(format), None, tools.clone()));
            let read: Vec<_> = message.calls.iter().map(|call| (&*call.name, call.arguments.trim())).collect();
            assert_eq!(read, [("f", "{\"a\": \"<b>\"}"), ("g", "{\"a\": \"<b>\"}")], "{name}: {text}");
            assert_eq!(message.content.trim(), "", "{name}");
            assert!(form.before.starts_with(form.trigger) || form.begin.starts_with(form.trigger), "{name}");
        }
    }
}
