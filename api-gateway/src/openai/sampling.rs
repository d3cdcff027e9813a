//! The sampling parameters that are numbers: one line each with its name, range, default and proto field.
//!
//! A parameter that is `OfModel` may also be set by the model's `generation_config.json` and by
//! `--override-generation-config`, under the same name.

use std::ops::Bound;

use proto::Sampling;

use super::fields::Fields;
use crate::{
    api::shape::{Bounds, Shape},
    error::ApiError,
};

/// A sampling parameter that is a number.
pub struct Parameter {
    /// Its name in requests, in `generation_config.json`, and in errors.
    pub name: &'static str,
    /// What it does, for documentation.
    pub help: &'static str,
    /// What it may be.
    range: Range,
    /// What it is where a request does not say.
    default: Usual,
    /// Puts a checked value into the message.
    set: fn(&mut Sampling, f64),
}

/// What a parameter may be.
enum Range {
    /// A number between these, also once rounded to single precision.
    Number(Bounds),
    /// A whole number between these.
    Whole(i64, i64),
}

/// What a parameter is where a request does not say.
#[derive(Clone, Copy)]
enum Usual {
    /// What the model or the user says, else this.
    OfModel(f64),
    /// Always this.
    Fixed(f64),
}

use self::{
    Range::{Number, Whole},
    Usual::{Fixed, OfModel},
};

/// How many there are.
pub const COUNT: usize = 11;

/// All of them, sorted by name.
pub static PARAMETERS: [Parameter; COUNT] = [
    Parameter {
        name: "frequency_penalty",
        help: "Lowers tokens by how often the answer has them",
        range: Number(Bounds::between(-2.0, 2.0)),
        default: Fixed(0.0),
        set: |sampling, value| sampling.frequency_penalty = value as f32,
    },
    Parameter {
        name: "min_p",
        help: "Leave out tokens less likely than this share of the likeliest",
        range: Number(Bounds::between(0.0, 1.0)),
        default: OfModel(0.0),
        set: |sampling, value| sampling.min_p = value as f32,
    },
    Parameter {
        name: "presence_penalty",
        help: "Lowers tokens that the answer has",
        range: Number(Bounds::between(-2.0, 2.0)),
        default: Fixed(0.0),
        set: |sampling, value| sampling.presence_penalty = value as f32,
    },
    Parameter {
        name: "repetition_penalty",
        help: "Divides the logits of tokens of prompt and answer; above 1: fewer repetitions",
        range: Number(Bounds(Bound::Excluded(0.0), Bound::Unbounded)),
        default: OfModel(1.0),
        set: |sampling, value| sampling.repetition_penalty = value as f32,
    },
    Parameter {
        name: "temperature",
        help: "Flattens the distribution; 0: always the likeliest token; values up to 0.01 count as 0.01",
        range: Number(Bounds::between(0.0, 2.0)),
        default: OfModel(1.0),
        // Values between 0 and 0.01 count as 0.01: smaller ones overflow.
        set: |sampling, value| sampling.temperature = if value > 0.0 { (value as f32).max(0.01) } else { 0.0 },
    },
    Parameter {
        name: "tfs",
        help: "Cut off the tail where the ranked probabilities become flat (tail free sampling); 1: off",
        range: Number(Bounds::above(0.0, 1.0)),
        default: Fixed(1.0),
        set: |sampling, value| sampling.tfs = value as f32,
    },
    Parameter {
        name: "top_a",
        help: "Leave out tokens less likely than this times the square of the likeliest one's probability",
        range: Number(Bounds::between(0.0, 1.0)),
        default: Fixed(0.0),
        set: |sampling, value| sampling.top_a = value as f32,
    },
    Parameter {
        name: "top_k",
        help: "Number of likeliest tokens to choose among; 0 and -1: all",
        range: Whole(-1, u32::MAX as i64),
        default: OfModel(0.0),
        // -1 and 0 are off.
        set: |sampling, value| sampling.top_k = value as u32,
    },
    Parameter {
        name: "top_n_sigma",
        help: "Leave out tokens whose logits are this many standard deviations below the largest; 0 and -1: none",
        range: Number(Bounds(Bound::Included(-1.0), Bound::Unbounded)),
        default: Fixed(0.0),
        set: |sampling, value| sampling.top_n_sigma = value.max(0.0) as f32,
    },
    Parameter {
        name: "top_p",
        help: "Choose among the likeliest tokens whose probabilities reach this sum",
        range: Number(Bounds::above(0.0, 1.0)),
        default: OfModel(1.0),
        set: |sampling, value| sampling.top_p = value as f32,
    },
    Parameter {
        name: "typical_p",
        help: "Choose among the tokens nearest to the expected information, up to this sum",
        range: Number(Bounds::above(0.0, 1.0)),
        default: OfModel(1.0),
        set: |sampling, value| sampling.typical_p = value as f32,
    },
];

