//! What tool-call parsers found, under vLLM's name. A choice counts once, streamed or not.

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use service_kit::metrics::Description;

service_kit::labels! {
    struct Invocation {
        mode: &'static str,
        outcome: &'static str,
        request_type: &'static str,
    }
}

service_kit::metrics! {
    struct Table {
        by ["model_name"] {
            invocations: Family<Invocation, Counter>, "vllm:tool_call_parser_invocations",
                "Choices that a tool-call parser read";
        }
    }
}

const STREAMING: [&str; 2] = ["non_streaming", "streaming"];
const OUTCOMES: [&str; 2] = ["no_tool_call", "tool_call"];
const CHAT: &str = "chat_completions";
const RESPONSES: &str = "responses";

/// The counters; cloning shares them. Those of the default are in no registry.
#[derive(Clone, Debug, Default)]
pub struct ParserCounts(Family<Invocation, Counter>);

/// How the answer to a request is read.
#[derive(Clone, Debug)]
pub struct Invoked {
    counts: ParserCounts,
    mode: &'static str,
    request_type: &'static str,
}

impl ParserCounts {
    /// Registers them, with a zero for all labels.
    pub fn register(registry: &mut Registry, model_name: &str) -> Self {
        let counts = Table::register(registry, &[("model_name", model_name)]).invocations;
        for (mode, outcome) in STREAMING.into_iter().flat_map(|mode| OUTCOMES.map(|outcome| (mode, outcome))) {
            for request_type in [CHAT, RESPONSES] {
                drop(counts.get_or_create(&Invocation { mode, outcome, request_type }));
            }
        }
        Self(counts)
    }

    /// For the choices of an answer: of the responses API, or else a chat; streamed or not. Messages count as chats,
    /// which they are to vLLM.
    pub fn of(&self, is_response: bool, streams: bool) -> Invoked {
        let request_type = if is_response { RESPONSES } else { CHAT };
        Invoked { counts: self.clone(), mode: STREAMING[usize::from(streams)], request_type }
    }
}

impl Invoked {
    /// A choice was read to its end, and held `calls` calls.
    pub fn count(&self, calls: u32) {
        let Self { mode, request_type, .. } = *self;
        let outcome = OUTCOMES[usize::from(calls > 0)];
        self.counts.0.get_or_create(&Invocation { mode, outcome, request_type }).inc();
    }
}

/// The metrics, for documents.
pub fn descriptions() -> Vec<Description> {
    Table::descriptions()
}
