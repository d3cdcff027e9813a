//! Reads a model's tokenizer files and completes the tokenizer as Hugging Face's loader does.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer as Reference, processors::template::TemplateProcessing};

use crate::{
    SpecialTokens, TokenizerError,
    files::{object, read},
    formats::{self, Beside},
};

/// The reference tokenizer and the special tokens of a model: a folder, or a GGUF file.
pub(crate) fn load(model: &Path) -> Result<(Reference, SpecialTokens), TokenizerError> {
    let config = object(&model.join("tokenizer_config.json"))?;
    let map = object(&model.join("special_tokens_map.json"))?;
    let mut special = SpecialTokens::from_json(&config, &map);
    let path = model.join("tokenizer.json");
    let (mut reference, path, ends) = match path.is_file() {
        true => {
            let reference = Reference::from_bytes(read(&path)?).map_err(|error| unusable(&path, &error))?;
            formats::charsmap::check_all(&reference).map_err(|error| unusable(&path, &error))?;
            let ends = rebuilt_ends(&config);
            (reference, path, ends)
        }
        false => {
            let beside = Beside {
                class: class(&config),
                legacy: flag(&config, "legacy"),
                add_prefix_space: flag(&config, "add_prefix_space"),
                fixed: fixed(&config, model, &special)?,
            };
            let (built, path) = formats::build(model, &beside)?;
            special.complete(built.roles);
            let (bos, eos) = (flag(&config, "add_bos_token"), flag(&config, "add_eos_token"));
            let ends = Ends { bos: bos.unwrap_or(built.add_bos), eos: eos.unwrap_or(built.add_eos) };
            (built.reference, path, Some(ends))
        }
    };
    let unusable = |error: tokenizers::Error| unusable(&path, &error);
    // A serving system truncates by its own rules; padding would be read as prompt.
    reference.with_padding(None).with_truncation(None).map_err(unusable)?;
    add_tokens(&mut reference, &config, &special).map_err(unusable)?;
    if let Some(ends) = ends {
        set_template(&mut reference, ends, &special).map_err(unusable)?;
    }
    Ok((reference, special))
}

fn unusable(path: &Path, error: &tokenizers::Error) -> TokenizerError {
    TokenizerError::Unusable { path: path.to_owned(), reason: error.to_string() }
}

fn flag(config: &Map<String, Value>, name: &str) -> Option<bool> {
    config.get(name).and_then(Value::as_bool)
}

/// The tokenizer's class; the fast one has the same rules as the slow one.
fn class(config: &Map<String, Value>) -> String {
    let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    class.strip_suffix("Fast").unwrap_or(class).to_owned()
}

/// Tokens that other files give an id: `added_tokens_decoder`, and the older `added_tokens.json`.
fn fixed(
    config: &Map<String, Value>,
    model: &Path,
    special: &SpecialTokens,
) -> Result<BTreeMap<u32, AddedToken>, TokenizerError> {
    let texts = special.texts();
    let older = object(&model.join("added_tokens.json"))?.into_iter().filter_map(|(text, id)| {
        let token = AddedToken::from(text.as_str(), texts.contains(&text.as_str())).normalized(false);
        Some((u32::try_from(id.as_u64()?).ok()?, token))
    });
    Ok(older.chain(listed(config)).collect())
}

/// `added_tokens_decoder` of `tokenizer_config.json`.
fn listed(config: &Map<String, Value>) -> BTreeMap<u32, AddedToken> {
    config
        .get("added_tokens_decoder")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(id, token)| Some((id.parse().ok()?, added_token(token)?)))
        .collect()
}

/// Tokens that only `tokenizer_config.json` lists, and named special tokens that `tokenizer.json` does not mark as
/// such.
fn add_tokens(
    reference: &mut Reference,
    config: &Map<String, Value>,
    special: &SpecialTokens,
) -> tokenizers::Result<()> {
    let mut known: HashSet<String> =
        reference.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    for token in listed(config).into_values() {
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

/// Which tokens go before and behind a text.
#[derive(Clone, Copy)]
struct Ends {
    bos: bool,
    eos: bool,
}

/// Llama's and Gemma's tokenizer classes rebuild the template from `add_bos_token` and `add_eos_token`, whatever
/// `tokenizer.json` says.
fn rebuilt_ends(config: &Map<String, Value>) -> Option<Ends> {
    if !matches!(class(config).as_str(), "LlamaTokenizer" | "CodeLlamaTokenizer" | "GemmaTokenizer") {
        return None;
    }
    Some(Ends { bos: flag(config, "add_bos_token")?, eos: flag(config, "add_eos_token").unwrap_or(false) })
}

fn set_template(reference: &mut Reference, ends: Ends, special: &SpecialTokens) -> tokenizers::Result<()> {
    let token = |wanted: bool, role: &str| {
        let text = special.get(role).filter(|_| wanted)?;
        Some((text.to_owned(), reference.token_to_id(text)?))
    };
    let (bos, eos) = (token(ends.bos, "bos_token"), token(ends.eos, "eos_token"));
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
