//! The prompts of `/v1/completions` and `/tokenize`: a text, texts, token ids, or lists of them.

use proto::{Prompt, TokenIds, prompt};
use serde_json::value::RawValue;

use super::{
    fields::{Fields, wrong},
    params::Limits,
};
use crate::error::ApiError;

const NAME: &str = "prompt";
const EXPECTED: &str = "a string, a list of strings, a list of token ids or a list of lists of token ids";

/// Reads the `prompt` field: one prompt or many, none of them empty.
pub fn read(fields: &mut Fields<'_>, limits: &Limits, add_special_tokens: bool) -> Result<Vec<Prompt>, ApiError> {
    let text = fields.raw(NAME).ok_or_else(empty)?;
    let kinds = parse(text, limits.max_prompts)?;
    if kinds.is_empty() {
        return Err(empty());
    }
    kinds.iter().try_for_each(|kind| check(kind, limits))?;
    Ok(kinds.into_iter().map(|kind| Prompt { kind: Some(kind), add_special_tokens, suffix: None }).collect())
}

/// The first characters tell the four forms apart. Prompts are counted before any is read: a short body may hold
/// millions.
fn parse(text: &str, most: usize) -> Result<Vec<prompt::Kind>, ApiError> {
    let inside = text.strip_prefix('[').map(|rest| rest.trim_start().as_bytes().first().copied());
    if let Some(Some(b'"' | b'[')) = inside {
        let count = serde_json::from_str::<Vec<&RawValue>>(text).map_or(0, |all| all.len());
        if count > most {
            let message = format!("`{NAME}`: {count} prompts, more than the {most} requests that are taken at a time.");
            return Err(ApiError::field(NAME, message));
        }
    }
    let parsed = match inside {
        None => serde_json::from_str(text).map(|text| vec![prompt::Kind::Text(text)]),
        Some(Some(b'"')) => {
            serde_json::from_str::<Vec<String>>(text).map(|all| all.into_iter().map(prompt::Kind::Text).collect())
        }
        Some(Some(b'[')) => serde_json::from_str::<Vec<Vec<u32>>>(text).map(|all| all.into_iter().map(ids).collect()),
        Some(Some(b']')) => Ok(Vec::new()),
        _ => serde_json::from_str::<Vec<u32>>(text).map(|one| vec![ids(one)]),
    };
    parsed.map_err(|_| wrong(NAME, text, EXPECTED))
}

fn ids(ids: Vec<u32>) -> prompt::Kind {
    prompt::Kind::Ids(TokenIds { ids })
}

fn check(kind: &prompt::Kind, limits: &Limits) -> Result<(), ApiError> {
    match kind {
        prompt::Kind::Text(text) if text.is_empty() => Err(empty()),
        prompt::Kind::Ids(ids) if ids.ids.is_empty() => Err(empty()),
        prompt::Kind::Ids(ids) => ids.ids.iter().try_for_each(|id| limits.check_token(NAME, *id)),
        prompt::Kind::Text(_) | prompt::Kind::Chat(_) | prompt::Kind::Pair(_) => Ok(()),
    }
}

fn empty() -> ApiError {
    ApiError::field(NAME, "`prompt` must be provided and non-empty: a text or token ids.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_forms() {
        let text = |text: &str| prompt::Kind::Text(text.into());
        let rows = [
            (r#""hi""#, vec![text("hi")]),
            (r#"["a", "b"]"#, vec![text("a"), text("b")]),
            ("[ 1, 2]", vec![ids(vec![1, 2])]),
            ("[[1],[2,3]]", vec![ids(vec![1]), ids(vec![2, 3])]),
            ("[]", vec![]),
        ];
        for (json, expected) in rows {
            assert_eq!(parse(json, 2).expect(json), expected, "{json}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for json in [
            "1",
            "{}",
            "[1,\"a\"]",
            "[\"a\",1]",
            "[-1]",
            "[1.5]",
            "[4294967296]",
            "[[1],2]",
            "true",
            "[null]",
            "[\"a\",\"b\",\"c\"]",
        ] {
            assert_eq!(parse(json, 2).expect_err(json).param.as_deref(), Some("prompt"), "{json}");
        }
    }
}
