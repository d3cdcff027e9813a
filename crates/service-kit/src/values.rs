//! What flags take: parsers for clap that check a value and refuse it in the same words in every process.

use std::{
    fmt::Display,
    ops::{Bound, RangeBounds},
    str::FromStr,
};

use tracing_subscriber::EnvFilter;

/// A number that a flag may take.
pub trait Number: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static {}

impl<N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static> Number for N {}

/// A whole number within a range.
pub fn count<N: Number>(
    range: impl RangeBounds<N> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a whole number{}", bounds(&range)))
    }
}

/// A number of bytes or tokens with a unit (see [`number_of`]), within a range.
pub fn size<N: Number + TryFrom<u64>>(
    range: impl RangeBounds<N> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number = number_of(text)?.try_into().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("must be a number{}", bounds(&range)))
    }
}

/// A filter of log lines. A single word is a level: the name of a part alone would silence all others.
pub fn log_filter(text: &str) -> Result<String, String> {
    let level = ["off", "error", "warn", "info", "debug", "trace"].iter().any(|level| text.eq_ignore_ascii_case(level));
    let is_filter = text.contains(['=', ',', '[']) && EnvFilter::try_new(text).is_ok();
    let problem = || "must be error, warn, info, debug, trace, or a filter such as info,scheduler_svc=debug".to_owned();
    (level || is_filter).then(|| text.to_owned()).ok_or_else(problem)
}

fn bounds<N: Display>(range: &impl RangeBounds<N>) -> String {
    let least = match range.start_bound() {
        Bound::Included(least) => Some(least),
        _ => None,
    };
    match (least, range.end_bound()) {
        (Some(least), Bound::Included(most)) => format!(" from {least} to {most}"),
        (Some(least), _) => format!(" of {least} or more"),
        (None, Bound::Included(most)) => format!(" of {most} or less"),
        (None, _) => String::new(),
    }
}

/// `4096`, `16k`, `1.5M`: small letters are powers of 1,000, capitals of 1,024, as vLLM reads them. 1 or more.
pub fn number_of(text: &str) -> Result<u64, String> {
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

/// A share of a whole: above 0, at most 1.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 1.0);
    share.ok_or_else(|| "must be a number above 0, up to 1".to_owned())
}

/// A share of a whole that may be nothing: from 0 to 1.
pub fn fraction(text: &str) -> Result<f32, String> {
    let fraction = text.parse().ok().filter(|fraction| (0.0..=1.0).contains(fraction));
    fraction.ok_or_else(|| "must be a number from 0 to 1".to_owned())
}

/// A number of seconds, 0 or more.
pub fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds, 0 or more".to_owned())
}

/// A number of seconds that something must be able to take: a millisecond or more.
pub fn duration(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=1e9).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds, 0.001 or more".to_owned())
}

/// Longest sequence, prompt and answer together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxModelLen {
    /// What the KV memory holds, up to what the model allows.
    Auto,
    /// This many tokens.
    Tokens(u32),
}

impl MaxModelLen {
    /// The number, if one was given.
    pub fn tokens(self) -> Option<u32> {
        match self {
            Self::Auto => None,
            Self::Tokens(tokens) => Some(tokens),
        }
    }
}

impl FromStr for MaxModelLen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" | "-1" => Ok(Self::Auto),
            number => match size(1..=u32::MAX)(number) {
                Ok(tokens) => Ok(Self::Tokens(tokens)),
                Err(problem) => Err(format!("{problem}, or auto")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, number) in [("4096", 4096), ("16k", 16_000), ("16K", 16_384), ("1M", 1 << 20), ("1.5k", 1500)] {
            assert_eq!(number_of(text), Ok(number), "{text}");
        }
        for bad in ["", "k", "-1", "1.5", "0", "9999999999999T", "1kk", "nan k", "infk", "1é"] {
            assert!(number_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_named_in_refusals() {
        assert_eq!(count(1..=8_u32)("8"), Ok(8));
        assert_eq!(count(1..=8_u32)("9"), Err("must be a whole number from 1 to 8".to_owned()));
        assert_eq!(count(-1..)("-1"), Ok(-1));
        assert_eq!(count(0_u32..)("-1"), Err("must be a whole number of 0 or more".to_owned()));
        assert_eq!(size(1..=4096_u32)("4K"), Ok(4096));
        assert_eq!(size(1..=4096_u32)("5k"), Err("must be a number from 1 to 4096".to_owned()));
        assert!(size::<u32>(1..)("5g").is_err(), "more than its type holds");
    }

    #[test]
    fn filters_of_log_lines_are_levels_or_directives() {
        for fine in ["info", "DEBUG", "off", "info,scheduler_svc=debug", "worker_svc::step_log=trace"] {
            assert_eq!(log_filter(fine).as_deref(), Ok(fine));
        }
        for bad in ["", "verbose", "scheduler_svc", "info,worker_svc=loud"] {
            assert!(log_filter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lengths_may_be_left_to_the_memory() {
        for (text, length) in
            [("auto", MaxModelLen::Auto), ("-1", MaxModelLen::Auto), ("16k", MaxModelLen::Tokens(16_000))]
        {
            assert_eq!(text.parse(), Ok(length), "{text}");
        }
        for bad in ["0", "5g", "-2", "all"] {
            assert!(bad.parse::<MaxModelLen>().unwrap_err().ends_with(", or auto"), "{bad}");
        }
    }

    #[test]
    fn shares_and_seconds_have_bounds() {
        assert!(share("1").is_ok() && share("0").is_err() && share("1.5").is_err());
        assert!(fraction("0").is_ok() && fraction("-0.1").is_err() && fraction("nan").is_err());
        assert!(seconds("0").is_ok() && seconds("-1").is_err() && seconds("inf").is_err());
        assert!(duration("0.001").is_ok() && duration("0").is_err());
    }
}
