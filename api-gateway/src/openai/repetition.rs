//! `repetition_detection`: ends texts that go round in circles, with the finish reason `repetition`.

use proto::RepetitionDetection;
use serde_json::Value;

use super::fields::Fields;
use crate::error::ApiError;

const NAME: &str = "repetition_detection";
/// Longest pattern that is looked for, tokens.
const MAX_PATTERN: u64 = 4096;

/// Reads the rule; absent where a request has none, or one that finds nothing.
pub fn read(fields: &mut Fields<'_>) -> Result<Option<RepetitionDetection>, ApiError> {
    let Some(object) = fields.object(NAME)? else { return Ok(None) };
    let number = |name: &str, range: std::ops::RangeInclusive<u64>| {
        let (least, most) = (*range.start(), *range.end());
        match object.get(name) {
            None | Some(Value::Null) => Ok(0),
            Some(value) => value.as_u64().filter(|value| range.contains(value)).ok_or_else(|| {
                let message = format!("`{NAME}.{name}` must be between {least} and {most}, got {value}.");
                ApiError::field(NAME, message)
            }),
        }
    };
    let max = number("max_pattern_size", 0..=MAX_PATTERN)?;
    let min = number("min_pattern_size", 0..=max)?;
    let count = number("min_count", 0..=u32::MAX.into())?;
    if max == 0 {
        return Ok(None);
    }
    if count < 2 {
        return Err(ApiError::field(NAME, format!("`{NAME}.min_count` must be at least 2, got {count}.")));
    }
    let (min_pattern_size, max_pattern_size, min_count) = (min.max(1) as u32, max as u32, count as u32);
    Ok(Some(RepetitionDetection { min_pattern_size, max_pattern_size, min_count }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(json: &str) -> Result<Option<RepetitionDetection>, ApiError> {
        let body = format!("{{\"{NAME}\":{json}}}");
        read(&mut Fields::parse(body.as_bytes()).expect("an object"))
    }

    #[test]
    fn rules_have_bounds() {
        let of = |min_pattern_size, max_pattern_size, min_count| {
            Ok(Some(RepetitionDetection { min_pattern_size, max_pattern_size, min_count }))
        };
        assert_eq!(rule(r#"{"max_pattern_size":8,"min_pattern_size":2,"min_count":3}"#), of(2, 8, 3));
        assert_eq!(rule(r#"{"max_pattern_size":8,"min_count":2}"#), of(1, 8, 2));
        assert_eq!(rule("{}"), Ok(None));
        assert_eq!(rule("null"), Ok(None));
        for json in [
            "[]",
            r#"{"max_pattern_size":8}"#,
            r#"{"max_pattern_size":8,"min_count":1}"#,
            r#"{"max_pattern_size":8,"min_pattern_size":9,"min_count":2}"#,
            r#"{"max_pattern_size":5000,"min_count":2}"#,
            r#"{"max_pattern_size":-1,"min_count":2}"#,
            r#"{"max_pattern_size":1.5,"min_count":2}"#,
        ] {
            assert_eq!(rule(json).expect_err(json).param.as_deref(), Some(NAME), "{json}");
        }
    }
}
