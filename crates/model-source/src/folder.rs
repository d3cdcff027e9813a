//! What makes a folder a complete model, and which of a repository's files that takes.

use std::path::{Path, PathBuf};

use model_files::{FilesError, Pick, WeightFiles, gguf_of, is_lfs_pointer, pick};

use crate::{Need, SourceError, name::is_name};

/// Small files worth having when a repository has them, sorted.
const SMALL: &[&str] = &[
    "added_tokens.json",
    "artifact.metadata",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    "modules.json",
    "preprocessor_config.json",
    "processor_config.json",
    "sentence_bert_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// Layers of bge-m3 beside its weights.
const BESIDE: [&str; 2] = ["colbert_linear.pt", "sparse_linear.pt"];
/// What PEFT writes beside an adapter's weights.
const ADAPTER_CONFIG: &str = "adapter_config.json";
/// An adapter's weights; the first that is there counts.
const ADAPTER_WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// What is wanted of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) need: Need,
    /// Of a repository with several GGUF files, the one with this in its name.
    pub(crate) variant: Option<&'a str>,
}

impl Wanted<'_> {
    /// Whether a file may be among the weights.
    fn admits(&self, name: &str) -> bool {
        let has = |variant: &str| name.to_ascii_lowercase().contains(&variant.to_ascii_lowercase());
        self.variant.is_none_or(|variant| name.ends_with(".gguf") && has(variant))
    }

    /// Which of these files hold the weights.
    pub(crate) fn pick(&self, names: &[String]) -> Pick {
        pick(names.iter().map(String::as_str).filter(|name| self.admits(name)))
    }

    /// The path that stands for the model in a folder that is complete: the folder, or the one GGUF file asked for.
    pub(crate) fn path(&self, folder: &Path) -> PathBuf {
        let names: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .flat_map(|e| e.file_name().into_string())
            .collect();
        match (self.variant, self.pick(&names)) {
            (Some(_), Pick::Files(_, files)) => folder.join(&files[0]),
            _ => folder.to_owned(),
        }
    }

    /// Refuses a folder, or a GGUF file, that lacks something it obviously needs.
    pub(crate) fn check(&self, folder: &Path) -> Result<(), SourceError> {
        let model = self.path(folder);
        if self.variant.is_some() && model == folder {
            return Err(SourceError::Incomplete { folder: folder.to_owned(), missing: "the GGUF file".to_owned() });
        }
        let incomplete =
            |missing: &str| SourceError::Incomplete { folder: folder.to_owned(), missing: missing.to_owned() };
        match self.need {
            Need::Tokenizer if !has_tokenizer(&model) => {
                return Err(incomplete("a tokenizer (such as tokenizer.json)"));
            }
            Need::Tokenizer => return Ok(()),
            Need::Adapter => {
                let has = |name: &str| folder.join(name).is_file();
                return match (has(ADAPTER_CONFIG), ADAPTER_WEIGHTS.into_iter().any(has)) {
                    (false, _) => Err(incomplete(ADAPTER_CONFIG)),
                    (_, false) => Err(incomplete("adapter_model.safetensors or adapter_model.bin")),
                    _ => Ok(()),
                };
            }
            Need::Everything | Need::NoWeights => {}
        }
        let config = folder.join("config.json");
        if gguf_of(&model)?.is_none() && !config.is_file() {
            // An adapter has no config.json either, and is worth a better word.
            return Err(match WeightFiles::find(&model) {
                Err(error @ FilesError::AdapterOnly { .. }) => error.into(),
                _ => incomplete("config.json"),
            });
        }
        if is_lfs_pointer(&config) {
            return Err(FilesError::LfsPointer { file: config }.into());
        }
        if self.need == Need::Everything {
            WeightFiles::find(&model)?;
        }
        Ok(())
    }
}

