//! Shapes as JSON schemas, of one server: where a shape depends on what is served, its limits say what counts.

use std::ops::Bound::{Excluded, Included, Unbounded};

use serde_json::Value;
use utoipa::openapi::{
    Ref, RefOr,
    schema::{AdditionalProperties, AnyOfBuilder, ArrayBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat},
    schema::{SchemaType, Type},
};

use super::{Bounds, Member, Need, Served, Shape};
use crate::openai::params::Limits;

impl Shape {
    /// As a JSON schema.
    pub fn schema(&self, limits: &Limits) -> RefOr<Schema> {
        match self {
            Self::Any => ObjectBuilder::new().schema_type(SchemaType::AnyValue).into(),
            Self::Null => typed(Type::Null).into(),
            Self::Bool => typed(Type::Boolean).into(),
            Self::Flag(value) => typed(Type::Boolean).enum_values(Some([*value])).into(),
            Self::Text | Self::Letters(..) | Self::Pattern(_) | Self::Regex | Self::Word(_) => self.text().into(),
            Self::Whole(least, most) => whole(*least, *most).into(),
            Self::Number(bounds) => number(*bounds).into(),
            Self::List(item) => ArrayBuilder::new().items(item.schema(limits)).into(),
            Self::Several(item, least, most) => ArrayBuilder::new()
                .items(item.schema(limits))
                .min_items(Some(*least).filter(|least| *least > 0))
                .max_items(Some(*most).filter(|most| *most != usize::MAX))
                .into(),
            Self::Map(value) => map(value, limits).into(),
            Self::Table(name, value, most) => {
                let bound = Some(*most).filter(|most| *most != usize::MAX);
                let table = map(value, limits).max_properties(bound);
                match name.schema(limits) {
                    RefOr::T(name) => table.property_names(Some(name)).into(),
                    RefOr::Ref(_) => table.into(),
                }
            }
            Self::Object(members) => object(members, limits).into(),
            Self::Closed(members) => closed(object(members, limits)).into(),
            Self::Either(shapes) => {
                shapes.iter().fold(AnyOfBuilder::new(), |either, shape| either.item(shape.schema(limits))).into()
            }
            Self::Named(name) => Ref::from_schema_name(*name).into(),
            Self::Served(served) => served.schema(limits),
        }
    }

    fn text(&self) -> ObjectBuilder {
        let text = typed(Type::String);
        match self {
            Self::Letters(least, most) => text
                .min_length(Some(*least).filter(|least| *least > 0))
                .max_length(Some(*most).filter(|most| *most != usize::MAX)),
            Self::Pattern(pattern) => text.pattern(Some(*pattern)),
            Self::Regex => text.format(Some(SchemaFormat::KnownFormat(KnownFormat::Regex))),
            Self::Word(words) => text.enum_values(Some(words.iter().copied())),
            _ => text,
        }
    }

