//! `/classify`: inputs to class probabilities.

use proto::pooling_info::Task;

use super::{
    Job, Reading,
    answer::{self, Head},
    expect, inputs,
    outputs::activate,
    params::{Params, Wanted},
};
use crate::{
    error::ApiError,
    json,
    openai::{completion::log_unread, fields::Fields},
};

/// Reads a body.
pub fn read(body: &[u8], reading: &Reading<'_>) -> Result<Job, ApiError> {
    expect(reading.info, &[Task::Classify], "/classify")?;
    let mut fields = Fields::parse(body)?;
    let params = Params::read(&mut fields, reading)?;
    let activates = activates(&mut fields)?;
    let prompts = inputs::read(&mut fields, "input", reading.limits)?;
    log_unread(&fields);
    let id = params.id("classify", reading);
    let requests = params.requests(&id, prompts, Wanted::Pooled, reading);
    let (head, info) = (Head::new(&id, reading), reading.info.clone());
    let write = move |mut outputs: super::Outputs| {
        if activates {
            outputs.values.iter_mut().for_each(|values| activate(&info, values));
        }
        let usage = outputs.usage(head.details);
        Ok(head.list(&outputs.values, &usage, |out, index, values| entry(out, index, values, &info.labels)))
    };
    Ok(Job { id, requests, write: Box::new(write) })
}

/// Whether scores become probabilities: `use_activation`, or its older name.
pub fn activates(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let new: Option<bool> = fields.value("use_activation", "true or false")?;
    let old: Option<bool> = fields.value("activation", "true or false")?;
    Ok(new.or(old).unwrap_or(true))
}

/// `{"index", "label", "probs", "num_classes"}`
fn entry(out: &mut Vec<u8>, index: usize, values: &[f32], labels: &[String]) {
    let likeliest = (0..values.len()).max_by(|a, b| values[*a].total_cmp(&values[*b])).unwrap_or(0);
    json::raw(out, "{\"index\":");
    json::number(out, index as u64);
    json::raw(out, ",\"label\":");
    match labels.get(likeliest) {
        Some(label) => json::string(out, label),
        None => json::raw(out, "null"),
    }
    json::raw(out, ",\"probs\":");
    answer::list(out, values);
    json::raw(out, ",\"num_classes\":");
    json::number(out, values.len() as u64);
    json::raw(out, "}");
}
