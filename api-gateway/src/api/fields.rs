//! The fields that request bodies may have: what each takes, whether it is honoured, and which test shows it.
//!
//! The rows stand in [`table`]. Sampling parameters, and fields that are refused or steer nothing, come from the tables
//! that the parser itself goes by. A test reads full bodies and fails where the parser asks for a field that has
//! no row, or where a row's field is never asked for.

mod pooling;
pub mod rules;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use serde_json::Value;

use super::{
    operation::Body,
    shape::{Need, Shape},
};
use crate::{
    anthropic::strict,
    openai::{refused, sampling},
    responses::request as response,
};

/// A field of request bodies.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The bodies that have it.
    pub of: &'static [Body],
    /// What it may be.
    pub shape: Shape,
    /// Whether a body must have it.
    pub need: Need,
    /// What counts where a body does not say, as JSON or in words; empty: nothing.
    pub default: &'static str,
    /// What becomes of it.
    pub fate: Fate,
    /// What it does.
    pub help: &'static str,
    /// File and name of a test that shows it: `api-gateway/tests/gateway/shapes.rs: small_routes_answer`.
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/api.md, which a test writes"))]
    pub test: &'static str,
}

/// What becomes of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It does what its help says.
    Honoured,
    /// It is refused by name, unless its value asks for nothing; what to do instead, where there is something.
    Refused(&'static str),
    /// It steers nothing that this server does, for this reason.
    WithoutEffect(&'static str),
}

/// The test that sets each field alone and looks at what the engine is asked for.
const EACH_ALONE: &str = "api-gateway/src/api/fields/tests.rs: each_field_alone_changes_what_is_asked_for";

/// A field that is honoured.
const fn field(name: &'static str, of: &'static [Body], shape: Shape, help: &'static str) -> Field {
    Field { name, of, shape, need: Need::Maybe, default: "", fate: Fate::Honoured, help, test: EACH_ALONE }
}

impl Field {
    /// With a default.
    const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    /// That bodies must have.
    const fn needed(self) -> Self {
        Self { need: Need::Always, ..self }
    }

    /// Shown by a test of its own.
    const fn seen(self, test: &'static str) -> Self {
        Self { test, ..self }
    }

    /// Its default as JSON, where it is JSON.
    pub fn json_default(&self) -> Option<Value> {
        serde_json::from_str(self.default).ok()
    }
}

/// The bodies of OpenAI's two generating routes.
const BOTH: &[Body] = &[Body::Chat, Body::Completion];

/// The fields of a body, sorted by name.
pub fn of(body: Body) -> Vec<Field> {
    let mut fields: Vec<Field> = all().filter(|field| field.of.contains(&body)).collect();
    fields.sort_by_key(|field| field.name);
    fields
}

/// All rows.
fn all() -> impl Iterator<Item = Field> {
    table::FIELDS
        .iter()
        .chain(pooling::FIELDS)
        .copied()
        .chain(parameters())
        .chain(refusals())
        .chain(without_effect())
        .chain(of_responses())
}

/// The sampling parameters that are numbers.
fn parameters() -> impl Iterator<Item = Field> {
    sampling::PARAMETERS.iter().map(|parameter| Field {
        default: if parameter.default() == 0.0 { "0" } else { "1" },
        test: "api-gateway/src/openai/sampling.rs: parameters_are_sorted_and_reach_their_fields",
        ..field(parameter.name, BOTH, parameter.shape(), parameter.help)
    })
}

/// What `/v1/responses` refuses, and what it takes as chats do.
fn of_responses() -> impl Iterator<Item = Field> {
    const OF: &[Body] = &[Body::Responses];
    let refused = response::REFUSED.iter().map(|(name, instead)| Field {
        fate: Fate::Refused(instead),
        test: "api-gateway/tests/gateway/responses.rs: fields_are_honoured_or_refused_by_name",
        ..field(name, OF, Shape::Any, "")
    });
    let of_chats = table::FIELDS.iter().copied().chain(parameters());
    let of_chats = of_chats.filter(|field| field.of.contains(&Body::Chat) && response::ALIKE.contains(&field.name));
    refused.chain(of_chats.map(|field| Field {
        of: OF,
        test: "api-gateway/tests/gateway/responses.rs: fields_of_chats_are_taken_too",
        ..field
    }))
}

fn refusals() -> impl Iterator<Item = Field> {
    refused::names().map(|(name, of, instead)| Field {
        fate: Fate::Refused(instead),
        test: "api-gateway/src/openai/refused.rs: constraints_are_never_ignored",
        ..field(name, of, Shape::Any, "")
    })
}

fn without_effect() -> impl Iterator<Item = Field> {
    let of_messages = strict::WITHOUT_EFFECT.iter().map(|(name, reason)| Field {
        fate: Fate::WithoutEffect(reason),
        test: "api-gateway/src/anthropic/strict.rs: fields_are_honoured_or_refused_by_name",
        ..field(name, &[Body::Messages], Shape::Any, "")
    });
    let of_chats = refused::WITHOUT_EFFECT.iter().map(|(name, reason)| Field {
        fate: Fate::WithoutEffect(reason),
        test: "api-gateway/src/api/fields/tests.rs: fields_without_effect_have_none",
        ..field(name, BOTH, Shape::Any, "")
    });
    of_messages.chain(of_chats)
}
