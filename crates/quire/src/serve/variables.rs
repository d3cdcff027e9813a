//! Environment variables: those that stand for a flag or are read, and those of vLLM that make no difference here or
//! are refused. A variable of vLLM acts, is refused by name, or is reported with the reason; none is ignored silently.

#[cfg(test)]
pub mod markdown;
mod table;

use std::collections::BTreeMap;

use model_spec::nearest;

use super::flags::{FlagError, Settings, Source, from_variable};
use table::{Fate, GROUPS};

/// The variables of this process that concern it, by name.
pub type Variables = BTreeMap<String, String>;

/// Whether a variable is one that `quire serve` reads or judges.
pub fn concerns(name: &str) -> bool {
    name.starts_with("VLLM_") || fate(name).is_some() || super::flags::of_variable(name).is_some()
}

/// Adds what variables say to what flags say: flags take precedence. Refuses variables that ask for what Quire does not
/// do, and gathers what is to be reported of others.
pub fn apply(settings: &mut Settings, variables: &Variables) -> Result<(), FlagError> {
    for (name, value) in variables.iter().filter(|(_, value)| !value.is_empty()) {
        let flag = match fate(name) {
            Some(Fate::Flag(flag)) => Some(*flag),
            _ => super::flags::of_variable(name),
        };
        match (flag, fate(name)) {
            (Some(flag), _) => from_variable(settings, flag, name, &translated(name, value))?,
            (None, Some(fate)) => judge(settings, name, value, fate)?,
            (None, None) => settings.without_effect.push(unknown(name)),
        }
    }
    check_batch_invariance(settings, variables)
}

fn fate(name: &str) -> Option<&'static Fate> {
    GROUPS.iter().find(|group| group.names.contains(&name)).map(|group| &group.fate)
}

fn judge(settings: &mut Settings, name: &str, value: &str, fate: &Fate) -> Result<(), FlagError> {
    match fate {
        Fate::Flag(_) | Fate::Read(_) | Fate::Holds(_) => Ok(()),
        Fate::Moot(reason) => {
            settings.without_effect.push(format!("environment: {name} makes no difference: {reason}"));
            Ok(())
        }
        Fate::Refused(fine, _) if fine.iter().any(|fine| fine.eq_ignore_ascii_case(value)) => Ok(()),
        Fate::Refused(fine, note) => {
            Err(FlagError::Unsupported { at: Source::Environment, given: format!("{name}={value}"), fine, note })
        }
    }
}

fn unknown(name: &str) -> String {
    let names = GROUPS.iter().flat_map(|group| group.names.iter().copied());
    let near = nearest(name, names).map_or(String::new(), |near| format!("; did you mean {near}?"));
    format!("environment: {name} is no variable of Quire or vLLM{near}")
}

/// vLLM's words as Quire's.
fn translated(name: &str, value: &str) -> String {
    match (name, value.to_ascii_lowercase().as_str()) {
        ("VLLM_LOGGING_LEVEL", "warning") => "warn".to_owned(),
        ("VLLM_LOGGING_LEVEL", "critical" | "fatal") => "error".to_owned(),
        ("VLLM_LOGGING_LEVEL", level) => level.to_owned(),
        _ => value.to_owned(),
    }
}

/// The same tokens whatever else is in the batch: so it is on CPUs, and on GPUs in float32.
fn check_batch_invariance(settings: &Settings, variables: &Variables) -> Result<(), FlagError> {
    let wanted = variables.get("VLLM_BATCH_INVARIANT").is_some_and(|value| ["1", "true"].contains(&value.as_str()));
    let holds = settings.text("device") == Some("cpu") || matches!(settings.text("dtype"), Some("float32" | "float"));
    if !wanted || holds {
        return Ok(());
    }
    Err(FlagError::Unsupported {
        at: Source::Environment,
        given: "VLLM_BATCH_INVARIANT=1".to_owned(),
        fine: &[],
        note: "in 16 bits a GPU's low bits may depend on the batch; add --dtype float32 or --device cpu",
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::serve::flags::parse;

    fn applied(line: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let mut settings = parse(&words).expect("flags");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        apply(&mut settings, &variables).map_err(|error| error.to_string())?;
        Ok(settings)
    }

    #[test]
    fn each_name_is_in_one_group() {
        let names: Vec<_> = GROUPS.iter().flat_map(|group| group.names).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(GROUPS.iter().all(|group| group.names.is_sorted() && !group.names.is_empty()));
        let flags = GROUPS.iter().filter_map(|group| if let Fate::Flag(flag) = group.fate { Some(flag) } else { None });
        for flag in flags {
            assert!(crate::serve::flags::is_flag_of_serve(flag), "{flag}");
        }
    }

    #[test]
    fn variables_stand_for_flags_which_take_precedence() {
        let settings = applied("", &[("VLLM_LOGGING_LEVEL", "WARNING"), ("VLLM_LOG_STATS_INTERVAL", "2.5")]).unwrap();
        assert_eq!(settings.text("log-level"), Some("warn"));
        assert_eq!(settings.text("log-stats-interval"), Some("2.5"));
        let settings = applied("--log-level error", &[("VLLM_LOGGING_LEVEL", "DEBUG")]).unwrap();
        assert_eq!(settings.text("log-level"), Some("error"));
        assert_eq!(applied("", &[("VLLM_LOGGING_LEVEL", "")]).unwrap().text("log-level"), None);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (name, value, part) in [
            ("VLLM_USE_MODELSCOPE", "true", "environment: VLLM_USE_MODELSCOPE=true is not supported"),
            ("VLLM_BATCH_INVARIANT", "1", "add --dtype float32"),
            ("VLLM_PLUGINS", "mine", "no plugins but lora_filesystem_resolver"),
            ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "soon", "environment: --http-keep-alive soon: must be a number"),
        ] {
            let error = applied("", &[(name, value)]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        for (name, value) in [("VLLM_USE_MODELSCOPE", "False"), ("VLLM_BATCH_INVARIANT", "0"), ("VLLM_DP_SIZE", "1")] {
            assert_eq!(applied("", &[(name, value)]).unwrap().without_effect(), [""; 0], "{name}");
        }
        assert!(applied("--dtype float32", &[("VLLM_BATCH_INVARIANT", "1")]).is_ok());
    }

    #[test]
    fn what_makes_no_difference_is_reported_and_what_holds_is_not() {
        let settings = applied("", &[("VLLM_USE_DEEP_GEMM", "1"), ("VLLM_NO_USAGE_STATS", "1")]).unwrap();
        let said = settings.without_effect();
        assert!(said.len() == 1 && said[0].contains("VLLM_USE_DEEP_GEMM makes no difference"), "{said:?}");
        let said = applied("", &[("VLLM_USE_MODELSCOP", "1")]).unwrap().without_effect().join("");
        assert!(said.contains("did you mean VLLM_USE_MODELSCOPE?"), "{said}");
    }
}
