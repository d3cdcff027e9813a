//! The file that `--config` names: a YAML object of flags by their long names.

use serde_yaml_ng::Value as Yaml;

use super::{
    error::{FlagError, Source},
    reader::Reader,
    settings::Settings,
};

/// Reads a file of flags.
pub(super) fn read(path: &str) -> Result<Settings, FlagError> {
    let failed = |problem: String| FlagError::File { path: path.to_owned(), problem };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let yaml: Yaml = serde_yaml_ng::from_str(&text).map_err(|error| failed(error.to_string()))?;
    let flags = match yaml {
        Yaml::Mapping(flags) => flags,
        Yaml::Null => return Ok(Settings::default()),
        _ => return Err(failed("must be an object of flags, such as `port: 9000`".to_owned())),
    };
    let mut reader = Reader::new(Source::File(path.to_owned()));
    for (name, value) in &flags {
        let name = name.as_str().ok_or_else(|| failed(format!("{name:?} is not the name of a flag")))?;
        if name == "config" {
            return Err(failed("names another file".to_owned()));
        }
        for text in texts(value).map_err(|problem| failed(format!("{name}: {problem}")))? {
            reader.named(name, Some(&text))?;
        }
    }
    reader.finish()
}

/// The texts that a value stands for on a command line; `null` is a flag that is not given.
fn texts(value: &Yaml) -> Result<Vec<String>, String> {
    match value {
        Yaml::Null => Ok(Vec::new()),
        Yaml::Bool(on) => Ok(vec![on.to_string()]),
        Yaml::Number(number) => Ok(vec![number.to_string()]),
        Yaml::String(text) => Ok(vec![text.clone()]),
        // A list of plain values repeats the flag; deeper ones are JSON.
        Yaml::Sequence(items) if items.iter().all(|item| item.is_string() || item.is_number()) => {
            items.iter().map(texts).collect::<Result<Vec<_>, _>>().map(|lists| lists.concat())
        }
        Yaml::Sequence(_) | Yaml::Mapping(_) => {
            serde_json::to_string(value).map(|text| vec![text]).map_err(|error| error.to_string())
        }
        Yaml::Tagged(_) => Err("YAML tags are not understood".to_owned()),
    }
}
