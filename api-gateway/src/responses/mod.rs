//! OpenAI's Responses API: a body of `/v1/responses` becomes a chat ([`request`], [`input`], [`tools`]), what comes of
//! it is gathered as items and told as events ([`assembly`]), and kept for later requests ([`store`]).
//!
//! A response that runs in the background belongs to a task of its own ([`background`]); the others live as long as
//! their connection.

pub mod assembly;
pub mod background;
pub mod events;
pub mod input;
mod item;
pub mod list;
mod logprobs;
pub mod request;
pub mod store;
pub mod stream;
mod tools;
pub mod turn;
