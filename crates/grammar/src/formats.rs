//! Formats that the engine reads more widely than their RFCs and the validators of clients do, and what excludes the
//! rest.

use serde_json::{Map, Value, json};

/// A day that its year has. There is no year 0: RFC 3339 knows it, most calendars of clients do not.
macro_rules! date {
    () => {
        concat!(
            "(([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(0[13-9]-|1[0-2]-|02-([01]|2[0-8]))|",
            "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
        )
    };
}

/// A label of a host's name: 63 letters, digits and hyphens (RFC 1123). Hyphens at the third and fourth place mark
/// internationalized labels (RFC 5891), which are more than their letters say: there are none.
macro_rules! label {
    () => {
        "[A-Za-z0-9]([A-Za-z0-9-]{0,2}[A-Za-z0-9]|[A-Za-z0-9-]([A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])\
         [A-Za-z0-9-]{0,58}[A-Za-z0-9])?"
    };
}

/// A format, and what a text must be besides.
struct Narrower {
    format: &'static str,
    pattern: &'static str,
    max_length: Option<usize>,
}

const NARROWER: [Narrower; 5] = [
    Narrower { format: "date", pattern: concat!("^", date!()), max_length: None },
    // A leap second is the last one of a day in UTC, which no regular expression knows: there is none.
    Narrower { format: "date-time", pattern: concat!("^", date!(), "[Tt ][0-9]{2}:[0-9]{2}:[0-5]"), max_length: None },
    // RFC 5321 bounds what is before `@`, and by the length of a path the whole.
    Narrower {
        format: "email",
        pattern: concat!("^[^@]{1,64}@(\\[|", label!(), "(\\.", label!(), ")*$)"),
        max_length: Some(254),
    },
    Narrower { format: "hostname", pattern: concat!("^", label!(), "(\\.", label!(), ")*$"), max_length: Some(253) },
    Narrower { format: "time", pattern: "^[0-9]{2}:[0-9]{2}:[0-5]", max_length: None },
];

/// Adds to a schema what its format lacks.
pub(crate) fn narrow(schema: &mut Map<String, Value>) {
    let Some(format) = schema.get("format").and_then(Value::as_str) else { return };
    let Some(narrower) = NARROWER.iter().find(|narrower| narrower.format == format) else { return };
    // With a pattern and lengths of labels and of the whole, the engine gives up to look for a text that is all of it.
    if narrower.max_length.is_some() && schema.contains_key("pattern") {
        return;
    }
    let mut added = Map::from_iter([("pattern".to_owned(), json!(narrower.pattern))]);
    added.extend(narrower.max_length.map(|most| ("maxLength".to_owned(), json!(most))));
    if added.keys().any(|key| schema.contains_key(key)) {
        // Where this is no list, the engine says so.
        if let Value::Array(all) = schema.entry("allOf").or_insert_with(|| json!([])) {
            all.push(Value::Object(added));
        }
    } else {
        schema.extend(added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_schema_says_itself_stays() {
        let of = |mut schema: Value| {
            narrow(schema.as_object_mut().expect("an object"));
            schema
        };
        let time = NARROWER[4].pattern;
        assert_eq!(of(json!({"format": "time"})), json!({"format": "time", "pattern": time}));
        assert_eq!(
            of(json!({"format": "time", "pattern": "Z$"})),
            json!({"format": "time", "pattern": "Z$", "allOf": [{"pattern": time}]})
        );
        let host = json!({"pattern": NARROWER[3].pattern, "maxLength": 253});
        assert_eq!(
            of(json!({"format": "hostname", "maxLength": 9})),
            json!({"format": "hostname", "maxLength": 9, "allOf": [host]})
        );
        let email = json!({"format": "email", "pattern": "@quire\\.example$"});
        assert_eq!(of(email.clone()), email);
        assert_eq!(of(json!({"format": "uuid"})), json!({"format": "uuid"}));
    }
}
