//! Items of an answer: their ids, and what they look like while they grow and once they are done.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::turn::{Place, ShownReasoning};

/// Marks an opaque text as one of ours.
const OPAQUE: &str = "quire1:";

/// The item that grows.
#[derive(Debug)]
pub enum Open {
    /// Text of the assistant.
    Message {
        /// So far.
        text: String,
        /// Of its tokens, where they are shown.
        logprobs: Vec<Value>,
    },
    /// What the model thinks.
    Reasoning {
        /// So far.
        text: String,
    },
    /// A call of a function.
    Call {
        /// Calls before it.
        index: u32,
        /// By which its result names it.
        call_id: String,
        /// Of the function.
        name: String,
        /// JSON so far.
        arguments: String,
    },
}

impl Open {
    /// The id of an item: the response's own, and which of its items it is.
    pub fn id(&self, response: &str, index: usize) -> String {
        let prefix = match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::Call { .. } => "fc",
        };
        format!("{prefix}_{}{index:04x}", response.trim_start_matches("resp_"))
    }

    /// The item as its first event shows it: nothing of it has come.
    pub fn begun(&self, id: &str) -> Value {
        match self {
            Self::Message { .. } => {
                json!({"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []})
            }
            Self::Reasoning { .. } => json!({"id": id, "type": "reasoning", "status": "in_progress", "summary": []}),
            Self::Call { call_id, name, .. } => json!({
                "id": id, "type": "function_call", "status": "in_progress", "call_id": call_id, "name": name,
                "arguments": "",
            }),
        }
    }

    /// The item as it stands, with that status.
    pub fn done(&self, id: &str, status: &str, reasoning: ShownReasoning) -> Value {
        match self {
            Self::Message { .. } => json!({
                "id": id, "type": "message", "status": status, "role": "assistant", "content": [self.part(reasoning)],
            }),
            Self::Reasoning { text } => {
                let mut item = json!({"id": id, "type": "reasoning", "status": status, "summary": []});
                let place = if reasoning.place == Place::Summary { "summary" } else { "content" };
                item[place] = json!([self.part(reasoning)]);
                if reasoning.opaque {
                    item["encrypted_content"] = format!("{OPAQUE}{}", STANDARD.encode(text)).into();
                }
                item
            }
            Self::Call { call_id, name, arguments, .. } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
        }
    }

    /// The part that holds a text; null for a call.
    pub fn part(&self, reasoning: ShownReasoning) -> Value {
        match self {
            Self::Message { text, logprobs } => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
            Self::Reasoning { text } if reasoning.place == Place::Summary => {
                json!({"type": "summary_text", "text": text})
            }
            Self::Reasoning { text } => json!({"type": "reasoning_text", "text": text}),
            Self::Call { .. } => Value::Null,
        }
    }
}

/// The hexadecimal digits of the response that made an item, by the item's id.
pub fn response_of(item: &str) -> Option<String> {
    let (_, digits) = item.split_once('_')?;
    let response = digits.get(..32).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    Some(format!("resp_{response}"))
}

/// The reasoning in an opaque text of ours.
pub fn opened(opaque: &str) -> Option<String> {
    let bytes = STANDARD.decode(opaque.strip_prefix(OPAQUE)?).ok()?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_comes_back_from_its_opaque_text() {
        let open = Open::Reasoning { text: "thé \"1\"\n".into() };
        let shown = ShownReasoning { place: Place::Summary, opaque: true };
        let item = open.done("rs_1", "completed", shown);
        assert_eq!(item["summary"][0]["text"], "thé \"1\"\n");
        assert_eq!(item["content"], Value::Null);
        assert_eq!(opened(item["encrypted_content"].as_str().expect("a text")).as_deref(), Some("thé \"1\"\n"));
        assert_eq!(opened("gAAAAB"), None);
        assert_eq!(opened("quire1:%%"), None);
    }

    #[test]
    fn an_item_names_its_response() {
        let response = format!("resp_{}", "0123456789abcdef".repeat(2));
        let open = Open::Message { text: String::new(), logprobs: Vec::new() };
        assert_eq!(response_of(&open.id(&response, 3)), Some(response));
        for other in ["", "msg", "msg_12", "msg_é123456789012345678901234567890123", "msg_zz"] {
            assert_eq!(response_of(other), None, "{other}");
        }
    }
}
