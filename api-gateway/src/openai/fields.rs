//! A request body as fields that are read one at a time, so that every error can name its field, long texts are not
//! copied, and what was never read is known.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::{Map, Value, value::RawValue};

use crate::error::ApiError;

/// The fields of a JSON object.
pub struct Fields<'a> {
    entries: Vec<Entry<'a>>,
}

struct Entry<'a> {
    name: String,
    raw: &'a RawValue,
    read: bool,
}

impl<'a> Fields<'a> {
    /// Splits a body into fields; their values are only scanned.
    pub fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(body).map_err(|error| {
            ApiError::body(format!("The request body is not valid UTF-8 (byte {}).", error.valid_up_to()))
        })?;
        serde_json::from_str(text)
            .map_err(|error| ApiError::body(format!("The request body is not a valid JSON object: {error}")))
    }

    /// Members of an object in a field, as if they were fields of the body themselves: those of these names, of which
    /// the body may not say the same. Others are refused by name.
    pub fn lift(&mut self, name: &'static str, known: impl Fn(&str) -> bool) -> Result<(), ApiError> {
        let Some(text) = self.raw(name) else { return Ok(()) };
        let inner: Self = serde_json::from_str(text).map_err(|_| wrong(name, text, "an object"))?;
        for entry in inner.entries {
            let member = &entry.name;
            if !known(member) {
                return Err(ApiError::field(name, format!("`{name}` has no `{member}` here: leave it out.")));
            }
            if self.entries.iter().any(|other| other.name == *member) {
                let message = format!("`{member}` stands in the request and in `{name}`: leave one of them out.");
                return Err(ApiError::field(name, message));
            }
            self.entries.push(entry);
        }
        Ok(())
    }

    /// The raw text of a field that is present and not null.
    pub fn raw(&mut self, name: &str) -> Option<&'a str> {
        #[cfg(test)]
        asked::note(name);
        let entry = self.entries.iter_mut().find(|entry| entry.name == name)?;
        entry.read = true;
        Some(entry.raw.get()).filter(|text| *text != "null")
    }

    /// A field of any type that JSON maps to; errors say what was expected.
    pub fn value<T: DeserializeOwned>(&mut self, name: &str, expected: &str) -> Result<Option<T>, ApiError> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|_| wrong(name, text, expected))
    }

    /// `true` or `false`; absent: `default`.
    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        Ok(self.value(name, "true or false")?.unwrap_or(default))
    }

    /// A text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.value(name, "a string")
    }

    /// A finite number.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, ApiError> {
        let number: Option<f64> = self.value(name, "a number")?;
        Ok(number)
    }

    /// A whole number; `16.0` is one.
    pub fn whole(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        whole(text).map(Some).ok_or_else(|| wrong(name, text, "a whole number of at most 64 bits"))
    }

    /// A whole number within `range`.
    pub fn whole_in(&mut self, name: &str, range: std::ops::RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        match self.whole(name)? {
            Some(value) if !range.contains(&value) => {
                let (least, most) = (range.start(), range.end());
                let bounds = match (*least, *most) {
                    (least, i64::MAX) => format!("at least {least}"),
                    (least, most) => format!("between {least} and {most}"),
                };
                Err(ApiError::field(name, format!("`{name}` must be {bounds}, got {value}.")))
            }
            other => Ok(other),
        }
    }

    /// A list of token ids.
    pub fn token_ids(&mut self, name: &str) -> Result<Option<Vec<u32>>, ApiError> {
        self.value(name, "a list of token ids")
    }

    /// One text or a list of texts.
    pub fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiError> {
        match self.raw(name) {
            Some(text) if text.starts_with('"') => Ok(self.text(name)?.map(|text| vec![text])),
            _ => self.value(name, "a string or a list of strings"),
        }
    }

    /// A JSON object.
    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, ApiError> {
        self.value(name, "an object")
    }

    /// Names of the fields that were never asked for.
    pub fn unread(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter(|entry| !entry.read).map(|entry| entry.name.as_str())
    }
}

