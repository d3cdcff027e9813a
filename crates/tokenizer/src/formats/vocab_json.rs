//! `vocab.json` and `merges.txt`: byte-level vocabularies of GPT-2's time.

use std::collections::BTreeMap;

use super::{Beside, Built, byte_level::ByteLevel, splits};

/// Reads both files. How texts are cut is known by the tokenizer's class.
pub(super) fn build(vocab: &[u8], merges: &[u8], beside: &Beside) -> tokenizers::Result<Built> {
    let class = if beside.class.is_empty() { "GPT2Tokenizer" } else { &beside.class };
    let splits = splits::named(class)?;
    let vocab: BTreeMap<String, u32> = serde_json::from_slice(vocab)?;
    let text = std::str::from_utf8(merges).map_err(|_| "merges.txt is not text")?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pair = |line: &str| line.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
    let merges = lines.map(pair).collect::<Option<_>>().ok_or("a line of merges.txt is no pair of tokens")?;
    let tokens = vocab.into_iter().map(|(text, id)| (id, text)).collect();
    let reference = ByteLevel { tokens, merges, splits, added: BTreeMap::new() }.build(beside)?;
    Ok(Built { reference, add_bos: splits.add_bos, add_eos: false, roles: Vec::new() })
}