    /// As the schema of a member.
    pub fn described(&self, need: Need, help: &str, default: Option<Value>, limits: &Limits) -> RefOr<Schema> {
        let mut schema = self.schema(limits);
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

impl Served {
    fn schema(self, limits: &Limits) -> RefOr<Schema> {
        let last = match limits.vocab_size {
            0 => u32::MAX,
            size => size - 1,
        };
        match self {
            Self::Token => whole(0, last.into()).into(),
            Self::TokenName => typed(Type::String).pattern(Some(format!("^({})$", up_to(last)))).into(),
            Self::Logprobs => {
                let most = i64::from(limits.max_logprobs);
                let all = most < 0 || limits.vocab_size > 0 && most >= i64::from(limits.vocab_size);
                if all { whole(-1, i32::MAX.into()).into() } else { whole(0, most).into() }
            }
            Self::Model => {
                let names = limits.served_names.iter().chain(limits.adapters.iter());
                typed(Type::String).enum_values(Some(names.cloned())).into()
            }
            Self::Template if limits.trust_chat_template => Shape::Text.schema(limits),
            Self::Template => Shape::Letters(0, 0).schema(limits),
            Self::Budget if limits.formats.reasoning.is_some() => whole(0, u32::MAX.into()).into(),
            Self::Budget => Shape::Null.schema(limits),
        }
    }
}

/// A regular expression of the whole numbers from 0 to `last`.
fn up_to(last: u32) -> String {
    let digits = last.to_string();
    let mut ways: Vec<String> = vec!["0".to_owned()];
    ways.extend((1..digits.len()).map(|shorter| format!("[1-9][0-9]{{{}}}", shorter - 1)));
    // As long as `last`: alike up to some digit, smaller there.
    for (at, digit) in digits.bytes().enumerate() {
        let least = if at == 0 { b'1' } else { b'0' };
        if digit > least {
            let rest = digits.len() - at - 1;
            ways.push(format!("{}[{}-{}][0-9]{{{rest}}}", &digits[..at], least as char, (digit - 1) as char));
        }
    }
    ways.push(digits);
    ways.join("|")
}

/// An object with these members.
pub fn object(members: &[Member], limits: &Limits) -> ObjectBuilder {
    members.iter().fold(typed(Type::Object), |object, member| {
        let schema = member.shape.described(member.need, member.help, None, limits);
        let object = object.property(member.name, schema);
        if member.need == Need::Always { object.required(member.name) } else { object }
    })
}

/// The same without other members.
pub fn closed(object: ObjectBuilder) -> ObjectBuilder {
    object.additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
}

fn typed(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

fn map(value: &Shape, limits: &Limits) -> ObjectBuilder {
    typed(Type::Object).additional_properties(Some(AdditionalProperties::RefOr(value.schema(limits))))
}

fn whole(least: i64, most: i64) -> ObjectBuilder {
    typed(Type::Integer)
        .minimum(Some(least).filter(|least| *least != i64::MIN))
        .maximum(Some(most).filter(|most| *most != i64::MAX))
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

/// A schema's values, or null.
fn nullable(schema: RefOr<Schema>) -> RefOr<Schema> {
    let null = || RefOr::from(typed(Type::Null));
    match schema {
        RefOr::T(Schema::Object(mut object)) if matches!(object.schema_type, SchemaType::Type(_)) => {
            if object.schema_type == SchemaType::Type(Type::Null) {
                return Schema::Object(object).into();
            }
            if let SchemaType::Type(kind) = object.schema_type.clone() {
                object.schema_type = SchemaType::Array(vec![kind, Type::Null]);
            }
            if let Some(words) = &mut object.enum_values {
                words.push(Value::Null);
            }
            Schema::Object(object).into()
        }
        RefOr::T(Schema::AnyOf(mut either)) => {
            either.items.push(null());
            Schema::AnyOf(either).into()
        }
        // Any value: null is one.
        RefOr::T(Schema::Object(object)) => Schema::Object(object).into(),
        other => AnyOfBuilder::new().item(other).item(null()).into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{
        fields::tests::limits,
        shape::{has, may},
    };

    fn schema(shape: Shape, need: Need) -> Value {
        serde_json::to_value(shape.described(need, "", None, &limits())).expect("JSON")
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
            (Shape::Letters(1, usize::MAX), json!({"type": "string", "minLength": 1})),
            (Shape::Flag(true), json!({"type": "boolean", "enum": [true]})),
            (
                Shape::Several(&Shape::Bool, 1, 4),
                json!({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4}),
            ),
            (Shape::Closed(&[]), json!({"type": "object", "additionalProperties": false})),
            (Shape::Served(Served::Token), json!({"type": "integer", "minimum": 0, "maximum": 99})),
            (Shape::Served(Served::Logprobs), json!({"type": "integer", "minimum": 0, "maximum": 20})),
            (Shape::Served(Served::Model), json!({"type": "string", "enum": ["wren"]})),
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
    fn names_of_tokens_are_those_of_the_vocabulary() {
        assert_eq!(up_to(0), "0|0");
        assert_eq!(up_to(99), "0|[1-9][0-9]{0}|[1-8][0-9]{1}|9[0-8][0-9]{0}|99");
        assert_eq!(up_to(305), "0|[1-9][0-9]{0}|[1-9][0-9]{1}|[1-2][0-9]{2}|30[0-4][0-9]{0}|305");
    }
}
