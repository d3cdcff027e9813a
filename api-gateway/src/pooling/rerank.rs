//! `/rerank`, `/v1/rerank`, `/v2/rerank`: documents by how well they answer a query, in the shapes of Jina and Cohere.

use axum::response::Response;
use http::StatusCode;
use serde_json::json;

use super::{
    Job, Reading,
    answer::Head,
    classify::activates,
    outputs::Outputs,
    pairs::{Pairs, TemplateKwargs, refuse_bounds, texts},
    params::Params,
};
use crate::{
    error::{ApiError, json_response},
    openai::{completion::log_unread, fields::Fields},
};

/// Reads a body.
pub fn read(body: &[u8], reading: &Reading<'_>) -> Result<Job, ApiError> {
    let mut fields = Fields::parse(body)?;
    let params = Params::read(&mut fields, reading)?;
    let activates = activates(&mut fields)?;
    refuse_bounds(&mut fields)?;
    let template = TemplateKwargs::read(&mut fields)?;
    let query = fields.text("query")?.ok_or_else(|| ApiError::field("query", "`query` must be provided."))?;
    let documents = texts(&mut fields, "documents", reading.limits.max_prompts)?;
    let documents = documents.ok_or_else(|| ApiError::field("documents", "`documents` must be provided."))?;
    let top = fields.whole_in("top_n", 0..=i64::MAX)?.filter(|top| *top > 0);
    let shows = fields.flag("return_documents", true)?;
    log_unread(&fields);
    let pairs = Pairs::new(vec![query], documents, ["query", "documents"])?;
    let id = params.id("rerank", reading);
    let requests = pairs.requests(&id, &params, &template, reading)?;
    let (head, info) = (Head::new(&id, reading), reading.info.clone());
    let write = move |mut outputs: Outputs| {
        let scores = pairs.scores(&info, &mut outputs, activates);
        let usage = outputs.usage(head.details);
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        order.truncate(top.map_or(usize::MAX, |top| usize::try_from(top).unwrap_or(usize::MAX)));
        let result = |index: usize| {
            let mut result = json!({"index": index, "relevance_score": shortest(scores[index])});
            if shows {
                result["document"] = json!({"text": pairs.document(index)});
            }
            result
        };
        let results: Vec<_> = order.into_iter().map(result).collect();
        Ok(whole(&head, &results, &usage))
    };
    Ok(Job { id, requests, write: Box::new(write) })
}

fn whole(head: &Head, results: &[serde_json::Value], usage: &serde_json::Value) -> Response {
    let billed = json!({"search_units": 1, "input_tokens": usage["prompt_tokens"]});
    let body = json!({
        "id": head.id, "model": head.model, "usage": usage, "results": results,
        "meta": {"api_version": {"version": "2"}, "billed_units": billed},
    });
    json_response(StatusCode::OK, body.to_string())
}

/// The number of fewest digits that reads as this one.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
