//! The API as data: every route, request field and answer is described once, in tables. `/openapi.json` ([`openapi`]),
//! `/docs` ([`page`]) and docs/api.md are made from them.
//!
//! A route describes its [`operation`]s in its own file; the fields that bodies may have stand in [`fields`], the
//! objects of answers in [`answers`], both as [`shape`]s; [`absent`] has vLLM's routes that this server lacks.

pub mod absent;
pub mod answers;
pub mod fields;
#[cfg(test)]
mod markdown;
pub mod openapi;
pub mod operation;
pub mod page;
pub mod shape;
