//! OpenAI's shapes: what bodies say ([`fields`], [`params`], [`sampling`],
//! [`chat`], [`completion`]), and what answers look like
//! ([`plan`], [`object`], [`chunk`], [`answer`]).

pub mod answer;
pub mod beams;
pub mod calls;
pub mod chat;
pub mod chunk;
pub mod completion;
pub mod fields;
pub mod formats;
pub mod logprobs;
pub mod message;
pub mod object;
pub mod params;
pub mod plan;
pub mod prompt;
pub mod refused;
pub mod repetition;
pub mod sampling;
pub mod structured;
pub mod tools;
