//! `use_beam_search` and what belongs to it: the choices are the best texts of a beam search.
//!
//! `n` is the width, or `best_of` where it is given; then the `n` best texts are answered. Streamed answers come in one
//! piece, for it is not known before the end which texts are the best.

use proto::{BeamSearch, EarlyStopping, Request};
use serde_json::Value;

use super::fields::{Fields, wrong};
use crate::error::ApiError;

/// Most choices of one request.
pub const MAX_N: i64 = 16_384;

/// Rules of drawing, and what they are where they do nothing.
const DRAWING: [(&str, &[f64]); 6] = [
    ("min_p", &[0.0]),
    ("tfs", &[1.0]),
    ("top_a", &[0.0]),
    ("top_k", &[0.0, -1.0]),
    ("top_p", &[1.0]),
    ("typical_p", &[1.0]),
];

/// Reads the search that a request with `n` choices asks for, if it does.
pub fn read(fields: &mut Fields<'_>, n: u32) -> Result<Option<BeamSearch>, ApiError> {
    let on = fields.flag("use_beam_search", false)?;
    let best_of = fields.whole_in("best_of", 1..=MAX_N)?.map(|width| width as u32);
    let length_penalty = fields.number("length_penalty")?;
    let early_stopping = early_stopping(fields)?;
    if !on {
        return no_search(n, best_of, length_penalty, early_stopping).map(|()| None);
    }
    let width = best_of.unwrap_or(n);
    if width < n {
        let message = format!("`best_of`, the width of the beam search, must be at least `n` = {n}, got {width}.");
        return Err(ApiError::field("best_of", message));
    }
    for (name, off) in DRAWING {
        // Their ranges are checked where they are read.
        if fields.number(name)?.is_some_and(|value| !off.contains(&value)) {
            let message = format!("`{name}` has no meaning with `use_beam_search`, which draws nothing: leave it out.");
            return Err(ApiError::field(name, message));
        }
    }
    let length_penalty = length_penalty.unwrap_or(1.0) as f32;
    if !length_penalty.is_finite() {
        return Err(ApiError::field("length_penalty", "`length_penalty` must be a finite number in single precision."));
    }
    Ok(Some(BeamSearch { width, length_penalty, early_stopping: early_stopping.unwrap_or_default().into() }))
}

/// Refuses what asks for a search without `use_beam_search`.
fn no_search(
    n: u32,
    best_of: Option<u32>,
    length_penalty: Option<f64>,
    early_stopping: Option<EarlyStopping>,
) -> Result<(), ApiError> {
    let needs_search =
        |name: &str| Err(ApiError::field(name, format!("`{name}` has a meaning with `use_beam_search` only.")));
    match (best_of, length_penalty, early_stopping) {
        (Some(best_of), ..) if best_of != n => {
            let message = format!("`best_of` = {best_of} is not `n` = {n}, which `use_beam_search` alone supports.");
            Err(ApiError::field("best_of", message))
        }
        (_, Some(penalty), _) if penalty != 1.0 => needs_search("length_penalty"),
        (.., Some(EarlyStopping::WhenFull | EarlyStopping::Never)) => needs_search("early_stopping"),
        _ => Ok(()),
    }
}

/// `true`, `false` or `"never"`, as in Hugging Face's `generate`.
fn early_stopping(fields: &mut Fields<'_>) -> Result<Option<EarlyStopping>, ApiError> {
    const NAME: &str = "early_stopping";
    let value: Option<Value> = fields.value(NAME, "true, false or \"never\"")?;
    match value {
        None => Ok(None),
        Some(Value::Bool(false)) => Ok(Some(EarlyStopping::Heuristic)),
        Some(Value::Bool(true)) => Ok(Some(EarlyStopping::WhenFull)),
        Some(Value::String(text)) if text == "never" => Ok(Some(EarlyStopping::Never)),
        Some(other) => Err(wrong(NAME, &other.to_string(), "true, false or \"never\"")),
    }
}

/// What a search cannot have beside it, with what to do instead. A constraint goes by the field that said it.
const WITHOUT: [(&str, &str); 6] = [
    (CONSTRAINT, "demand a text of sampled choices"),
    ("logprob_token_ids", "ask for `logprobs`"),
    ("prompt_logprobs", "ask for the prompt's log-probabilities in a request of its own"),
    ("repetition_detection", "use `repetition_penalty`"),
    ("stop", "beams end by tokens, so give `stop_token_ids`"),
    ("thinking_token_budget", "use `max_tokens`"),
];
const CONSTRAINT: &str = "";