/// A whole number written as an integer or as a float without fraction.
fn whole(text: &str) -> Option<i64> {
    if let Ok(value) = text.parse() {
        return Some(value);
    }
    let float: f64 = serde_json::from_str(text).ok()?;
    (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
}

/// The error for a value of the wrong type; shows the beginning of what came.
pub fn wrong(name: &str, text: &str, expected: &str) -> ApiError {
    let mut shown: String = text.chars().take(64).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    ApiError::field(name, format!("`{name}` must be {expected}, got {shown}"))
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut entries: Vec<Entry<'de>> = Vec::with_capacity(16);
        while let Some((name, raw)) = map.next_entry::<String, &'de RawValue>()? {
            // Of fields that come twice the last one counts, as in Python. Looking for twins costs a look at each; past
            // a number that no request has, it is refused instead.
            if entries.len() >= 512 {
                return Err(serde::de::Error::custom("too many fields"));
            }
            match entries.iter_mut().find(|entry| entry.name == name) {
                Some(twin) => twin.raw = raw,
                None => entries.push(Entry { name, raw, read: false }),
            }
        }
        Ok(Fields { entries })
    }
}

/// Which fields a reader asks for, so that a test can compare them with the documented ones.
#[cfg(test)]
pub mod asked {
    use std::{cell::RefCell, collections::BTreeSet};

    thread_local! {
        static NAMES: RefCell<BTreeSet<String>> = RefCell::default();
    }

    pub(super) fn note(name: &str) {
        NAMES.with_borrow_mut(|names| names.insert(name.to_owned()));
    }

    /// The names that this thread asks for while `read` runs.
    pub fn during(read: impl FnOnce()) -> BTreeSet<String> {
        NAMES.take();
        read();
        NAMES.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_no_objects_are_refused() {
        let rows: [&[u8]; 9] =
            [b"", b"[]", b"\"x\"", b"{", b"{\"a\":}", b"{\"a\":NaN}", b"{'a':1}", b"{\"a\":1}x", b"{\"a\":\"\xff\"}"];
        for body in rows {
            let error = Fields::parse(body).err().expect("refused");
            assert_eq!(error.fault.status(), 400, "{body:?}");
        }
    }

    #[test]
    fn wrong_types_name_the_field() {
        let body = br#"{"a":"x","b":1.5,"c":[1,-1],"d":1e999,"e":{"f":1},"f":"\ud800","g":3.0,"h":null,"i":true}"#;
        let mut fields = Fields::parse(body).expect("an object");
        assert_eq!(fields.number("a").unwrap_err().param.as_deref(), Some("a"));
        assert_eq!(fields.whole("b").unwrap_err().param.as_deref(), Some("b"));
        assert_eq!(fields.token_ids("c").unwrap_err().param.as_deref(), Some("c"));
        assert_eq!(fields.number("d").unwrap_err().param.as_deref(), Some("d"));
        assert_eq!(fields.texts("e").unwrap_err().param.as_deref(), Some("e"));
        assert_eq!(fields.text("f").unwrap_err().param.as_deref(), Some("f"));
        assert_eq!(fields.whole("g"), Ok(Some(3)));
        assert_eq!(fields.flag("h", true), Ok(true));
        assert_eq!(fields.whole("i").unwrap_err().param.as_deref(), Some("i"));
        assert_eq!(fields.whole("absent"), Ok(None));
        assert_eq!(fields.unread().count(), 0);
    }

    #[test]
    fn members_are_fields() {
        let known = |name: &str| name == "top_k";
        let mut fields = Fields::parse(br#"{"x":{"top_k":3},"n":1}"#).expect("an object");
        fields.lift("x", known).expect("known");
        assert_eq!(fields.whole("top_k"), Ok(Some(3)));
        for body in [r#"{"x":{"plugin":3}}"#, r#"{"x":{"top_k":3},"top_k":3}"#, r#"{"x":[1]}"#] {
            let error = Fields::parse(body.as_bytes()).expect("an object").lift("x", known).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("x"), "{body}");
        }
    }

    #[test]
    fn the_last_twin_counts() {
        let mut fields = Fields::parse(br#"{"n":1,"n":2,"z":0}"#).expect("an object");
        assert_eq!(fields.whole("n"), Ok(Some(2)));
        assert_eq!(fields.unread().collect::<Vec<_>>(), ["z"]);
    }
}
