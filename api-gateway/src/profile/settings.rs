//! `--profiler-config`, in vLLM's words, and what a request may say instead.

use std::path::PathBuf;

use serde_json::{Map, Value};
use service_kit::profile::Steps;

use crate::{error::ApiError, openai::fields::Fields};

/// Settings of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where traces are written.
    pub folder: PathBuf,
    /// Which steps are recorded.
    pub steps: Steps,
    /// Only scheduler and workers are recorded.
    pub engine_only: bool,
}

/// What a request to begin a profile says.
#[derive(Debug, Default)]
pub struct Overrides {
    /// The beginning of the trace's name.
    pub prefix: Option<String>,
    /// Steps to leave out at first.
    pub delay_steps: Option<u32>,
    /// Steps to record.
    pub max_steps: Option<u32>,
}

/// Members of vLLM's object that Quire has nothing for, and the values that ask for nothing.
const ABSENT: [(&str, &[&str]); 17] = [
    ("active_iterations", &["5"]),
    ("capture_torch_profiler", &["false"]),
    ("detailed_trace_annotation", &["false"]),
    ("proton_backend", &["null"]),
    ("proton_context", &["\"shadow\""]),
    ("proton_data", &["\"tree\""]),
    ("proton_graph_attribution", &["false"]),
    ("proton_hook", &["null"]),
    ("proton_mode", &["null"]),
    ("proton_output_format", &["null"]),
    ("proton_profiler_dir", &["\"\""]),
    ("torch_profiler_activities", &["null"]),
    ("torch_profiler_record_shapes", &["false"]),
    ("torch_profiler_use_gzip", &["false"]),
    ("torch_profiler_with_flops", &["false"]),
    ("torch_profiler_with_memory", &["false"]),
    ("wait_iterations", &["0"]),
];
/// Members that make no difference: a trace has neither stacks nor a table of sums.
const MOOT: [&str; 3] = ["torch_profiler_dump_cuda_time_total", "torch_profiler_with_stack", "warmup_iterations"];

/// Reads the flag: vLLM's object, or the folder alone. Absent: there are no profiles.
pub fn parse(flag: &str) -> Result<Option<Settings>, String> {
    if !flag.starts_with('{') {
        let folder = PathBuf::from(flag);
        return match folder.is_absolute() {
            true => Ok(Some(Settings { folder, steps: Steps::default(), engine_only: false })),
            false => Err("must be a JSON object, or an absolute path".to_owned()),
        };
    }
    let mut members: Map<String, Value> = serde_json::from_str(flag).map_err(|error| error.to_string())?;
    let profiler = members.remove("profiler").filter(|value| !value.is_null());
    let folder = text(&mut members, "torch_profiler_dir")?.filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let steps = Steps { delay: count(&mut members, "delay_iterations")?, most: count(&mut members, "max_iterations")? };
    let engine_only = match members.remove("ignore_frontend") {
        None => false,
        Some(Value::Bool(on)) => on,
        Some(other) => return Err(format!("`ignore_frontend` must be true or false, got {other}")),
    };
    for (name, value) in members {
        refuse(&name, &value)?;
    }
    match profiler {
        None if folder.is_some() => Err("`torch_profiler_dir` needs `\"profiler\": \"torch\"`".to_owned()),
        None => Ok(None),
        Some(name) if name != "torch" => Err(format!("`profiler` may be \"torch\": a trace; got {name}")),
        Some(_) => match folder {
            Some(folder) if folder.is_absolute() => Ok(Some(Settings { folder, steps, engine_only })),
            Some(_) => Err("`torch_profiler_dir` must be an absolute path".to_owned()),
            None => Err("`torch_profiler_dir` must say where traces are written".to_owned()),
        },
    }
}

fn refuse(name: &str, value: &Value) -> Result<(), String> {
    if MOOT.contains(&name) {
        return Ok(());
    }
    match ABSENT.iter().find(|(absent, _)| *absent == name) {
        Some((_, fine)) if fine.contains(&value.to_string().as_str()) => Ok(()),
        Some((_, fine)) => Err(format!("`{name}` may be {}: traces have spans and kernels alone", fine[0])),
        None => Err(format!("there is no `{name}`")),
    }
}