/// Reads and checks all of them; `defaults`: what the model or the user says of each.
pub(super) fn read(fields: &mut Fields<'_>, defaults: &[Option<f64>; COUNT]) -> Result<Sampling, ApiError> {
    let mut sampling = Sampling::default();
    for (parameter, default) in PARAMETERS.iter().zip(defaults) {
        (parameter.set)(&mut sampling, parameter.read(fields, *default)?);
    }
    Ok(sampling)
}

/// Reads vLLM's custom arguments, which go to plugins there: names of sampling parameters are these parameters.
pub fn lift_custom(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    fields.lift("vllm_xargs", |name| PARAMETERS.iter().any(|parameter| parameter.name == name))
}

impl Parameter {
    /// Whether the model's `generation_config.json` counts.
    pub fn is_of_model(&self) -> bool {
        matches!(self.default, OfModel(_))
    }

    /// Whether its values are whole numbers.
    pub fn is_whole(&self) -> bool {
        matches!(self.range, Whole(..))
    }

    /// What its values may be.
    pub fn shape(&self) -> Shape {
        match self.range {
            Number(bounds) => Shape::Number(bounds),
            Whole(least, most) => Shape::Whole(least, most),
        }
    }

    /// What it is where neither the request nor the model says.
    pub fn default(&self) -> f64 {
        let (OfModel(own) | Fixed(own)) = self.default;
        own
    }

    fn read(&self, fields: &mut Fields<'_>, default: Option<f64>) -> Result<f64, ApiError> {
        let default = default.unwrap_or(self.default());
        match self.range {
            Whole(least, most) => Ok(fields.whole_in(self.name, least..=most)?.map_or(default, |value| value as f64)),
            Number(_) => {
                let value = fields.number(self.name)?.unwrap_or(default);
                self.check(value).map_err(|problem| ApiError::field(self.name, format!("{problem}.")))?;
                Ok(value)
            }
        }
    }

    /// Whether it may be this.
    pub fn check(&self, value: f64) -> Result<(), String> {
        let (name, single) = (self.name, value as f32);
        match self.range {
            Number(bounds) if bounds.holds(value) && bounds.holds(single.into()) && single.is_finite() => Ok(()),
            Number(bounds) => Err(format!("`{name}` must be {bounds}, got {value}")),
            Whole(least, most) if (least as f64..=most as f64).contains(&value) => Ok(()),
            Whole(least, most) => Err(format!("`{name}` must be between {least} and {most}, got {value}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defaults::Defaults;

    fn read_json(body: &str, defaults: &Defaults) -> Result<Sampling, ApiError> {
        read(&mut Fields::parse(body.as_bytes())?, defaults.numbers())
    }

    #[test]
    fn parameters_are_sorted_and_reach_their_fields() {
        assert!(PARAMETERS.is_sorted_by_key(|parameter| parameter.name));
        let body = r#"{"frequency_penalty":0.1,"min_p":0.2,"presence_penalty":0.3,"repetition_penalty":0.4,
            "temperature":0.001,"tfs":0.9,"top_a":0.5,"top_k":6,"top_n_sigma":1.5,"top_p":0.7,"typical_p":0.8}"#;
        let want = Sampling {
            frequency_penalty: 0.1,
            min_p: 0.2,
            presence_penalty: 0.3,
            repetition_penalty: 0.4,
            temperature: 0.01,
            tfs: 0.9,
            top_a: 0.5,
            top_k: 6,
            top_n_sigma: 1.5,
            top_p: 0.7,
            typical_p: 0.8,
            ..Sampling::default()
        };
        assert_eq!(read_json(body, &Defaults::default()), Ok(want));
    }

    #[test]
    fn a_request_wins_over_the_model_and_the_model_over_the_api() {
        let model = Defaults::of_model(r#"{"temperature":0.6,"typical_p":0.9,"frequency_penalty":1.5,"top_k":-1}"#);
        let sampling = read_json(r#"{"temperature":0}"#, &model).unwrap();
        assert_eq!((sampling.temperature, sampling.typical_p, sampling.top_p), (0.0, 0.9, 1.0));
        assert_eq!((sampling.frequency_penalty, sampling.top_k), (0.0, 0), "no key of generation_config.json, and off");
    }

    #[test]
    fn values_out_of_range_name_the_parameter() {
        for (name, value) in [
            ("temperature", "-1"),
            ("top_p", "0"),
            // Rounds to 0 in single precision.
            ("top_p", "1e-60"),
            ("typical_p", "1.1"),
            ("typical_p", "0"),
            ("repetition_penalty", "0"),
            ("repetition_penalty", "1e300"),
            ("top_k", "-2"),
            ("min_p", "\"x\""),
        ] {
            let error = read_json(&format!("{{\"{name}\":{value}}}"), &Defaults::default()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name), "{value}");
        }
    }
}
