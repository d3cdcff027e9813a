//! Tokenizer files other than `tokenizer.json`: each format is a reader that ends in a tokenizer of the reference
//! implementation, so that everything else is the same for all.

mod byte_level;
pub(crate) mod charsmap;
mod gguf;
mod merges;
mod pieces;
mod sentencepiece;
mod splits;
mod tiktoken;
mod vocab_json;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use model_files::gguf_of;
use tokenizers::{AddedToken, Tokenizer as Reference};

use crate::{TokenizerError, files::read};

/// A tokenizer as its file describes it; special tokens' roles and templates may still come from other files.
pub(crate) struct Built {
    pub(crate) reference: Reference,
    /// Whether a begin-of-text token goes before texts where no other file says.
    pub(crate) add_bos: bool,
    /// Whether an end-of-text token goes behind texts where no other file says.
    pub(crate) add_eos: bool,
    /// Roles and texts of special tokens that the file itself names.
    pub(crate) roles: Vec<(String, String)>,
}

/// What other files of the folder say of the vocabulary.
pub(crate) struct Beside {
    /// `tokenizer_class`, without `Fast`; empty where nothing says.
    pub(crate) class: String,
    /// Whether spaces are put before texts as SentencePiece does; absent where nothing says.
    pub(crate) legacy: Option<bool>,
    /// Whether a space goes before texts; absent where nothing says.
    pub(crate) add_prefix_space: Option<bool>,
    /// Tokens with the ids that they must have, which may rename a token of the vocabulary.
    pub(crate) fixed: BTreeMap<u32, AddedToken>,
}

/// SentencePiece models, by the names that classes give them.
const SENTENCEPIECE: [&str; 3] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"];
/// How far behind the vocabulary a fixed id may lie; bounds what a file can make us allocate.
const MAX_GAP: u32 = 1 << 16;

/// Builds the tokenizer of a folder without `tokenizer.json`, or of a GGUF file.
///
/// # Errors
/// When there is none, or it cannot be used.
pub(crate) fn build(model: &Path, beside: &Beside) -> Result<(Built, PathBuf), TokenizerError> {
    let file = |name: &str| Some(model.join(name)).filter(|path| path.is_file());
    let ranks = || file("tiktoken.model").or_else(|| tiktoken_file(model));
    let (built, path) = if let Some(path) = SENTENCEPIECE.iter().find_map(|name| file(name)) {
        let bytes = read(&path)?;
        // Llama 3 and GLM 4 keep tiktoken's ranks under SentencePiece's name.
        let built = match tiktoken::is_ranks(&bytes) {
            true => tiktoken::build(&bytes, beside),
            false => sentencepiece::build(&bytes, beside),
        };
        (built, path)
    } else if let Some(path) = ranks() {
        (tiktoken::build(&read(&path)?, beside), path)
    } else if let (Some(vocab), Some(merges)) = (file("vocab.json"), file("merges.txt")) {
        (vocab_json::build(&read(&vocab)?, &read(&merges)?, beside), vocab)
    } else if let Some(path) = gguf_of(model)? {
        (gguf::build(&model_files::Gguf::read(&path)?, beside), path)
    } else {
        return Err(TokenizerError::Missing { model: model.to_owned() });
    };
    match built {
        Ok(built) => Ok((built, path)),
        Err(reason) => Err(TokenizerError::Unusable { path, reason: reason.to_string() }),
    }
}

/// The first `*.tiktoken` of a folder.
fn tiktoken_file(dir: &Path) -> Option<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "tiktoken"))
}

/// Refuses ids so far behind a vocabulary of `len` tokens that they cannot be meant.
fn check_fixed(fixed: &BTreeMap<u32, AddedToken>, len: usize) -> tokenizers::Result<()> {
    match fixed.last_key_value() {
        Some((id, token)) if *id as usize >= len + MAX_GAP as usize => {
            Err(format!("the added token {:?} has the id {id}, but the vocabulary has {len} tokens", token.content)
                .into())
        }
        _ => Ok(()),
    }
}

/// Marks tokens of the vocabulary as added ones. They keep their ids.
fn mark_added(reference: &mut Reference, tokens: impl IntoIterator<Item = AddedToken>) -> tokenizers::Result<()> {
    for token in tokens {
        match token.special {
            true => reference.add_special_tokens([token])?,
            false => reference.add_tokens([token])?,
        };
    }
    Ok(())
}
