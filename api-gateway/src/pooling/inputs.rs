//! Inputs of routes that pool: a text, texts, token ids, lists of them, or a conversation.

use proto::{PoolingInfo, Prompt, TokenIds, prompt::Kind};
use serde_json::value::RawValue;

use crate::{
    error::ApiError,
    openai::{
        chat::Conversation,
        fields::{Fields, wrong},
        params::Limits,
    },
};

const EXPECTED: &str = "a string, a list of strings, a list of token ids or a list of lists of token ids";

/// Reads the inputs under `name`, or the conversation under `messages`.
pub fn read(fields: &mut Fields<'_>, name: &str, limits: &Limits) -> Result<Vec<Prompt>, ApiError> {
    let text = fields.raw(name);
    if fields.raw("messages").is_some() {
        if text.is_some() {
            return Err(ApiError::field("messages", format!("`{name}` and `messages` exclude each other.")));
        }
        return conversation(fields, limits).map(|prompt| vec![prompt]);
    }
    let text = text.ok_or_else(|| ApiError::field(name, format!("`{name}` must be provided.")))?;
    let kinds = parse(name, text, limits.max_prompts)?;
    if kinds.is_empty() {
        return Err(ApiError::field(name, format!("`{name}` must not be empty.")));
    }
    for kind in &kinds {
        if let Kind::Ids(ids) = kind {
            ids.ids.iter().try_for_each(|id| limits.check_token(name, *id))?;
            if ids.ids.is_empty() {
                return Err(ApiError::field(name, format!("`{name}` must not contain an empty list of tokens.")));
            }
        }
    }
    let add_special_tokens = fields.flag("add_special_tokens", true)?;
    Ok(kinds.into_iter().map(|kind| Prompt { kind: Some(kind), add_special_tokens, suffix: None }).collect())
}

/// A conversation that is not to be continued.
fn conversation(fields: &mut Fields<'_>, limits: &Limits) -> Result<Prompt, ApiError> {
    let goes_on = fields.flag("add_generation_prompt", false)?;
    let mut prompt = Conversation::read(fields, limits)?.prompt;
    if let Some(Kind::Chat(chat)) = &mut prompt.kind {
        chat.add_generation_prompt = goes_on;
    }
    Ok(prompt)
}

/// The first characters tell the four forms apart. Inputs are counted before any is read: a short body may hold
/// millions.
fn parse(name: &str, text: &str, most: usize) -> Result<Vec<Kind>, ApiError> {
    let inside = text.strip_prefix('[').map(|rest| rest.trim_start().as_bytes().first().copied());
    if let Some(Some(b'"' | b'[')) = inside {
        let count = serde_json::from_str::<Vec<&RawValue>>(text).map_or(0, |all| all.len());
        check_count(name, count, most)?;
    }
    let ids = |ids| Kind::Ids(TokenIds { ids });
    let parsed = match inside {
        None => serde_json::from_str(text).map(|text| vec![Kind::Text(text)]),
        Some(Some(b'"')) => {
            serde_json::from_str::<Vec<String>>(text).map(|all| all.into_iter().map(Kind::Text).collect())
        }
        Some(Some(b'[')) => serde_json::from_str::<Vec<Vec<u32>>>(text).map(|all| all.into_iter().map(ids).collect()),
        Some(Some(b']')) => Ok(Vec::new()),
        _ => serde_json::from_str::<Vec<u32>>(text).map(|one| vec![ids(one)]),
    };
    parsed.map_err(|_| wrong(name, text, EXPECTED))
}

/// Refuses more inputs than requests are taken at a time.
pub fn check_count(name: &str, count: usize, most: usize) -> Result<(), ApiError> {
    match count > most {
        true => {
            let message = format!("`{name}`: {count} inputs, more than the {most} requests that are taken at a time.");
            Err(ApiError::field(name, message))
        }
        false => Ok(()),
    }
}

/// Puts one of the model's prompts before texts: the one that `named` names, else the model's default.
pub fn prepend(prompts: &mut [Prompt], info: &PoolingInfo, named: Option<&str>) -> Result<(), ApiError> {
    let name = named.unwrap_or(&info.default_prompt);
    if name.is_empty() {
        return Ok(());
    }
    let Some(before) = info.prompts.get(name) else {
        let mut known: Vec<&str> = info.prompts.keys().map(String::as_str).collect();
        known.sort_unstable();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("`prompt_name`: the model has no prompt of the name `{name}`; there are: {known}.");
        return Err(ApiError::field("prompt_name", message));
    };
    for prompt in prompts {
        if let Some(Kind::Text(text)) = &mut prompt.kind {
            text.insert_str(0, before);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_forms() {
        let text = |text: &str| Kind::Text(text.into());
        let ids = |ids: &[u32]| Kind::Ids(TokenIds { ids: ids.to_vec() });
        let rows = [
            (r#""hi""#, vec![text("hi")]),
            (r#"["a", "b"]"#, vec![text("a"), text("b")]),
            ("[ 1, 2]", vec![ids(&[1, 2])]),
            ("[[1],[2,3]]", vec![ids(&[1]), ids(&[2, 3])]),
            ("[]", vec![]),
        ];
        for (json, expected) in rows {
            assert_eq!(parse("input", json, 2).expect(json), expected, "{json}");
        }
        for json in ["1", "{}", "[1,\"a\"]", "[-1]", "[[1],2]", "[\"a\",\"b\",\"c\"]"] {
            assert_eq!(parse("input", json, 2).expect_err(json).param.as_deref(), Some("input"), "{json}");
        }
    }

    #[test]
    fn prompts_go_before_texts() {
        let info = PoolingInfo {
            prompts: [("query".to_owned(), "Find: ".to_owned()), ("passage".to_owned(), String::new())].into(),
            default_prompt: "query".into(),
            ..PoolingInfo::default()
        };
        let prompt = |kind| Prompt { kind: Some(kind), ..Prompt::default() };
        let mut prompts = [prompt(Kind::Text("x".into())), prompt(Kind::Ids(TokenIds { ids: vec![1] }))];
        let before = prompts.clone();
        prepend(&mut prompts, &info, Some("passage")).expect("a prompt");
        assert_eq!(prompts, before);
        prepend(&mut prompts, &info, None).expect("the default");
        assert_eq!(prompts, [prompt(Kind::Text("Find: x".into())), before[1].clone()]);
        let refusal = prepend(&mut prompts, &info, Some("other")).unwrap_err();
        assert!(refusal.message.contains("passage, query"), "{refusal}");
    }
}
