//! Reads a model's tokenizer files and completes the tokenizer as Hugging Face's loader does.

use std::{
    collections::{BTreeMap, HashSet},
    fs, io,
    path::Path,
};

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer as Reference, processors::template::TemplateProcessing};

use crate::{SpecialTokens, TokenizerError};

/// The reference tokenizer and the special tokens of the folder `dir`.
pub(crate) fn load(dir: &Path) -> Result<(Reference, SpecialTokens), TokenizerError> {
    let path = dir.join("tokenizer.json");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Err(TokenizerError::Missing { path }),
        Err(source) => return Err(TokenizerError::Read { path, source }),
    };
    let config = object(&dir.join("tokenizer_config.json"))?;
    let map = object(&dir.join("special_tokens_map.json"))?;
    let special = SpecialTokens::from_json(&config, &map);
    let unusable =
        |reason: tokenizers::Error| TokenizerError::Unusable { path: path.clone(), reason: reason.to_string() };
    let mut reference = Reference::from_bytes(&bytes).map_err(unusable)?;
    // A serving system truncates by its own rules; padding would be read as prompt.
    reference.with_padding(None).with_truncation(None).map_err(unusable)?;
    add_tokens(&mut reference, &config, &special).map_err(unusable)?;
    set_template(&mut reference, &config, &special).map_err(unusable)?;
    Ok((reference, special))
}

/// Tokens that only `tokenizer_config.json` lists, and named special tokens that `tokenizer.json` does not mark as such.
fn add_tokens(
    reference: &mut Reference,
    config: &Map<String, Value>,
    special: &SpecialTokens,
) -> tokenizers::Result<()> {
    let mut known: HashSet<String> =
        reference.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let listed: BTreeMap<u32, AddedToken> = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
        .collect();
    for token in listed.into_values() {
        if known.insert(token.content.clone()) {
            reference.add_tokens([token])?;
        }
    }
    for text in special.texts() {
        if known.insert(text.to_owned()) {
            reference.add_special_tokens([AddedToken::from(text, true).normalized(false)])?;
        }
    }
    Ok(())
}

fn added_token(json: &Value) -> Option<AddedToken> {
    let flag = |name: &str| json.get(name).and_then(Value::as_bool).unwrap_or(false);
    let token = AddedToken::from(json.get("content")?.as_str()?, flag("special"));
    Some(
        token
            .single_word(flag("single_word"))
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .normalized(flag("normalized")),
    )
}

/// Llama's and Gemma's tokenizer classes rebuild the template from `add_bos_token` and `add_eos_token`, whatever `tokenizer.json` says.
fn set_template(
    reference: &mut Reference,
    config: &Map<String, Value>,
    special: &SpecialTokens,
) -> tokenizers::Result<()> {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    if !matches!(class.trim_end_matches("Fast"), "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer") {
        return Ok(());
    }
    let flag = |name: &str| config.get(name).and_then(Value::as_bool);
    let (Some(add_bos), add_eos) = (flag("add_bos_token"), flag("add_eos_token").unwrap_or(false)) else {
        return Ok(());
    };
    let token = |wanted: bool, role: &str| {
        let text = special.get(role).filter(|_| wanted)?;
        Some((text.to_owned(), reference.token_to_id(text)?))
    };
    let (bos, eos) = (token(add_bos, "bos_token"), token(add_eos, "eos_token"));
    let mut single: Vec<String> = Vec::new();
    single.extend(bos.iter().map(|(text, _)| format!("{text}:0")));
    single.push("$A:0".to_owned());
    single.extend(eos.iter().map(|(text, _)| format!("{text}:0")));
    let pair: Vec<String> = single.iter().cloned().chain(single.iter().map(|piece| second(piece))).collect();
    let mut used: Vec<(String, u32)> = bos.into_iter().chain(eos).collect();
    used.dedup();
    let template = TemplateProcessing::builder()
        .try_single(single)?
        .try_pair(pair)?
        .special_tokens(used)
        .build()
        .map_err(Box::new)?;
    reference.with_post_processor(Some(template));
    Ok(())
}

/// A piece of the template for the second text of a pair.
fn second(piece: &str) -> String {
    match piece.strip_suffix(":0") {
        Some("$A") => "$B:1".to_owned(),
        Some(token) => format!("{token}:1"),
        None => piece.to_owned(),
    }
}

/// A JSON object from a file; empty when there is no file.
fn object(path: &Path) -> Result<Map<String, Value>, TokenizerError> {
    match fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|source| TokenizerError::Json { path: path.to_owned(), source })
        }
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(Map::new()),
        Err(source) => Err(TokenizerError::Read { path: path.to_owned(), source }),
    }
}
