//! Classes that are a causal language model with something else in the place of its head: hidden states, or class
//! scores.

use model_spec::{ClassesSpec, ConfigError, HeadSpec};

use super::{Blueprint, Folder};
use crate::weights::{Names, ParamId};

/// Class names of `config.json`, sorted; the causal class whose layers they have; and what takes the place of its head.
const POOLING: &[(&str, &str, ReadHead)] =
    &[("MistralModel", "MistralForCausalLM", hidden), ("Qwen2ForSequenceClassification", "Qwen2ForCausalLM", classes)];

type ReadHead = fn(&Folder, Blueprint) -> Result<Blueprint, ConfigError>;

/// The causal class of `architecture`, and what takes the place of its head.
pub(super) fn find(architecture: &str) -> Option<(&'static str, ReadHead)> {
    let (_, causal, read) = POOLING.iter().find(|(class, ..)| *class == architecture)?;
    Some((causal, *read))
}

fn hidden(_: &Folder, mut blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    blueprint.spec.head = HeadSpec::Hidden;
    Ok(blueprint)
}

/// `score`, a matrix without bias; one row a label.
fn classes(folder: &Folder, Blueprint { mut spec, names }: Blueprint) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let labels = config.get("id2label").and_then(|labels| labels.as_object()).map(|labels| labels.len());
    // Two where the file names none, as in the library that writes such files.
    let count = config.size_or("num_labels", labels.unwrap_or(2))?;
    if count == 0 {
        return Err(config.unsupported("id2label", "expected at least one label"));
    }
    spec.head = HeadSpec::Classes(ClassesSpec { count, bias: false });
    Ok(Blueprint { spec, names: with_head(names, "score.weight") })
}

/// The same names, but for the head's.
fn with_head(names: Names, head: &'static str) -> Names {
    Box::new(move |id, kind| if id == ParamId::Head { head.to_owned().into() } else { names(id, kind) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_names_causal_classes() {
        assert!(POOLING.is_sorted_by(|a, b| a.0 < b.0));
        for (class, causal, _) in POOLING {
            assert!(crate::supported().any(|served| served == *causal), "{causal}, of {class}");
            assert!(crate::supported().all(|served| served != *class), "{class}");
        }
    }
}
