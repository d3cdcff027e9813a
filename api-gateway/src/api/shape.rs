//! What a JSON value may be, as data: written once, shown as a JSON schema ([`schema`]) and in words.

pub mod schema;

use std::{
    fmt,
    ops::{
        Bound::{Excluded, Included, Unbounded},
        RangeBounds,
    },
};

/// What a JSON value may be.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Any value.
    Any,
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool,
    /// This boolean.
    Flag(bool),
    /// A string.
    Text,
    /// A string, with its least and most characters; `usize::MAX` is no bound.
    Letters(usize, usize),
    /// A string that this regular expression matches.
    Pattern(&'static str),
    /// A regular expression.
    Regex,
    /// One of these strings.
    Word(&'static [&'static str]),
    /// A whole number from the first to the second; `i64::MAX` and `i64::MIN` are no bound.
    Whole(i64, i64),
    /// A number.
    Number(Bounds),
    /// A list of them.
    List(&'static Shape),
    /// A list of them, with its least and most items; `usize::MAX` is no bound.
    Several(&'static Shape, usize, usize),
    /// An object from names to them.
    Map(&'static Shape),
    /// An object from names that the first shape takes to values that the second does, with its most members.
    Table(&'static Shape, &'static Shape, usize),
    /// An object with these members; it may have others.
    Object(&'static [Member]),
    /// An object with these members and no others.
    Closed(&'static [Member]),
    /// One of these shapes.
    Either(&'static [Shape]),
    /// An object that the document describes under this name.
    Named(&'static str),
    /// What depends on the model and on the server's flags.
    Served(Served),
}

/// What a server takes that depends on its model and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The id of a token.
    Token,
    /// The same, written as the name of a member.
    TokenName,
    /// A number of log-probabilities.
    Logprobs,
    /// A name of the model.
    Model,
    /// A chat template, where requests may bring one.
    Template,
    /// A budget of reasoning, where it is known how the model writes that.
    Budget,
}

impl Served {
    fn words(self) -> &'static str {
        match self {
            Self::Token => "integer, a token id",
            Self::TokenName => "token id as a string",
            Self::Logprobs => "integer, at least -1; -1: all, where `--max-logprobs` allows it",
            Self::Model | Self::Template => "string",
            Self::Budget => "integer, at least 0",
        }
    }
}

/// A member of an object.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub shape: Shape,
    /// Whether the object must have it.
    pub need: Need,
    /// What it is for.
    pub help: &'static str,
}

/// Whether an object must have a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It is always there, and not null.
    Always,
    /// It may be absent, or null.
    Maybe,
}

/// A member that is always there.
pub const fn has(name: &'static str, shape: Shape, help: &'static str) -> Member {
    Member { name, shape, need: Need::Always, help }
}

/// A member that may be absent or null.
pub const fn may(name: &'static str, shape: Shape, help: &'static str) -> Member {
    Member { name, shape, need: Need::Maybe, help }
}

/// The least and the most of a number.
#[derive(Clone, Copy, Debug)]
pub struct Bounds(pub std::ops::Bound<f64>, pub std::ops::Bound<f64>);

impl Bounds {
    /// Any number.
    pub const NONE: Self = Self(Unbounded, Unbounded);

    /// From `least` to `most`, both included.
    pub const fn between(least: f64, most: f64) -> Self {
        Self(Included(least), Included(most))
    }

    /// Above `least`, up to `most`.
    pub const fn above(least: f64, most: f64) -> Self {
        Self(Excluded(least), Included(most))
    }

    /// Whether a number lies between them.
    pub fn holds(&self, value: f64) -> bool {
        (self.0, self.1).contains(&value)
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Unbounded, Unbounded) => f.write_str("any number"),
            (Excluded(0.0), Unbounded) => f.write_str("greater than zero"),
            (Included(least), Unbounded) => write!(f, "at least {least}"),
            (Excluded(least), Unbounded) => write!(f, "greater than {least}"),
            (Unbounded, Included(most) | Excluded(most)) => write!(f, "at most {most}"),
            (least, most) => {
                let open = if matches!(least, Excluded(_)) { '(' } else { '[' };
                let close = if matches!(most, Excluded(_)) { ')' } else { ']' };
                let (Included(least) | Excluded(least)) = least else { return Ok(()) };
                let (Included(most) | Excluded(most)) = most else { return Ok(()) };
                write!(f, "in {open}{least}, {most}{close}")
            }
        }
    }
}

/// In words: `list of string`, `integer, at least 1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any value"),
            Self::Null => f.write_str("null"),
            Self::Bool => f.write_str("boolean"),
            Self::Flag(value) => write!(f, "`{value}`"),
            Self::Text => f.write_str("string"),
            Self::Letters(1, usize::MAX) => f.write_str("string, not empty"),
            Self::Letters(least, usize::MAX) => write!(f, "string of at least {least} characters"),
            Self::Letters(least, most) => write!(f, "string of {least} to {most} characters"),
            Self::Pattern(pattern) => write!(f, "string as `{pattern}`"),
            Self::Regex => f.write_str("regular expression"),
            Self::Word(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                f.write_str(&quoted.join(" or "))
            }
            Self::Whole(i64::MIN, i64::MAX) => f.write_str("integer"),
            Self::Whole(least, i64::MAX) => write!(f, "integer, at least {least}"),
            Self::Whole(least, most) if least == most => write!(f, "{least}"),
            Self::Whole(least, most) => write!(f, "integer, {least} to {most}"),
            Self::Number(Bounds(Unbounded, Unbounded)) => f.write_str("number"),
            Self::Number(bounds) => write!(f, "number {bounds}"),
            Self::List(item) => write!(f, "list of {item}"),
            Self::Several(item, 1, usize::MAX) => write!(f, "list of {item}, not empty"),
            Self::Several(item, least, usize::MAX) => write!(f, "list of {item}, at least {least}"),
            Self::Several(item, least, most) => write!(f, "list of {item}, {least} to {most}"),
            Self::Map(value) | Self::Table(_, value, _) => write!(f, "object of {value}"),
            Self::Object(_) | Self::Closed(_) => f.write_str("object"),
            Self::Either(shapes) => {
                let words: Vec<_> = shapes.iter().map(ToString::to_string).collect();
                f.write_str(&words.join(", or "))
            }
            Self::Named(name) => f.write_str(name),
            Self::Served(served) => f.write_str(served.words()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_words() {
        let rows = [
            (Shape::Either(&[Shape::Text, Shape::List(&Shape::Text)]), "string, or list of string"),
            (Shape::Whole(0, 5), "integer, 0 to 5"),
            (Shape::Number(Bounds::between(-2.0, 2.0)), "number in [-2, 2]"),
            (Shape::Number(Bounds::above(0.0, 1.0)), "number in (0, 1]"),
            (Shape::Number(Bounds(Excluded(0.0), Unbounded)), "number greater than zero"),
            (Shape::Word(&["a", "b"]), "`a` or `b`"),
        ];
        for (shape, words) in rows {
            assert_eq!(shape.to_string(), words);
        }
    }
}
