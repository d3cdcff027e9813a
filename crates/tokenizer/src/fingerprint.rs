//! A tokenizer that an adapter brings in its folder: which files it is, and whether they are what they were.

use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{Tokenizer, TokenizerError, files::read};

/// The files of tokenizers and chat templates that adapters are saved with. One of the first few makes a tokenizer.
const FILES: [&str; 13] = [
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];
/// How many of them make a tokenizer.
const MAKE: usize = 6;

/// A hash of the tokenizer's files in a folder; absent where it has no tokenizer.
///
/// # Errors
/// When a file cannot be read.
pub fn fingerprint(dir: &Path) -> Result<Option<String>, TokenizerError> {
    let is_there = |name: &str| dir.join(name).is_file();
    if !FILES[..MAKE].iter().any(|name| is_there(name)) {
        return Ok(None);
    }
    let mut hash = Sha256::new();
    for name in FILES.into_iter().filter(|name| is_there(name)) {
        hash.update(format!("{name} {:x}\n", Sha256::digest(read(&dir.join(name))?)));
    }
    Ok(Some(format!("{:x}", hash.finalize())))
}

impl Tokenizer {
    /// Loads a folder's tokenizer, whose files must have this fingerprint.
    ///
    /// # Errors
    /// As [`Tokenizer::load`], and when the files are others.
    pub fn load_unchanged(dir: &Path, expected: &str) -> Result<Self, TokenizerError> {
        let tokenizer = Self::load(dir)?;
        // After they were read: files that are replaced meanwhile do not pass for those that were asked for.
        match fingerprint(dir)?.as_deref() == Some(expected) {
            true => Ok(tokenizer),
            false => Err(TokenizerError::Changed { model: dir.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn other_files_are_another_tokenizer() {
        let dir = tempfile::tempdir().expect("a folder");
        let of = || fingerprint(dir.path()).expect("files");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("a file");
        write("tokenizer_config.json", "{}");
        write("adapter_config.json", "{}");
        assert_eq!(of(), None, "no tokenizer");
        write("tokenizer.json", "{}");
        let first = of().expect("a tokenizer");
        write("adapter_config.json", "{ }");
        assert_eq!(of().as_ref(), Some(&first), "another adapter");
        for (name, text) in [("chat_template.jinja", "x"), ("tokenizer_config.json", "{ }"), ("tokenizer.json", "{ }")]
        {
            let before = of();
            write(name, text);
            assert!(of() != before, "{name}");
        }
    }

    #[test]
    fn files_that_changed_are_not_loaded() {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/made/lora-vocab-saved");
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(from.join(name), dir.path().join(name)).expect("copied");
        }
        let before = fingerprint(dir.path()).expect("files").expect("a tokenizer");
        let loaded = Tokenizer::load_unchanged(dir.path(), &before).expect("a tokenizer");
        assert_eq!((loaded.vocab_size(), loaded.token_to_id("Tab7")), (66, Some(65)));
        fs::write(dir.path().join("special_tokens_map.json"), "{}").expect("a file");
        let error = Tokenizer::load_unchanged(dir.path(), &before).err().expect("other files");
        assert!(error.to_string().contains("load the adapter again"), "{error}");
    }
}
