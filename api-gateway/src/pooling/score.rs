//! `/score` and `/v1/score`: pairs of texts to scores.

use super::{
    Job, Reading,
    answer::{self, Head},
    classify::activates,
    pairs::{Pairs, TemplateKwargs, refuse_bounds, texts},
    params::Params,
};
use crate::{
    error::ApiError,
    json,
    openai::{completion::log_unread, fields::Fields},
};

/// What the two sides are called; the first that a body has counts.
pub const NAMES: [[&str; 2]; 4] =
    [["text_1", "text_2"], ["queries", "documents"], ["queries", "items"], ["data_1", "data_2"]];

/// Reads a body.
pub fn read(body: &[u8], reading: &Reading<'_>) -> Result<Job, ApiError> {
    let mut fields = Fields::parse(body)?;
    let params = Params::read(&mut fields, reading)?;
    let activates = activates(&mut fields)?;
    refuse_bounds(&mut fields)?;
    let template = TemplateKwargs::read(&mut fields)?;
    let pairs = pairs(&mut fields, reading.limits.max_prompts)?;
    log_unread(&fields);
    let id = params.id("score", reading);
    let requests = pairs.requests(&id, &params, &template, reading)?;
    let (head, info) = (Head::new(&id, reading), reading.info.clone());
    let write = move |mut outputs: super::Outputs| {
        let scores = pairs.scores(&info, &mut outputs, activates);
        Ok(head.list(&scores, &outputs.usage(head.details), |out, index, score| {
            answer::begin(out, index, "score");
            json::raw(out, ",\"score\":");
            answer::number(out, *score);
            json::raw(out, "}");
        }))
    };
    Ok(Job { id, requests, write: Box::new(write) })
}

fn pairs(fields: &mut Fields<'_>, most: usize) -> Result<Pairs, ApiError> {
    let mut found = None;
    for [first, second] in NAMES {
        let sides = (texts(fields, first, most)?, texts(fields, second, most)?);
        if let (Some(one), Some(other), None) = (sides.0, sides.1, &found) {
            found = Some((one, other, [first, second]));
        }
    }
    if let Some((one, other, names)) = found {
        return Pairs::new(one, other, names);
    }
    let names: Vec<String> = NAMES.iter().map(|[first, second]| format!("`{first}` and `{second}`")).collect();
    Err(ApiError::field("text_1", format!("Both sides must be provided: {}.", names.join(", or "))))
}