/// The fields that a request with `use_beam_search` leaves out, those of constraints not among them.
pub fn left_out() -> impl Iterator<Item = &'static str> {
    let drawing = DRAWING.iter().map(|(name, _)| *name);
    drawing.chain(WITHOUT.iter().map(|(name, _)| *name).filter(|name| *name != CONSTRAINT))
}

/// Refuses what a search cannot have beside it, once the request is whole.
pub fn check(request: &Request) -> Result<(), ApiError> {
    let (Some(_), Some(sampling), Some(output)) = (&request.beam_search, &request.sampling, &request.output) else {
        return Ok(());
    };
    for (name, instead) in WITHOUT {
        let asked = match name {
            "prompt_logprobs" => sampling.prompt_logprobs.is_some(),
            "logprob_token_ids" => !sampling.logprob_token_ids.is_empty(),
            "repetition_detection" => sampling.repetition_detection.is_some(),
            "thinking_token_budget" => sampling.reasoning.is_some(),
            "stop" => !output.stop.is_empty(),
            _ => sampling.constraint.is_some(),
        };
        if asked {
            let constraint = sampling.constraint.as_ref().map(|constraint| constraint.param.as_str());
            let name = constraint.filter(|_| name == CONSTRAINT).unwrap_or(name);
            let message = format!("`{name}` is not supported with `use_beam_search`: {instead}.");
            return Err(ApiError::field(name, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(body: &str, n: u32) -> Result<Option<BeamSearch>, Option<String>> {
        let mut fields = Fields::parse(body.as_bytes()).expect("an object");
        read(&mut fields, n).map_err(|error| error.param)
    }

    #[test]
    fn width_is_n_or_best_of() {
        let of = |width, length_penalty, early_stopping: EarlyStopping| {
            Ok(Some(BeamSearch { width, length_penalty, early_stopping: early_stopping.into() }))
        };
        assert_eq!(search("{}", 3), Ok(None));
        assert_eq!(search(r#"{"use_beam_search":true}"#, 3), of(3, 1.0, EarlyStopping::Heuristic));
        let body = r#"{"use_beam_search":true,"best_of":5,"length_penalty":-0.5,"early_stopping":"never"}"#;
        assert_eq!(search(body, 3), of(5, -0.5, EarlyStopping::Never));
        let body = r#"{"use_beam_search":true,"early_stopping":true,"temperature":0,"top_p":1.0,"tool_choice":"auto"}"#;
        assert_eq!(search(body, 1), of(1, 1.0, EarlyStopping::WhenFull));
        assert_eq!(search(r#"{"best_of":2,"length_penalty":1.0,"early_stopping":false}"#, 2), Ok(None));
    }

    #[test]
    fn what_means_nothing_is_refused() {
        let refused = |name: &str| Err(Some(name.to_owned()));
        for (body, name) in [
            (r#"{"best_of":3}"#, "best_of"),
            (r#"{"best_of":0,"use_beam_search":true}"#, "best_of"),
            (r#"{"best_of":1,"use_beam_search":true}"#, "best_of"),
            (r#"{"length_penalty":0.5}"#, "length_penalty"),
            (r#"{"early_stopping":"never"}"#, "early_stopping"),
            (r#"{"early_stopping":"sometimes","use_beam_search":true}"#, "early_stopping"),
            (r#"{"length_penalty":1e300,"use_beam_search":true}"#, "length_penalty"),
            (r#"{"top_p":0.5,"use_beam_search":true}"#, "top_p"),
            (r#"{"top_k":5,"use_beam_search":true}"#, "top_k"),
        ] {
            assert_eq!(search(body, 2), refused(name), "{body}");
        }
    }

    #[test]
    fn a_demand_on_the_text_is_refused() {
        let constraint = proto::Constraint { param: "tools".to_owned(), ..proto::Constraint::default() };
        let with = |sampling: proto::Sampling| Request {
            beam_search: Some(BeamSearch::default()),
            sampling: Some(sampling),
            output: Some(proto::Output::default()),
            ..Request::default()
        };
        let refused = |request: &Request| check(request).err().and_then(|error| error.param);
        let constrained = with(proto::Sampling { constraint: Some(constraint), ..proto::Sampling::default() });
        assert_eq!(refused(&constrained).as_deref(), Some("tools"));
        let reasoning = Some(proto::Reasoning::default());
        let budget = with(proto::Sampling { reasoning, ..proto::Sampling::default() });
        assert_eq!(refused(&budget).as_deref(), Some("thinking_token_budget"));
        assert_eq!(refused(&with(proto::Sampling::default())), None);
        assert_eq!(refused(&Request { beam_search: None, ..constrained }), None);
    }
}
