//! Pairs of texts and their scores: by the classes of a cross encoder, which reads both texts at once, or by the angle
//! between the vectors of an embedding model, or by what the vectors of their tokens find in each other.

use proto::{PoolingInfo, Prompt, Request, TextPair, pooling_info::Task, prompt::Kind};
use serde_json::Value;

use super::{
    Reading,
    inputs::{check_count, prepend},
    outputs::{Outputs, activate, normalize},
    params::{Params, Wanted},
};
use crate::{
    error::ApiError,
    openai::fields::{Fields, wrong},
};

/// Texts of two sides: as many, or one on the first side.
pub struct Pairs {
    first: Vec<String>,
    second: Vec<String>,
}

impl Pairs {
    /// Of texts under these names: one and any number, or as many on both sides.
    pub fn new(first: Vec<String>, second: Vec<String>, names: [&str; 2]) -> Result<Self, ApiError> {
        for (texts, name) in [&first, &second].into_iter().zip(names) {
            if texts.is_empty() {
                return Err(ApiError::field(name, format!("`{name}` must not be empty.")));
            }
        }
        if first.len() > 1 && first.len() != second.len() {
            let (a, b) = (first.len(), second.len());
            let message = format!("`{}` has {a} texts and `{}` {b}: expected one, or as many.", names[0], names[1]);
            return Err(ApiError::field(names[0], message));
        }
        Ok(Self { first, second })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.second.len()
    }

    fn first(&self, index: usize) -> &str {
        if self.first.len() == 1 { &self.first[0] } else { &self.first[index] }
    }

    /// The requests that score them: one a pair, or one a text.
    pub fn requests(
        &self,
        id: &str,
        params: &Params,
        template: &TemplateKwargs,
        reading: &Reading<'_>,
    ) -> Result<Vec<Request>, ApiError> {
        let prompts = match reading.info.task() {
            Task::Embed | Task::TokenEmbed if !template.0.is_empty() => {
                let message = "The model embeds each text by itself: `instruction` and `chat_template_kwargs` are for \
                               models that read pairs.";
                return Err(ApiError::field("chat_template_kwargs", message));
            }
            Task::Embed | Task::TokenEmbed => self.texts(reading.info)?,
            Task::Classify if reading.info.score_class.is_some() => {
                (0..self.len()).map(|index| self.pair(index, template)).collect()
            }
            Task::Classify | Task::Reward => {
                let message = "The model scores no pairs: that takes one class, or an embedding model.";
                return Err(ApiError::body(message));
            }
        };
        let wanted = if reading.info.task() == Task::TokenEmbed { Wanted::Each } else { Wanted::Pooled };
        Ok(params.requests(id, prompts, wanted, reading))
    }

    fn pair(&self, index: usize, template: &TemplateKwargs) -> Prompt {
        let (first, second) = (self.first(index).to_owned(), self.second[index].clone());
        let pair = TextPair { first, second, template_kwargs_json: template.0.clone() };
        Prompt { kind: Some(Kind::Pair(pair)), add_special_tokens: true, suffix: None }
    }

    /// All texts, the first side's first, behind what the model wants before queries and documents.
    fn texts(&self, info: &PoolingInfo) -> Result<Vec<Prompt>, ApiError> {
        let prompt =
            |text: &String| Prompt { kind: Some(Kind::Text(text.clone())), add_special_tokens: true, suffix: None };
        let named = |names: [&'static str; 2]| names.into_iter().find(|name| info.prompts.contains_key(*name));
        let mut queries: Vec<Prompt> = self.first.iter().map(prompt).collect();
        let mut documents: Vec<Prompt> = self.second.iter().map(prompt).collect();
        prepend(&mut queries, info, named(["query", "search_query"]))?;
        prepend(&mut documents, info, named(["document", "passage"]))?;
        queries.append(&mut documents);
        Ok(queries)
    }

    /// The pairs' scores.
    pub fn scores(&self, info: &PoolingInfo, outputs: &mut Outputs, activates: bool) -> Vec<f32> {
        if matches!(info.task(), Task::Embed | Task::TokenEmbed) {
            return self.scores_of_vectors(info, &mut outputs.values);
        }
        let class = info.score_class.unwrap_or(0) as usize;
        let score = |values: &mut Vec<f32>| {
            if activates {
                activate(info, values);
            }
            values.get(class).copied().unwrap_or(f32::NAN)
        };
        outputs.values.iter_mut().map(score).collect()
    }

    /// Scores by the vectors of texts, or of their tokens.
    fn scores_of_vectors(&self, info: &PoolingInfo, vectors: &mut [Vec<f32>]) -> Vec<f32> {
        let by_token = info.task() == Task::TokenEmbed;
        for text in vectors.iter_mut() {
            let width = if by_token { info.width as usize } else { text.len() };
            text.chunks_mut(width.max(1)).for_each(normalize);
        }
        let (first, second) = vectors.split_at(self.first.len());
        let score = |index: usize| {
            let (one, other) = (if first.len() == 1 { &first[0] } else { &first[index] }, &second[index]);
            if by_token { max_sim(one, other, info.width as usize) } else { dot(one, other) }
        };
        (0..self.len()).map(score).collect()
    }

    /// A text of the second side.
    pub fn document(&self, index: usize) -> &str {
        &self.second[index]
    }
}

fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(a, b)| a * b).sum()
}