/// The files of an adapter among those of a repository.
pub(crate) fn adapter_files(names: &[String]) -> Vec<&str> {
    let find = |name: &str| names.iter().map(String::as_str).find(|found| *found == name);
    find(ADAPTER_CONFIG).into_iter().chain(ADAPTER_WEIGHTS.into_iter().find_map(find)).collect()
}

/// The small files to fetch from a repository with these files.
pub(crate) fn small_files(names: &[String]) -> Vec<&str> {
    let wanted = |name: &&str| {
        SMALL.contains(name)
            || name.ends_with(".tiktoken") && !name.contains('/')
            || of_module(name).is_some_and(|file| file == "config.json")
    };
    names.iter().map(String::as_str).filter(wanted).collect()
}

/// The weights of modules of sentence-transformers (`2_Dense/model.safetensors`, or PyTorch's file where that is all)
/// and of bge-m3's layers.
pub(crate) fn module_weights(names: &[String]) -> Vec<String> {
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let wanted = |name: &&String| match of_module(name) {
        Some("model.safetensors") => true,
        Some(torch @ "pytorch_model.bin") => !has(&name.replace(torch, "model.safetensors")),
        _ => BESIDE.contains(&name.as_str()),
    };
    names.iter().filter(wanted).cloned().collect()
}

/// The file of a module that a name means: modules have numbered folders (`1_Pooling`).
fn of_module(name: &str) -> Option<&str> {
    let (folder, file) = name.split_once('/')?;
    let (number, kind) = folder.split_once('_')?;
    (number.parse::<u8>().is_ok() && is_name(kind) && is_name(file)).then_some(file)
}

fn has_tokenizer(model: &Path) -> bool {
    const ANY: [&str; 6] = [
        "tokenizer.json",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tiktoken.model",
        "vocab.json",
    ];
    let tiktoken = |entry: std::fs::DirEntry| entry.path().extension().is_some_and(|extension| extension == "tiktoken");
    ANY.iter().any(|name| model.join(name).is_file())
        || std::fs::read_dir(model).into_iter().flatten().flatten().any(tiktoken)
        || gguf_of(model).is_ok_and(|file| file.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(folder: &Path, need: Need, variant: Option<&str>) -> String {
        Wanted { need, variant }.check(folder).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_first_gap_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let check = |need, word: &str| {
            let found = gap(folder.path(), need, None);
            assert!(found.contains(word) && found.is_empty() == word.is_empty(), "{found:?} lacks {word:?}");
        };
        check(Need::NoWeights, "config.json is missing");
        check(Need::Tokenizer, "a tokenizer");
        write("tokenizer.model", "");
        check(Need::Tokenizer, "");
        write("config.json", "{}");
        check(Need::NoWeights, "");
        check(Need::Everything, "no .safetensors, no pytorch_model.bin");
        write("model.safetensors.index.json", r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#);
        write("m-1.safetensors", "");
        check(Need::Everything, "m-2.safetensors does not exist");
        write("m-2.safetensors", "");
        check(Need::Everything, "");
        write("model.safetensors.index.json", "not json");
        check(Need::Everything, "model.safetensors.index.json is damaged");
        write("config.json", "version https://git-lfs.github.com/spec/v1\n");
        check(Need::NoWeights, "git lfs pull");
    }

    #[test]
    fn a_gguf_file_is_chosen_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["m-Q4_K_M.gguf", "m-Q8_0.gguf"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert!(gap(folder.path(), Need::Everything, None).contains("m-Q4_K_M.gguf, m-Q8_0.gguf"));
        assert_eq!(gap(folder.path(), Need::Everything, Some("q8_0")), "");
        assert!(gap(folder.path(), Need::Everything, Some("Q6_K")).contains("the GGUF file is missing"));
        let wanted = Wanted { need: Need::Everything, variant: Some("q4_k_m") };
        assert_eq!(wanted.path(folder.path()), folder.path().join("m-Q4_K_M.gguf"));
    }
}
