//! OpenAI's shapes: what bodies say ([`fields`], [`params`], [`chat`], [`completion`]), and what answers look like
//! ([`plan`], [`chunk`], [`answer`]).

pub mod answer;
pub mod chat;
pub mod chunk;
pub mod completion;
pub mod fields;
pub mod logprobs;
pub mod params;
pub mod plan;
pub mod prompt;
pub mod refused;
