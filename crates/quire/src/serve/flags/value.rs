//! What flags take, and how a text becomes such a value.

use serde_json::Value as Json;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// Nothing; `--no-…` is its opposite. Passed on as `--name` or not at all.
    Switch,
    /// The same, passed on as `--name=true` or `--name=false`.
    Toggle,
    /// A whole number.
    Count {
        /// The smallest.
        least: i64,
        /// The largest.
        most: i64,
    },
    /// A number of bytes or tokens: 4096, 16k (thousand), 16K (1,024).
    Size {
        /// The largest.
        most: u64,
    },
    /// A length in tokens as a size, or `auto` or -1.
    MaxLen,
    /// A number from 0 to 1.
    Fraction,
    /// The same above 0.
    Share,
    /// A number of seconds, 0 or more.
    Seconds,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A JSON value; members can be given one by one as `--name.member value`.
    Json,
    /// One or more texts.
    List,
    /// One or more whole numbers, 1 or more each.
    Counts {
        /// The largest.
        most: u32,
    },
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of a switch.
    Bool(bool),
    /// Of a list.
    Many(Vec<String>),
    /// Of everything else, in the form that processes parse.
    Text(String),
}

impl Kind {
    pub(super) fn is_bool(self) -> bool {
        matches!(self, Self::Switch | Self::Toggle)
    }

    pub(super) fn is_list(self) -> bool {
        matches!(self, Self::List | Self::Counts { .. })
    }

    /// Checks one text and brings it into the form that processes parse.
    pub(super) fn check(self, text: &str) -> Result<Value, String> {
        let own = |fine: bool, problem: &str| if fine { Ok(text.to_owned()) } else { Err(problem.to_owned()) };
        let checked = match self {
            Self::Text => Ok(text.to_owned()),
            Self::List => return Ok(Value::Many(vec![text.to_owned()])),
            Self::Counts { most } => {
                let fine = text.parse::<u32>().is_ok_and(|number| (1..=most).contains(&number));
                let number = own(fine, &format!("must be whole numbers from 1 to {most}"));
                return number.map(|text| Value::Many(vec![text]));
            }
            Self::Switch | Self::Toggle => return boolean(text).map(Value::Bool),
            Self::Count { least, most } => {
                let fine = text.parse::<i64>().is_ok_and(|number| (least..=most).contains(&number));
                // A bound of the type alone is nobody's to know.
                let bounds = match most < u32::MAX.into() {
                    true => format!("from {least} to {most}"),
                    false => format!("of {least} or more"),
                };
                own(fine, &format!("must be a whole number {bounds}"))
            }
            Self::Size { most } => match size(text)? {
                number if number > most => Err(format!("must be at most {most}")),
                number => Ok(number.to_string()),
            },
            Self::MaxLen if matches!(text, "auto" | "-1") => Ok("auto".to_owned()),
            Self::MaxLen => match (Self::Size { most: u32::MAX.into() }).check(text) {
                Err(problem) => Err(format!("{problem}, or auto")),
                checked => return checked,
            },
            Self::Fraction => {
                let fine = text.parse::<f64>().is_ok_and(|number| (0.0..=1.0).contains(&number));
                own(fine, "must be a number from 0 to 1")
            }
            Self::Share => {
                let fine = text.parse::<f64>().is_ok_and(|number| number > 0.0 && number <= 1.0);
                own(fine, "must be a number above 0, up to 1")
            }
            Self::Seconds => {
                let fine = text.parse::<f64>().is_ok_and(|number| (0.0..1e9).contains(&number));
                own(fine, "must be a number of seconds, 0 or more")
            }
            Self::Choice(choices) => own(choices.contains(&text), &format!("must be one of: {}", choices.join(", "))),
            Self::Json => match serde_json::from_str::<Json>(text) {
                Ok(_) => Ok(text.to_owned()),
                Err(error) => Err(format!("must be JSON: {error}")),
            },
        };
        checked.map(Value::Text)
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// `4096`, `16k`, `1.5M`: small letters are powers of 1,000, capitals of 1,024, as vLLM reads them.
fn size(text: &str) -> Result<u64, String> {
    let problem = || "must be a number such as 4096, 16k (thousand) or 16K (1,024), 1 or more".to_owned();
    let factor = match text.chars().last() {
        Some('k') => 1_000,
        Some('K') => 1 << 10,
        Some('m') => 1_000_000,
        Some('M') => 1 << 20,
        Some('g') => 1_000_000_000,
        Some('G') => 1 << 30,
        Some('t') => 1_000_000_000_000,
        Some('T') => 1 << 40,
        _ => 1_u64,
    };
    let digits = if factor == 1 { text } else { &text[..text.len() - 1] };
    let number = match digits.parse::<u64>() {
        Ok(number) => number.checked_mul(factor).ok_or_else(problem)?,
        // Fractions make sense with a unit only.
        Err(_) if factor > 1 => {
            let number = digits.parse::<f64>().map_err(|_| problem())? * factor as f64;
            if (1.0..1e18).contains(&number) { number as u64 } else { return Err(problem()) }
        }
        Err(_) => return Err(problem()),
    };
    if number > 0 { Ok(number) } else { Err(problem()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, number) in [("4096", 4096), ("16k", 16_000), ("16K", 16_384), ("1M", 1 << 20), ("1.5k", 1500)] {
            assert_eq!(size(text), Ok(number), "{text}");
        }
        for bad in ["", "k", "-1", "1.5", "0", "9999999999999T", "1kk", "nan k", "infk"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn kinds_check_their_values() {
        for (kind, good, bad) in [
            (Kind::MaxLen, "auto", "-2"),
            (Kind::Fraction, "0.92", "1.5"),
            (Kind::Seconds, "0", "-1"),
            (Kind::Count { least: 1, most: 8 }, "8", "0"),
            (Kind::Count { least: 1, most: 8 }, "1", "9"),
            (Kind::Count { least: -1, most: i64::MAX }, "-1", "x"),
            (Kind::Size { most: 4096 }, "4K", "5k"),
            (Kind::MaxLen, "16k", "5g"),
            (Kind::Share, "1", "0"),
            (Kind::Choice(&["a", "b"]), "b", "c"),
            (Kind::Counts { most: 8 }, "8", "9"),
            (Kind::Json, r#"["*"]"#, "*"),
            (Kind::Toggle, "False", "maybe"),
        ] {
            assert!(kind.check(good).is_ok(), "{kind:?} {good}");
            assert!(kind.check(bad).is_err(), "{kind:?} {bad}");
        }
        assert_eq!(Kind::MaxLen.check("-1"), Ok(Value::Text("auto".to_owned())));
    }
}
