//! What a JSON value may be, as data: written once, shown as a JSON schema and in words.

use std::{
    fmt,
    ops::{
        Bound::{Excluded, Included, Unbounded},
        RangeBounds,
    },
};

use serde_json::Value;
use utoipa::openapi::{
    Ref, RefOr,
    schema::{AdditionalProperties, AnyOfBuilder, ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type},
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
    /// A string.
    Text,
    /// One of these strings.
    Word(&'static [&'static str]),
    /// A whole number from the first to the second; `i64::MAX` and `i64::MIN` are no bound.
    Whole(i64, i64),
    /// A number.
    Number(Bounds),
    /// A list of them.
    List(&'static Shape),
    /// An object from names to them.
    Map(&'static Shape),
    /// An object with these members; it may have others.
    Object(&'static [Member]),
    /// One of these shapes.
    Either(&'static [Shape]),
    /// An object that the document describes under this name.
    Named(&'static str),
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
            Self::Text => f.write_str("string"),
            Self::Word(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
                f.write_str(&quoted.join(" or "))
            }
            Self::Whole(i64::MIN, i64::MAX) => f.write_str("integer"),
            Self::Whole(least, i64::MAX) => write!(f, "integer, at least {least}"),
            Self::Whole(least, most) => write!(f, "integer, {least} to {most}"),
            Self::Number(Bounds(Unbounded, Unbounded)) => f.write_str("number"),
            Self::Number(bounds) => write!(f, "number {bounds}"),
            Self::List(item) => write!(f, "list of {item}"),
            Self::Map(value) => write!(f, "object of {value}"),
            Self::Object(_) => f.write_str("object"),
            Self::Either(shapes) => {
                let words: Vec<_> = shapes.iter().map(ToString::to_string).collect();
                f.write_str(&words.join(", or "))
            }
            Self::Named(name) => f.write_str(name),
        }
    }
}

impl Shape {
    /// As a JSON schema.
    pub fn schema(&self) -> RefOr<Schema> {
        let typed = |kind: Type| ObjectBuilder::new().schema_type(kind);
        match self {
            Self::Any => ObjectBuilder::new().schema_type(SchemaType::AnyValue).into(),
            Self::Null => typed(Type::Null).into(),
            Self::Bool => typed(Type::Boolean).into(),
            Self::Text => typed(Type::String).into(),
            Self::Word(words) => typed(Type::String).enum_values(Some(words.iter().copied())).into(),
            Self::Whole(least, most) => typed(Type::Integer)
                .minimum(Some(*least).filter(|least| *least != i64::MIN))
                .maximum(Some(*most).filter(|most| *most != i64::MAX))
                .into(),
            Self::Number(bounds) => number(*bounds).into(),
            Self::List(item) => ArrayBuilder::new().items(item.schema()).into(),
            Self::Map(value) => typed(Type::Object).additional_properties(Some(additional(value))).into(),
            Self::Object(members) => object(members).into(),
            Self::Either(shapes) => {
                shapes.iter().fold(AnyOfBuilder::new(), |either, shape| either.item(shape.schema())).into()
            }
            Self::Named(name) => Ref::from_schema_name(*name).into(),
        }
    }

    /// As the schema of a member.
    pub fn described(&self, need: Need, help: &str, default: Option<Value>) -> RefOr<Schema> {
        let mut schema = self.schema();
        if need == Need::Maybe {
            schema = nullable(schema);
        }
        let words = Some(help).filter(|help| !help.is_empty()).map(str::to_owned);
        match &mut schema {
            RefOr::T(Schema::Object(object)) => (object.description, object.default) = (words, default),
            RefOr::T(Schema::Array(array)) => (array.description, array.default) = (words, default),
            RefOr::T(Schema::AnyOf(either)) => (either.description, either.default) = (words, default),
            RefOr::Ref(reference) => reference.description = words.unwrap_or_default(),
            _ => {}
        }
        schema
    }
}

/// An object with these members.
pub fn object(members: &[Member]) -> ObjectBuilder {
    let empty = ObjectBuilder::new().schema_type(Type::Object);
    members.iter().fold(empty, |object, member| {
        let schema = member.shape.described(member.need, member.help, None);
        let object = object.property(member.name, schema);
        if member.need == Need::Always { object.required(member.name) } else { object }
    })
}

fn number(bounds: Bounds) -> ObjectBuilder {
    let object = ObjectBuilder::new().schema_type(Type::Number);
    let object = match bounds.0 {
        Included(least) => object.minimum(Some(least)),
        Excluded(least) => object.exclusive_minimum(Some(least)),
        Unbounded => object,
    };
    match bounds.1 {
        Included(most) => object.maximum(Some(most)),
        Excluded(most) => object.exclusive_maximum(Some(most)),
        Unbounded => object,
    }
}

fn additional(value: &Shape) -> AdditionalProperties<Schema> {
    AdditionalProperties::RefOr(value.schema())
}

/// The same, or null.
fn nullable(schema: RefOr<Schema>) -> RefOr<Schema> {
    match schema {
        RefOr::T(Schema::Object(mut object)) if matches!(object.schema_type, SchemaType::Type(_)) => {
            if let SchemaType::Type(kind) = object.schema_type.clone() {
                object.schema_type = SchemaType::Array(vec![kind, Type::Null]);
            }
            if let Some(words) = &mut object.enum_values {
                words.push(Value::Null);
            }
            Schema::Object(object).into()
        }
        RefOr::T(Schema::AnyOf(mut either)) => {
            either.items.push(Shape::Null.schema());
            Schema::AnyOf(either).into()
        }
        // Any value: null is one.
        RefOr::T(Schema::Object(object)) => Schema::Object(object).into(),
        other => AnyOfBuilder::new().item(other).item(Shape::Null.schema()).into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(shape: Shape, need: Need) -> Value {
        serde_json::to_value(shape.described(need, "", None)).expect("JSON")
    }

    #[test]
    fn shapes_are_schemas() {
        const TEXTS: Shape = Shape::Either(&[Shape::Text, Shape::List(&Shape::Text)]);
        const OPTIONS: Shape = Shape::Object(&[has("a", Shape::Bool, "Yes or no"), may("b", Shape::Any, "")]);
        let rows = [
            (Shape::Whole(1, i64::MAX), json!({"type": "integer", "minimum": 1})),
            (Shape::Number(Bounds::above(0.0, 1.0)), json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1})),
            (TEXTS, json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})),
            (
                OPTIONS,
                json!({"type": "object", "required": ["a"], "properties": {
                    "a": {"type": "boolean", "description": "Yes or no"}, "b": {}}}),
            ),
            (Shape::Map(&Shape::Text), json!({"type": "object", "additionalProperties": {"type": "string"}})),
            (Shape::Named("Usage"), json!({"$ref": "#/components/schemas/Usage"})),
        ];
        for (shape, expected) in rows {
            assert_eq!(schema(shape, Need::Always), expected, "{shape}");
        }
    }

    #[test]
    fn what_may_be_absent_may_be_null() {
        let rows = [
            (Shape::Text, json!({"type": ["string", "null"]})),
            (Shape::Word(&["a"]), json!({"type": ["string", "null"], "enum": ["a", null]})),
            (
                Shape::List(&Shape::Bool),
                json!({"anyOf": [{"type": "array", "items": {"type": "boolean"}}, {"type": "null"}]}),
            ),
            (Shape::Any, json!({})),
        ];
        for (shape, expected) in rows {
            assert_eq!(schema(shape, Need::Maybe), expected, "{shape}");
        }
    }

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
