//! What is wrong with a grammar, or with going on with it.

use thiserror::Error;

/// A constraint that cannot be compiled: the request's fault.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GrammarError {
    /// Its text is longer than is looked at.
    #[error("the constraint has {bytes} bytes, more than the {limit} that are compiled")]
    TooLong {
        /// Bytes of it.
        bytes: usize,
        /// How many are taken.
        limit: usize,
    },
    /// A JSON schema that is no JSON, or no object or boolean.
    #[error("the JSON schema is not valid JSON: {reason}")]
    NotJson {
        /// What the parser said.
        reason: String,
    },
    /// A list of choices without a choice, or with an empty one.
    #[error("a choice needs at least one string, and none may be empty")]
    NoChoice,
    /// A key of a schema that would loosen the constraint.
    #[error("`{key}` is not part of JSON Schema and is not accepted in one")]
    Reserved {
        /// The key.
        key: &'static str,
    },
    /// Options of `oneOf` of which two may hold at once.
    #[error(
        "the constraint cannot be compiled: `oneOf` needs options that exclude each other by their types or by a \
         required member with different constants; use `anyOf`"
    )]
    OneOf,
    /// Members that are counted, but may be written twice.
    #[error(
        "the constraint cannot be compiled: `minProperties` may be at most {most} here, as a name that `required` does \
         not list could be written twice; list names in `required`, or lower `minProperties`"
    )]
    Counted {
        /// What it may be.
        most: usize,
    },
    /// A GBNF grammar that cannot be read.
    #[error("line {line} of the grammar: {reason}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A structural tag whose format cannot be read.
    #[error("the structural tag: {reason}")]
    StructuralTag {
        /// What is wrong with it.
        reason: String,
    },
    /// The engine refuses it: a feature that it lacks, a contradiction, or a bound that is exceeded.
    #[error("the constraint cannot be compiled: {reason}")]
    Refused {
        /// What the engine said.
        reason: String,
    },
}

/// A sequence that cannot go on under its constraint.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MatchError {
    /// Computing the next tokens exceeds the bounds of time or memory.
    #[error("the constraint is too complex to continue: {reason}")]
    TooComplex {
        /// What the engine said.
        reason: String,
    },
    /// A token that the mask had forbidden.
    #[error("token {token} is not allowed by the constraint")]
    Forbidden {
        /// The token.
        token: u32,
    },
}
