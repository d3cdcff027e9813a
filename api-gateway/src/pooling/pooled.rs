//! `/pooling`: what the model gives, as it gives it: a prompt's output, or those of its tokens.

use proto::{PoolingInfo, pooling_info::Task};

use super::{
    Job, Reading,
    answer::{self, Head},
    embeddings::dimensions,
    encoding::{Encoding, Format},
    inputs,
    outputs::{EmbeddingShape, Outputs, activate},
    params::{Params, Wanted},
};
use crate::{
    error::ApiError,
    json,
    openai::{
        completion::log_unread,
        fields::{Fields, wrong},
    },
};

/// Reads a body.
pub fn read(body: &[u8], reading: &Reading<'_>) -> Result<Job, ApiError> {
    let mut fields = Fields::parse(body)?;
    let params = Params::read(&mut fields, reading)?;
    if fields.raw("data").is_some() {
        return Err(ApiError::field("data", "`data` is not supported: there are no plugins; prompts are `input`."));
    }
    let encoding = Encoding::read(&mut fields)?;
    let wanted = wanted(&mut fields, reading.info)?;
    let finish = Finish {
        encoding,
        wanted,
        activates: fields.value("use_activation", "true or false")?,
        dimensions: dimensions(&mut fields, "dimensions", reading.info)?,
    };
    let prompts = inputs::read(&mut fields, "input", reading.limits)?;
    log_unread(&fields);
    let id = params.id("pool", reading);
    let requests = params.requests(&id, prompts, wanted, reading);
    let (head, info) = (Head::new(&id, reading), reading.info.clone());
    Ok(Job { id, requests, write: Box::new(move |outputs| finish.answer(&head, outputs, &info)) })
}

/// Which outputs a body asks for by its `task`; absent: those that the model was made for.
fn wanted(fields: &mut Fields<'_>, info: &PoolingInfo) -> Result<Wanted, ApiError> {
    let each = if info.step_token.is_some() { Wanted::EachWithTokens } else { Wanted::Each };
    let task = fields.text("task")?;
    if info.token_outputs.is_some() {
        return match task.as_deref() {
            None | Some("embed") => Ok(Wanted::Pooled),
            Some("token_embed") => Ok(Wanted::TokenVectors),
            Some("token_classify") => Ok(Wanted::TokenWeights),
            Some(other) => Err(wrong("task", other, "`embed`, `token_embed` or `token_classify`")),
        };
    }
    match (task.as_deref(), info.task()) {
        (None | Some("token_embed"), Task::TokenEmbed) => Ok(each),
        (Some(other), Task::TokenEmbed) => Err(wrong("task", other, "`token_embed`")),
        (None, Task::Reward) | (Some("token_classify"), Task::Reward | Task::Classify) => Ok(each),
        (Some("token_embed"), Task::Embed) => Ok(each),
        (None, _) | (Some("embed"), Task::Embed) | (Some("classify"), Task::Classify) => Ok(Wanted::Pooled),
        (Some(other), Task::Embed) => Err(wrong("task", other, "`embed` or `token_embed`")),
        (Some(other), Task::Classify) => Err(wrong("task", other, "`classify` or `token_classify`")),
        (Some(other), Task::Reward) => Err(wrong("task", other, "`token_classify`")),
    }
}

/// What becomes of outputs.
struct Finish {
    encoding: Encoding,
    wanted: Wanted,
    activates: Option<bool>,
    dimensions: Option<usize>,
}

impl Finish {
    fn answer(
        &self,
        head: &Head,
        mut outputs: Outputs,
        info: &PoolingInfo,
    ) -> Result<axum::response::Response, ApiError> {
        let width = self.wanted.width(info);
        for (values, ids) in outputs.values.iter_mut().zip(&outputs.prompt_ids) {
            let mut rows: Vec<Vec<f32>> = values.chunks(width).map(<[f32]>::to_vec).collect();
            self.leave_out(info, ids, &mut rows);
            rows.iter_mut().for_each(|row| self.finish(info, row));
            *values = rows.concat();
        }
        let usage = outputs.usage(head.details);
        if matches!(self.encoding.format, Format::Bytes | Format::BytesOnly) {
            let usage = Some(&usage).filter(|_| self.encoding.format == Format::Bytes);
            return super::embeddings::bytes(head, &outputs, self.encoding, usage);
        }
        let width = self.dimensions.unwrap_or(width);
        Ok(head.list(&outputs.values, &usage, |out, index, values| {
            answer::begin(out, index, "pooling");
            json::raw(out, ",\"data\":");
            self.write(out, values, width);
            json::raw(out, "}");
        }))
    }

    /// Drops rows of tokens that have none.
    fn leave_out(&self, info: &PoolingInfo, ids: &[u32], rows: &mut Vec<Vec<f32>>) {
        if let Some(step) = info.step_token.filter(|_| self.wanted == Wanted::EachWithTokens) {
            let mut ids = ids.iter();
            rows.retain(|_| ids.next() == Some(&step));
        }
        let Some(outputs) = info.token_outputs.filter(|_| self.wanted != Wanted::Pooled) else { return };
        if self.wanted == Wanted::TokenWeights
            && outputs.eos_token.is_some()
            && outputs.eos_token.as_ref() == ids.last()
        {
            rows.pop();
        }
        if outputs.bos_token.is_some() && outputs.bos_token.as_ref() == ids.first() && !rows.is_empty() {
            rows.remove(0);
        }
    }

    /// One row, of a prompt or of a token.
    fn finish(&self, info: &PoolingInfo, row: &mut Vec<f32>) {
        if self.wanted == Wanted::TokenWeights {
            // A weight counts where it is positive.
            if self.activates.unwrap_or(true) {
                row.iter_mut().for_each(|weight| *weight = weight.max(0.0));
            }
        } else if matches!(info.task(), Task::Embed | Task::TokenEmbed) {
            let normalize = self.activates.unwrap_or(info.normalize);
            EmbeddingShape { dimensions: self.dimensions, normalize }.apply(row);
        } else if self.activates.unwrap_or(true) {
            activate(info, row);
        }
    }

    /// A list of numbers, or of such lists, one a token.
    fn write(&self, out: &mut Vec<u8>, values: &[f32], width: usize) {
        if matches!(self.wanted, Wanted::Pooled | Wanted::TokenWeights) {
            return answer::numbers(out, values, self.encoding);
        }
        if let Some(text) = self.encoding.json_text(values) {
            return json::string(out, &text);
        }
        json::raw(out, "[");
        for (index, row) in values.chunks(width).enumerate() {
            if index > 0 {
                json::raw(out, ",");
            }
            answer::list(out, row);
        }
        json::raw(out, "]");
    }
}
