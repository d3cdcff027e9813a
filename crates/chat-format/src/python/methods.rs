//! Methods of Python's strings that minijinja-contrib lacks.

use minijinja::{Error, ErrorKind, State, Value, value::from_args};
use minijinja_contrib::pycompat;

/// Called for methods that minijinja does not know.
pub(crate) fn unknown_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = string_method(text, method, args)
    {
        return result;
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match method {
        "removeprefix" => one(args).map(|piece| text.strip_prefix(piece.as_str()).unwrap_or(text).into()),
        "removesuffix" => one(args).map(|piece| text.strip_suffix(piece.as_str()).unwrap_or(text).into()),
        "partition" => one(args).map(|piece| match text.split_once(piece.as_str()) {
            Some((before, after)) => list([before, &piece, after]),
            None => list([text, "", ""]),
        }),
        "rpartition" => one(args).map(|piece| match text.rsplit_once(piece.as_str()) {
            Some((before, after)) => list([before, &piece, after]),
            None => list(["", "", text]),
        }),
        "rsplit" => rsplit(text, args),
        "index" => one(args).and_then(|piece| match text.find(piece.as_str()) {
            Some(at) => Ok(text[..at].chars().count().into()),
            None => Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
        }),
        "ljust" | "rjust" | "zfill" => justify(text, method, args),
        _ => return None,
    })
}

fn list<'a>(pieces: impl IntoIterator<Item = &'a str>) -> Value {
    pieces.into_iter().map(|piece| Value::from(piece.to_owned())).collect()
}

fn one(args: &[Value]) -> Result<String, Error> {
    let (piece,): (String,) = from_args(args)?;
    Ok(piece)
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<String>, Option<i64>) = from_args(args)?;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut pieces: Vec<&str> = match &separator {
        Some(separator) if separator.is_empty() => {
            return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
        }
        Some(separator) => text.rsplitn(limit, separator.as_str()).collect(),
        None if limit == usize::MAX => text.split_whitespace().rev().collect(),
        None => text.trim().rsplitn(limit, char::is_whitespace).map(str::trim).collect(),
    };
    pieces.reverse();
    Ok(list(pieces))
}

fn justify(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    let missing = width.min(1 << 16).saturating_sub(text.chars().count());
    let padding = |fill: char| fill.to_string().repeat(missing);
    Ok(match method {
        "ljust" => format!("{text}{}", padding(fill.unwrap_or(' '))),
        "rjust" => format!("{}{text}", padding(fill.unwrap_or(' '))),
        _ => match text.strip_prefix(['-', '+']) {
            Some(digits) => format!("{}{}{digits}", &text[..1], padding('0')),
            None => format!("{}{text}", padding('0')),
        },
    }
    .into())
}
