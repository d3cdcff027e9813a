//! `/v2/embed`: inputs to vectors, in Cohere's shapes.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::StatusCode;
use proto::{PoolingInfo, Prompt, pooling_info::Task, prompt::Kind};
use serde_json::{Map, Value, json};

use super::{
    Job, Reading,
    answer::{Head, list},
    embeddings::dimensions,
    expect, inputs,
    outputs::{EmbeddingShape, Outputs},
    pairs::texts,
    params::{Params, Wanted},
};
use crate::{
    error::{ApiError, json_response},
    openai::{
        completion::log_unread,
        fields::{Fields, wrong},
    },
};

/// Types of embeddings that an answer may have.
const TYPES: [&str; 4] = ["float", "base64", "binary", "ubinary"];

/// Reads a body.
pub fn read(body: &[u8], reading: &Reading<'_>) -> Result<Job, ApiError> {
    expect(reading.info, &[Task::Embed], "/v2/embed")?;
    let mut fields = Fields::parse(body)?;
    let mut params = Params::read(&mut fields, reading)?;
    params.truncate_as(truncation(&mut fields)?, reading);
    let dimensions = dimensions(&mut fields, "output_dimension", reading.info)?;
    let types = types(&mut fields)?;
    for name in ["images", "inputs"] {
        if fields.raw(name).is_some() {
            return Err(ApiError::field(name, format!("`{name}` is not supported: inputs are `texts`.")));
        }
    }
    let texts = texts(&mut fields, "texts", reading.limits.max_prompts)?.unwrap_or_default();
    if texts.is_empty() {
        return Err(ApiError::field("texts", "`texts` must be a non-empty list."));
    }
    let prompt =
        |text: &String| Prompt { kind: Some(Kind::Text(text.clone())), add_special_tokens: true, suffix: None };
    let mut prompts: Vec<Prompt> = texts.iter().map(prompt).collect();
    let input_type = fields.text("input_type")?;
    inputs::prepend(&mut prompts, reading.info, prompt_name(reading.info, input_type.as_deref())?)?;
    log_unread(&fields);
    let id = params.id("embd", reading);
    let requests = params.requests(&id, prompts, Wanted::Pooled, reading);
    let head = Head::new(&id, reading);
    let shape = EmbeddingShape { dimensions, normalize: reading.info.normalize };
    let write = move |outputs: Outputs| {
        let body = answer(&head, outputs, shape, &types, &texts);
        Ok(json_response(StatusCode::OK, body))
    };
    Ok(Job { id, requests, write: Box::new(write) })
}

/// Which of the model's prompts a type of input means; any does where the model has none.
fn prompt_name<'a>(info: &PoolingInfo, input_type: Option<&'a str>) -> Result<Option<&'a str>, ApiError> {
    let Some(asked) = input_type else { return Ok(None) };
    let names: &[&str] = match asked {
        "search_query" => &["search_query", "query"],
        "search_document" => &["search_document", "document", "passage"],
        "classification" | "clustering" => &[],
        other => {
            let expected = "`search_query`, `search_document`, `classification` or `clustering`";
            return Err(wrong("input_type", other, expected));
        }
    };
    let known = names.iter().chain([&asked]).find(|name| info.prompts.contains_key(**name));
    Ok(known.copied())
}

/// Which end of inputs that are too long is left out; absent: such inputs are refused.
fn truncation(fields: &mut Fields<'_>) -> Result<Option<bool>, ApiError> {
    match fields.text("truncate")?.as_deref() {
        Some("NONE") => Ok(None),
        Some("START") => Ok(Some(false)),
        None | Some("END") => Ok(Some(true)),
        Some(other) => Err(wrong("truncate", other, "`NONE`, `START` or `END`")),
    }
}

fn types(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let types = fields.texts("embedding_types")?.unwrap_or_else(|| vec!["float".to_owned()]);
    match types.iter().find(|asked| !TYPES.contains(&asked.as_str())) {
        Some(other) => Err(wrong("embedding_types", other, "`float`, `base64`, `binary` or `ubinary`")),
        None => Ok(types),
    }
}

fn answer(head: &Head, mut outputs: Outputs, shape: EmbeddingShape, types: &[String], texts: &[String]) -> String {
    outputs.values.iter_mut().for_each(|values| shape.apply(values));
    let mut embeddings = Map::new();
    for name in types {
        let all: Vec<Value> = outputs.values.iter().map(|values| written(name, values)).collect();
        embeddings.insert(name.clone(), all.into());
    }
    let tokens = outputs.usage(false)["prompt_tokens"].clone();
    json!({
        "id": head.id, "embeddings": embeddings, "texts": texts, "response_type": "embeddings_by_type",
        "meta": {"api_version": {"version": "2"}, "billed_units": {"input_tokens": tokens}},
    })
    .to_string()
}

/// An embedding as a type of Cohere's: numbers, their bytes, or a bit for each.
fn written(name: &str, values: &[f32]) -> Value {
    let bits = || {
        values.chunks(8).map(|eight| {
            let bit = |(at, value): (usize, &f32)| u8::from(*value > 0.0) << (7 - at);
            eight.iter().enumerate().map(bit).sum::<u8>()
        })
    };
    match name {
        "base64" => {
            BASE64_STANDARD.encode(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).into()
        }
        "ubinary" => bits().collect::<Vec<u8>>().into(),
        "binary" => bits().map(|bits| i32::from(bits) - 128).collect::<Vec<i32>>().into(),
        _ => {
            let mut out = Vec::new();
            list(&mut out, values);
            serde_json::from_slice(&out).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_written_by_type() {
        let values = [0.5, -0.5, 0.25, -1.0, 0.0, 1.0, 1.0, -1.0, 2.0];
        assert_eq!(written("ubinary", &values), json!([0b1010_0110, 0b1000_0000]));
        assert_eq!(written("binary", &values), json!([0b1010_0110 - 128, 0]));
        assert_eq!(written("float", &[0.1]), json!([0.1]));
        assert_eq!(written("base64", &[1.0]), "AACAPw==");
    }

    #[test]
    fn types_of_input_are_the_models_prompts() {
        let prompts = [("query".to_owned(), "Q: ".to_owned())].into();
        let info = PoolingInfo { prompts, ..PoolingInfo::default() };
        assert_eq!(prompt_name(&info, Some("search_query")).expect("known"), Some("query"));
        assert_eq!(prompt_name(&info, Some("clustering")).expect("known"), None);
        assert!(prompt_name(&info, Some("x")).is_err());
    }
}
