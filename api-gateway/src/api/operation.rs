//! What a route does, for its documentation: methods, bodies, answers, errors.

use std::sync::Arc;

use axum::routing::MethodRouter;

use super::shape::Member;
use crate::{config::Config, error::Fault, gateway::Gateway, server::auth};

/// What a route answers with.
pub type Handlers = MethodRouter<Arc<Gateway>>;

/// A path, what makes its handlers, and what the documentation says of them.
pub struct Route {
    /// The path as the router takes it: `/v1/models/{*model}`.
    pub path: &'static str,
    /// Makes the handlers.
    pub handlers: fn() -> Handlers,
    /// When it exists.
    pub when: When,
    /// One for each method.
    pub operations: &'static [Operation],
}

/// When a route exists.
pub struct When {
    /// In words, for the documentation; empty: always.
    pub words: &'static str,
    /// Whether it does, on a server of the API.
    pub holds: fn(&Config) -> bool,
    /// Whom it is for.
    pub audience: Audience,
}

/// Whom a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Clients of the API.
    Clients,
    /// Operators, too: `--operations-only` leaves it.
    Operators,
}

impl When {
    /// The route exists on every server of the API.
    pub const ALWAYS: Self = Self { words: "", holds: |_| true, audience: Audience::Clients };

    /// Under the same condition where operators alone are served.
    pub const fn for_operators(self) -> Self {
        Self { audience: Audience::Operators, ..self }
    }

    /// Whether a server with these settings has the route.
    pub fn is_here(&self, config: &Config) -> bool {
        (self.holds)(config) && (!config.access.operations_only || self.audience == Audience::Operators)
    }
}

/// One method of a route.
#[derive(Clone, Copy)]
pub struct Operation {
    /// The method.
    pub method: Method,
    /// Its name in the OpenAPI document; each has its own.
    pub id: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What its query may say.
    pub query: &'static [Member],
    /// What its body may be; empty: it has none.
    pub bodies: &'static [Body],
    /// What it answers with status 200.
    pub answer: Answer,
    /// Why it may refuse or fail.
    pub errors: Errors,
}

impl Operation {
    /// A GET that answers nothing and cannot fail.
    pub const fn get(id: &'static str) -> Self {
        Self {
            method: Method::Get,
            id,
            summary: "",
            query: &[],
            bodies: &[],
            answer: Answer::Empty,
            errors: Errors::NONE,
        }
    }

    /// A POST with one of these bodies.
    pub const fn post(id: &'static str, bodies: &'static [Body]) -> Self {
        Self { method: Method::Post, bodies, ..Self::get(id) }
    }
}

/// HTTP methods that routes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET, and with it HEAD.
    Get,
    /// POST.
    Post,
    /// DELETE.
    Delete,
}

impl Method {
    /// As HTTP spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// A request body. Its fields are those of [`super::fields`] that name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Of `/v1/chat/completions`.
    Chat,
    /// Of `/v1/completions`.
    Completion,
    /// Of `/v1/messages`.
    Messages,
    /// Of `/v1/messages/count_tokens`.
    CountTokens,
    /// Of `/v1/responses`.
    Responses,
    /// Of `/tokenize`.
    Tokenize,
    /// Of `/detokenize`.
    Detokenize,
    /// Of `/abort_requests`.
    AbortRequests,
    /// Of `/v1/embeddings`.
    Embeddings,
    /// Of `/classify`.
    Classify,
    /// Of `/score` and `/v1/score`.
    Score,
    /// Of `/rerank`, `/v1/rerank` and `/v2/rerank`.
    Rerank,
    /// Of `/pooling`.
    Pooling,
    /// Of `/v2/embed`.
    CohereEmbed,
    /// Of `/start_profile`.
    StartProfile,
    /// Of `/v1/load_lora_adapter`.
    LoadLoraAdapter,
    /// Of `/v1/unload_lora_adapter`.
    UnloadLoraAdapter,
}

/// What a model is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It generates text.
    Generate,
    /// It pools prompts.
    Pool,
}

impl Body {
    /// What the model must be run for; absent: any model will do.
    pub fn purpose(self) -> Option<Purpose> {
        match self {
            Self::Chat | Self::Completion | Self::Messages | Self::Responses => Some(Purpose::Generate),
            Self::Embeddings | Self::Classify | Self::Score | Self::Rerank | Self::Pooling | Self::CohereEmbed => {
                Some(Purpose::Pool)
            }
            _ => None,
        }
    }

