//! Values as Python prints them: `str(value)`, and `repr` for what is inside containers.

use std::fmt::Write as _;

use minijinja::{Error, Output, State, Value, value::ValueKind};

use super::number;

const MAX_DEPTH: usize = 200;

/// Writes `{{ value }}`.
pub(crate) fn format_output(out: &mut Output<'_>, _state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => out.write_str(&to_string(value))?,
    }
    Ok(())
}

/// The filter `string`: Python's `str(value)`.
pub(crate) fn to_string(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => {
            let mut out = String::new();
            repr(value, &mut out, 0);
            out
        }
    }
}

fn repr(value: &Value, out: &mut String, depth: usize) {
    match value.kind() {
        _ if depth > MAX_DEPTH => out.push_str("..."),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(float) if float.is_nan() => out.push_str("nan"),
            Ok(float) if float.is_finite() => out.push_str(&number::finite(float)),
            _ => {
                let _ = write!(out, "{value}");
            }
        },
        ValueKind::Seq => sequence(value, out, depth),
        ValueKind::Map => map(value, out, depth),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn sequence(value: &Value, out: &mut String, depth: usize) {
    let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
    out.push(open);
    let mut count = 0;
    for item in value.try_iter().into_iter().flatten() {
        if count > 0 {
            out.push_str(", ");
        }
        repr(&item, out, depth + 1);
        count += 1;
    }
    if value.is_tuple() && count == 1 {
        out.push(',');
    }
    out.push(close);
}

fn map(value: &Value, out: &mut String, depth: usize) {
    out.push('{');
    for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        repr(&key, out, depth + 1);
        out.push_str(": ");
        repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1);
    }
    out.push('}');
}

/// Single quotes, unless the text has those and no double ones.
fn quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            same if same == quote => {
                out.push('\\');
                out.push(same);
            }
            control if control < ' ' || ('\u{7f}'..'\u{a1}').contains(&control) => {
                let _ = write!(out, "\\x{:02x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push(quote);
}
