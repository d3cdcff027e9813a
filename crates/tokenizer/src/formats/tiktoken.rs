//! tiktoken's rank files: a line is a token's bytes in base64 and its rank, which is its id and says how early it is
//! made.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use tokenizers::AddedToken;

use super::{Beside, Built, byte_level::ByteLevel, merges, splits};
use crate::alphabet::characters;

/// Whether a file begins like a rank file.
pub(super) fn is_ranks(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| parse(line).is_some())
}

/// Reads the ranks. How texts are cut, and special tokens that are in no file, are known by the tokenizer's class.
pub(super) fn build(bytes: &[u8], beside: &Beside) -> tokenizers::Result<Built> {
    let class = if beside.class.is_empty() { "PreTrainedTokenizer" } else { &beside.class };
    let splits = splits::named(class)?;
    let ranks = ranks(bytes)?;
    let made: Vec<(&[u8], u32)> = ranks.iter().map(|(rank, token)| (token.as_slice(), *rank)).collect();
    let pairs = merges::of_pieces(&made, |token: &[u8]| (1..token.len()).map(|at| token.split_at(at)).collect());
    let letters = characters();
    let tokens: BTreeMap<u32, String> = (ranks.iter())
        .map(|(rank, token)| (*rank, token.iter().map(|byte| letters[usize::from(*byte)]).collect()))
        .collect();
    let merges = pairs.iter().map(|(left, right)| (tokens[left].clone(), tokens[right].clone())).collect();
    let first = ranks.last_key_value().map_or(0, |(rank, _)| rank + 1);
    let special = specials(class).into_iter().zip(first..);
    let added: BTreeMap<u32, AddedToken> =
        special.map(|(text, id)| (id, AddedToken::from(text, true).normalized(false))).collect();
    let roles = match class {
        "PreTrainedTokenizer" | "LlamaTokenizer" => {
            [("bos_token", "<|begin_of_text|>"), ("eos_token", "<|end_of_text|>")]
        }
        _ => [("eos_token", "<|endoftext|>"), ("pad_token", "<|endoftext|>")],
    };
    let roles = roles.into_iter().filter(|(_, text)| added.values().any(|token| token.content == *text));
    let roles = roles.map(|(role, text)| (role.to_owned(), text.to_owned())).collect();
    let reference = ByteLevel { tokens, merges, splits, added }.build(beside)?;
    Ok(Built { reference, add_bos: splits.add_bos, add_eos: false, roles })
}

fn ranks(bytes: &[u8]) -> tokenizers::Result<BTreeMap<u32, Vec<u8>>> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no rank file of tiktoken")?;
    let mut ranks = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (token, rank) = parse(line)
            .ok_or_else(|| format!("line {} is not a token in base64 and its rank; download it again", number + 1))?;
        ranks.insert(rank, token);
    }
    // Otherwise the largest rank would say how much to allocate.
    match ranks.last_key_value() {
        Some((last, _)) if (*last as usize) < 2 * ranks.len() + 65_536 => Ok(ranks),
        _ => Err("its ranks are not the numbers of its lines; download it again".into()),
    }
}

fn parse(line: &str) -> Option<(Vec<u8>, u32)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    Some((STANDARD.decode(token).ok().filter(|token| !token.is_empty())?, rank.parse().ok()?))
}

/// Special tokens that follow the ranks and are written in the code of the class only.
fn specials(class: &str) -> Vec<String> {
    let named = |texts: &[&str]| texts.iter().map(|text| format!("<|{text}|>")).collect::<Vec<_>>();
    match class {
        "QWenTokenizer" => {
            let mut all = named(&["endoftext", "im_start", "im_end"]);
            all.extend((0..205).map(|n| format!("<|extra_{n}|>")));
            all
        }
        // Llama 3.1's names; in Llama 3.0 those that it lacks are reserved ones too.
        "PreTrainedTokenizer" | "LlamaTokenizer" => {
            let mut all =
                named(&["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"]);
            all.extend(named(&[
                "finetune_right_pad_id",
                "reserved_special_token_2",
                "start_header_id",
                "end_header_id",
            ]));
            all.extend(named(&["eom_id", "eot_id", "python_tag"]));
            all.extend((3..248).map(|n| format!("<|reserved_special_token_{n}|>")));
            all
        }
        _ => Vec::new(),
    }
}
