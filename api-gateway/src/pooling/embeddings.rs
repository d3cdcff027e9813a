//! `/v1/embeddings`: inputs to vectors.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};
use proto::{PoolingInfo, pooling_info::Task};
use serde_json::{Value, json};

use super::{
    Job, Reading,
    answer::{self, Head},
    encoding::{Encoding, Format},
    expect, inputs,
    outputs::{EmbeddingShape, Outputs},
    params::{Params, Wanted},
};
use crate::{
    error::ApiError,
    json,
    openai::{completion::log_unread, fields::Fields},
};

/// Reads a body.
pub fn read(body: &[u8], reading: &Reading<'_>) -> Result<Job, ApiError> {
    expect(reading.info, &[Task::Embed], "/v1/embeddings")?;
    let mut fields = Fields::parse(body)?;
    let params = Params::read(&mut fields, reading)?;
    let encoding = Encoding::read(&mut fields)?;
    let shape = EmbeddingShape {
        dimensions: dimensions(&mut fields, "dimensions", reading.info)?,
        normalize: normalize(&mut fields, reading.info)?,
    };
    let mut prompts = inputs::read(&mut fields, "input", reading.limits)?;
    inputs::prepend(&mut prompts, reading.info, fields.text("prompt_name")?.as_deref())?;
    log_unread(&fields);
    let id = params.id("embd", reading);
    let requests = params.requests(&id, prompts, Wanted::Pooled, reading);
    let head = Head::new(&id, reading);
    Ok(Job { id, requests, write: Box::new(move |outputs| answer(&head, outputs, encoding, shape)) })
}

/// How many leading numbers are wanted, of a model whose embeddings may be cut.
pub fn dimensions(fields: &mut Fields<'_>, name: &str, info: &PoolingInfo) -> Result<Option<usize>, ApiError> {
    let Some(asked) = fields.whole_in(name, 1..=i64::MAX)? else { return Ok(None) };
    if asked == i64::from(info.width) {
        return Ok(None);
    }
    let (named, most) = (&info.matryoshka_dimensions, info.width);
    let allowed = match (info.matryoshka, named.is_empty()) {
        (false, _) => {
            return Err(ApiError::field(
                name,
                format!("`{name}`: the model's embeddings have {most} numbers and cannot be cut; leave it out."),
            ));
        }
        (true, true) => asked < i64::from(most),
        (true, false) => named.iter().any(|size| i64::from(*size) == asked),
    };
    if allowed {
        return Ok(Some(asked as usize));
    }
    let sizes: Vec<String> = named.iter().map(u32::to_string).collect();
    let sizes = if sizes.is_empty() { format!("at most {most}") } else { format!("one of {}", sizes.join(", ")) };
    Err(ApiError::field(name, format!("`{name}` must be {sizes}, got {asked}.")))
}

/// Whether embeddings get length one: as `normalize` or `use_activation` say, else as the model does.
pub fn normalize(fields: &mut Fields<'_>, info: &PoolingInfo) -> Result<bool, ApiError> {
    let normalize: Option<bool> = fields.value("normalize", "true or false")?;
    let activation: Option<bool> = fields.value("use_activation", "true or false")?;
    Ok(normalize.or(activation).unwrap_or(info.normalize))
}

/// Writes an answer.
fn answer(head: &Head, mut outputs: Outputs, encoding: Encoding, shape: EmbeddingShape) -> Result<Response, ApiError> {
    outputs.values.iter_mut().for_each(|values| shape.apply(values));
    let usage = outputs.usage(head.details);
    match encoding.format {
        Format::Float | Format::Base64 => Ok(head.list(&outputs.values, &usage, |out, index, values| {
            answer::begin(out, index, "embedding");
            json::raw(out, ",\"embedding\":");
            answer::numbers(out, values, encoding);
            json::raw(out, "}");
        })),
        Format::Bytes => bytes(head, &outputs, encoding, Some(&usage)),
        Format::BytesOnly => bytes(head, &outputs, encoding, None),
    }
}

/// All vectors as one body; a header says where each is, as vLLM has it.
pub fn bytes(head: &Head, outputs: &Outputs, encoding: Encoding, usage: Option<&Value>) -> Result<Response, ApiError> {
    let (mut body, mut data) = (Vec::new(), Vec::new());
    for (index, values) in outputs.values.iter().enumerate() {
        let start = body.len();
        body.extend(encoding.bytes(values));
        data.push(json!({
            "index": index, "embed_dtype": encoding.dtype.name(), "endianness": encoding.endianness.name(),
            "start": start, "end": body.len(), "shape": [values.len()],
        }));
    }
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Some(usage) = usage {
        let metadata =
            json!({"id": head.id, "created": head.created, "model": head.model, "data": data, "usage": usage});
        let value = HeaderValue::try_from(metadata.to_string());
        headers.insert("metadata", value.map_err(|_| ApiError::body("The model's name fits no header."))?);
    }
    Ok(response)
}