/// Late interaction: for each token of a query, its closest token of the document (Khattab and Zaharia 2020: ColBERT).
fn max_sim(query: &[f32], document: &[f32], width: usize) -> f32 {
    let closest =
        |token: &[f32]| document.chunks_exact(width).map(|other| dot(token, other)).fold(f32::NEG_INFINITY, f32::max);
    query.chunks_exact(width).map(closest).sum()
}

/// Variables of the template that pairs are rendered by, a JSON object; empty where the request has none.
pub struct TemplateKwargs(String);

impl TemplateKwargs {
    /// Reads `chat_template_kwargs`, and `instruction`, which is one of them unless they have another.
    pub fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let instruction = fields.text("instruction")?;
        let mut all = fields.object("chat_template_kwargs")?.unwrap_or_default();
        if let Some(instruction) = instruction {
            all.entry("instruction").or_insert_with(|| instruction.into());
        }
        Ok(Self(if all.is_empty() { String::new() } else { Value::Object(all).to_string() }))
    }
}

/// Refuses bounds on each text of a pair; 0 is none.
pub fn refuse_bounds(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    for name in ["max_tokens_per_doc", "max_tokens_per_query"] {
        if fields.raw(name).is_some_and(|bound| bound != "0") {
            let message = format!("`{name}` is not supported: `truncate_prompt_tokens` bounds both texts together.");
            return Err(ApiError::field(name, message));
        }
    }
    Ok(())
}

/// Reads texts under `name`: one, a list, or objects with a `text`.
pub fn texts(fields: &mut Fields<'_>, name: &str, most: usize) -> Result<Option<Vec<String>>, ApiError> {
    let Some(raw) = fields.raw(name) else { return Ok(None) };
    let expected = "a string, or a list of strings or of objects with a `text`";
    let value: Value = serde_json::from_str(raw).map_err(|_| wrong(name, raw, expected))?;
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(object) => object.get("text").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let all = match &value {
        Value::Array(list) => {
            check_count(name, list.len(), most)?;
            list.iter().map(text).collect()
        }
        one => text(one).map(|text| vec![text]),
    };
    all.map(Some).ok_or_else(|| wrong(name, raw, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_goes_with_each_and_many_go_by_index() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let pairs = Pairs::new(list(&["q"]), list(&["a", "b"]), ["x", "y"]).expect("pairs");
        assert_eq!((pairs.len(), pairs.first(1), pairs.document(1)), (2, "q", "b"));
        let pairs = Pairs::new(list(&["q", "r"]), list(&["a", "b"]), ["x", "y"]).expect("pairs");
        assert_eq!(pairs.first(1), "r");
        for (first, second, named) in [(2, 3, "x"), (0, 1, "x"), (1, 0, "y"), (2, 1, "x")] {
            let texts = |count| vec![String::new(); count];
            let refusal = Pairs::new(texts(first), texts(second), ["x", "y"]).map(drop).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some(named));
        }
    }

    #[test]
    fn vectors_are_scored_by_their_angle() {
        let pairs = Pairs::new(vec!["q".into()], vec!["a".into(), "b".into()], ["x", "y"]).expect("pairs");
        let values = vec![vec![2.0, 0.0], vec![0.0, 3.0], vec![5.0, 0.0]];
        let mut outputs = Outputs { values, prompt_tokens: vec![], prompt_ids: vec![], cached: 0 };
        let info = PoolingInfo { task: Task::Embed.into(), ..PoolingInfo::default() };
        assert_eq!(pairs.scores(&info, &mut outputs, true), [0.0, 1.0]);
        let values = vec![vec![2.0, 0.0, 0.0, 1.0], vec![0.0, 3.0], vec![0.0, 5.0, 4.0, 0.0]];
        let mut outputs = Outputs { values, prompt_tokens: vec![], prompt_ids: vec![], cached: 0 };
        let info = PoolingInfo { task: Task::TokenEmbed.into(), width: 2, ..PoolingInfo::default() };
        assert_eq!(pairs.scores(&info, &mut outputs, true), [1.0, 2.0]);
    }
}
