//! `tojson` as Hugging Face defines it: Python's `json.dumps` with `ensure_ascii=False`, no HTML escaping.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, ValueKind},
};

use super::number;

/// Nesting that is still written; Python gives up near 1000.
const MAX_DEPTH: usize = 500;

/// The filter. Arguments: `ensure_ascii`, `indent`, `separators`, `sort_keys`.
pub(crate) fn tojson(value: &Value, positional: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let ensure_ascii = match positional {
        Some(value) => value,
        None => kwargs.get::<Option<Value>>("ensure_ascii")?.unwrap_or_default(),
    };
    let indent: Option<Value> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let sort_keys: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let indent = indent.filter(|indent| !indent.is_none()).map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(indent.as_usize().unwrap_or(0).min(64)),
    });
    let [item, key] = match separators.as_deref() {
        Some([item, key]) => [item.clone(), key.clone()],
        _ if indent.is_some() => [",".to_owned(), ": ".to_owned()],
        _ => [", ".to_owned(), ": ".to_owned()],
    };
    let ascii = ensure_ascii.is_true();
    let mut writer =
        Writer { out: String::new(), indent, item, key, ascii, sort: sort_keys.unwrap_or(false), depth: 0 };
    writer.value(value)?;
    Ok(Value::from(writer.out))
}

struct Writer {
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    ascii: bool,
    sort: bool,
    depth: usize,
}

impl Writer {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value)?,
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value)?,
            ValueKind::Map => self.object(value)?,
            ValueKind::Undefined => return Err(refuse("Object of type Undefined is not JSON serializable")),
            _ => return Err(refuse("Object is not JSON serializable")),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> Result<(), Error> {
        if value.is_integer() {
            let _ = write!(self.out, "{value}");
            return Ok(());
        }
        let float = f64::try_from(value.clone())?;
        let text = match float {
            _ if float.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            _ => number::finite(float),
        };
        self.out.push_str(&text);
        Ok(())
    }

    fn list(&mut self, value: &Value) -> Result<(), Error> {
        self.enter('[')?;
        let mut first = true;
        for item in value.try_iter()? {
            self.separate(&mut first);
            self.value(&item)?;
        }
        self.leave(']', first);
        Ok(())
    }

    fn object(&mut self, value: &Value) -> Result<(), Error> {
        self.enter('{')?;
        let mut entries: Vec<(String, Value)> = Vec::new();
        for key in value.try_iter()? {
            entries.push((key_text(&key), value.get_item(&key)?));
        }
        if self.sort {
            entries.sort_by(|(left, _), (right, _)| left.cmp(right));
        }
        let mut first = true;
        for (key, item) in entries {
            self.separate(&mut first);
            self.string(&key);
            self.out.push_str(&self.key);
            self.value(&item)?;
        }
        self.leave('}', first);
        Ok(())
    }

    fn enter(&mut self, bracket: char) -> Result<(), Error> {
        self.out.push(bracket);
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err(refuse("nested too deeply for JSON")) } else { Ok(()) }
    }

    fn separate(&mut self, first: &mut bool) {
        if !std::mem::take(first) {
            self.out.push_str(&self.item);
        }
        self.new_line();
    }

    fn leave(&mut self, bracket: char, empty: bool) {
        self.depth -= 1;
        if !empty {
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..self.depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                control if control < ' ' => self.escape(control),
                other if self.ascii && !(' '..='~').contains(&other) => self.escape(other),
                other => self.out.push(other),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

/// A key that is no string becomes one as Python does it.
fn key_text(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        _ => key.to_string(),
    }
}

fn refuse(message: &'static str) -> Error {
    Error::new(ErrorKind::BadSerialization, message)
}