fn text(members: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match members.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("`{name}` must be a string, got {other}")),
    }
}

fn count(members: &mut Map<String, Value>, name: &str) -> Result<u32, String> {
    let Some(value) = members.remove(name) else { return Ok(0) };
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| format!("`{name}` must be a whole number of steps, got {value}"))
}

/// Reads the body of `/start_profile`; there may be none.
pub fn overrides(body: &[u8]) -> Result<Overrides, ApiError> {
    let mut fields = Fields::parse(if body.is_empty() { b"{}" } else { body })?;
    let steps = |fields: &mut Fields<'_>, name| -> Result<Option<u32>, ApiError> {
        let count = fields.whole_in(name, 0..=i64::from(u32::MAX))?;
        Ok(count.and_then(|count| u32::try_from(count).ok()))
    };
    let overrides = Overrides {
        prefix: fields.text("profile_prefix")?,
        delay_steps: steps(&mut fields, "delay_iterations")?,
        max_steps: steps(&mut fields, "max_iterations")?,
    };
    if fields.object("profiler_kwargs")?.is_some_and(|arguments| !arguments.is_empty()) {
        return Err(ApiError::field("profiler_kwargs", "`profiler_kwargs` is not supported: leave it out."));
    }
    match &overrides.prefix {
        Some(prefix) if !is_file_name(prefix) => Err(ApiError::field(
            "profile_prefix",
            "`profile_prefix` must be 1 to 128 letters, digits, dots, dashes and underscores, the first a letter or \
             a digit.",
        )),
        _ => Ok(overrides),
    }
}

/// What the beginning of a trace's name may be, as [`is_file_name`] has it.
pub const PREFIXES: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

fn is_file_name(prefix: &str) -> bool {
    let begins = prefix.starts_with(|letter: char| letter.is_ascii_alphanumeric());
    begins && prefix.len() <= 128 && prefix.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vllms_object_and_a_folder_are_read() {
        let (folder, engine_only) = (PathBuf::from("/t"), false);
        let plain = Settings { folder, steps: Steps::default(), engine_only };
        assert_eq!(parse("{}"), Ok(None));
        assert_eq!(parse("/t"), Ok(Some(plain.clone())));
        assert_eq!(parse(r#"{"profiler": "torch", "torch_profiler_dir": "/t"}"#), Ok(Some(plain.clone())));
        let more = r#"{"profiler": "torch", "torch_profiler_dir": "/t", "delay_iterations": 2, "max_iterations": 3,
            "ignore_frontend": true, "torch_profiler_with_stack": true, "torch_profiler_use_gzip": false}"#;
        let steps = Steps { delay: 2, most: 3 };
        assert_eq!(parse(more), Ok(Some(Settings { steps, engine_only: true, ..plain })));
    }

    #[test]
    fn what_there_is_nothing_for_is_refused_by_name() {
        let rows = [
            ("relative", "absolute path"),
            (r#"{"profiler": "torch"}"#, "torch_profiler_dir"),
            (r#"{"torch_profiler_dir": "/t"}"#, "profiler"),
            (r#"{"profiler": "cuda"}"#, "profiler"),
            (r#"{"profiler": "torch", "torch_profiler_dir": "/t", "max_iterations": -1}"#, "max_iterations"),
            (r#"{"torch_profiler_with_flops": true}"#, "torch_profiler_with_flops"),
            (r#"{"x": 1}"#, "there is no `x`"),
        ];
        for (flag, word) in rows {
            let error = parse(flag).expect_err(flag);
            assert!(error.contains(word), "{flag}: {error}");
        }
    }

    #[test]
    fn requests_say_which_steps_and_name_the_trace() {
        let read = overrides(br#"{"profile_prefix": "a-1", "delay_iterations": 1, "max_iterations": 2}"#).unwrap();
        assert_eq!((read.prefix.as_deref(), read.delay_steps, read.max_steps), (Some("a-1"), Some(1), Some(2)));
        assert!(overrides(b"").unwrap().prefix.is_none());
        for body in [r#"{"profile_prefix": "../x"}"#, r#"{"profiler_kwargs": {"a": 1}}"#, r#"{"max_iterations": -1}"#] {
            assert!(overrides(body.as_bytes()).unwrap_err().param.is_some(), "{body}");
        }
    }
}