    /// Whether fields that are not listed are refused.
    pub fn is_closed(self) -> bool {
        self == Self::Messages
    }

    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Chat,
        Self::Completion,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Tokenize,
        Self::Detokenize,
        Self::AbortRequests,
        Self::Embeddings,
        Self::Classify,
        Self::Score,
        Self::Rerank,
        Self::Pooling,
        Self::CohereEmbed,
        Self::StartProfile,
        Self::LoadLoraAdapter,
        Self::UnloadLoraAdapter,
    ];

    /// Its name in the OpenAPI document.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "ChatCompletionRequest",
            Self::Completion => "CompletionRequest",
            Self::Messages => "MessagesRequest",
            Self::CountTokens => "CountTokensRequest",
            Self::Responses => "ResponsesRequest",
            Self::Tokenize => "TokenizeRequest",
            Self::Detokenize => "DetokenizeRequest",
            Self::AbortRequests => "AbortRequests",
            Self::Embeddings => "EmbeddingsRequest",
            Self::Classify => "ClassifyRequest",
            Self::Score => "ScoreRequest",
            Self::Rerank => "RerankRequest",
            Self::Pooling => "PoolingRequest",
            Self::CohereEmbed => "CohereEmbedRequest",
            Self::StartProfile => "StartProfile",
            Self::LoadLoraAdapter => "LoadLoraAdapterRequest",
            Self::UnloadLoraAdapter => "UnloadLoraAdapterRequest",
        }
    }
}

/// What status 200 brings.
#[derive(Clone, Copy)]
pub enum Answer {
    /// No body.
    Empty,
    /// A JSON object, by its name in [`super::answers`].
    Json(&'static str),
    /// One of these, or with `"stream": true` events, each of which is the last.
    Streamable(&'static [&'static str], &'static [&'static str]),
    /// A text of this media type.
    Text(&'static str),
}

/// Why an operation may refuse or fail, and in which words.
#[derive(Clone, Copy)]
pub struct Errors {
    /// Whose error objects they are.
    pub dialect: ErrorDialect,
    /// The faults that occur.
    pub faults: &'static [Fault],
}

/// Whose error objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorDialect {
    /// vLLM's, which are OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

/// Of routes that read a body.
const READING: &[Fault] =
    &[Fault::BadRequest, Fault::NotFound, Fault::Timeout, Fault::TooLarge, Fault::Unavailable, Fault::Internal];

/// Of routes that generate.
const GENERATING: &[Fault] = &[
    Fault::BadRequest,
    Fault::NotFound,
    Fault::Timeout,
    Fault::TooLarge,
    Fault::NotImplemented,
    Fault::Unavailable,
    Fault::Internal,
];

impl Errors {
    /// There are none.
    pub const NONE: Self = Self::of(&[]);
    /// Of routes that read a body.
    pub const READING: Self = Self::of(READING);
    /// Of routes that generate.
    pub const GENERATING: Self = Self::of(GENERATING);
    /// The same in Anthropic's words.
    pub const ANTHROPIC: Self = Self { dialect: ErrorDialect::Anthropic, faults: GENERATING };

    /// These, in OpenAI's words.
    pub const fn of(faults: &'static [Fault]) -> Self {
        Self { dialect: ErrorDialect::OpenAi, faults }
    }
}

impl ErrorDialect {
    /// The status of a fault.
    pub fn status(self, fault: Fault) -> u16 {
        match self {
            Self::OpenAi => fault.status().as_u16(),
            Self::Anthropic => crate::anthropic::status(fault).as_u16(),
        }
    }

    /// The name of the error object in [`super::answers`].
    pub fn object(self) -> &'static str {
        match self {
            Self::OpenAi => "Error",
            Self::Anthropic => "AnthropicError",
        }
    }
}

impl Route {
    /// The path as OpenAPI writes it.
    pub fn documented_path(&self) -> String {
        self.path.replace("{*", "{")
    }

    /// The names in braces.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|part| Some(part.split_once('}')?.0.trim_start_matches('*')))
    }

    /// Whether it needs a key, where the server has keys.
    pub fn is_guarded(&self) -> bool {
        auth::is_guarded(self.path)
    }
}
