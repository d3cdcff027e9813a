//! Checks SentencePiece's compiled rules for characters, which the reference implementation follows without looking
//! where they lead.
//!
//! ```text
//! length of the trie in bytes (u32) | units of a double array (u32 each) | replacements, each ended by a zero byte
//! ```
//! A unit holds a label (bits 0–7), whether a value follows (bit 8), and the distance to its children (bits 10–31,
//! times 256 with bit 9).

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokenizers::Tokenizer as Reference;

/// Checks the rules that a tokenizer's file brought along, wherever its normalizer has some.
pub(crate) fn check_all(reference: &Reference) -> tokenizers::Result<()> {
    // The reference implementation shows its rules only as it would write them.
    check_within(&serde_json::to_value(reference.get_normalizer())?)
}

fn check_within(written: &Value) -> tokenizers::Result<()> {
    match written {
        Value::Array(parts) => parts.iter().try_for_each(check_within),
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| match (name.as_str(), field) {
            ("precompiled_charsmap", Value::String(rules)) => check(&STANDARD.decode(rules)?),
            (_, field) => check_within(field),
        }),
        _ => Ok(()),
    }
}

/// Whether every walk through the rules stays inside them, whatever the text.
pub(super) fn check(charsmap: &[u8]) -> tokenizers::Result<()> {
    let damaged = || tokenizers::Error::from("its precompiled_charsmap is damaged");
    let (len, rest) = charsmap.split_first_chunk::<4>().ok_or_else(damaged)?;
    let (units, replacements) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(damaged)?;
    let replacements = std::str::from_utf8(replacements).map_err(|_| damaged())?;
    let units: Vec<usize> = units.as_chunks::<4>().0.iter().map(|unit| u32::from_le_bytes(*unit) as usize).collect();
    let (&root, mut seen) = (units.first().ok_or_else(damaged)?, vec![false; units.len()]);
    // Nodes whose children are still to be looked at.
    let mut open = vec![children(root)];
    while let Some(node) = open.pop() {
        // The next byte is looked up before anybody knows whether it belongs there.
        if node | 0xFF >= units.len() {
            return Err(damaged());
        }
        if std::mem::replace(&mut seen[node], true) {
            continue;
        }
        for byte in 1..=0xFF {
            let (at, unit) = (node ^ byte, units[node ^ byte]);
            if unit & (1 << 31 | 0xFF) != byte {
                continue;
            }
            let child = at ^ children(unit);
            let value = units.get(child).ok_or_else(damaged)? & ((1 << 31) - 1);
            if unit >> 8 & 1 == 1 && !replacements.is_char_boundary(value) {
                return Err(damaged());
            }
            open.push(child);
        }
    }
    Ok(())
}

fn children(unit: usize) -> usize {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Rules that replace "a" by "b": the root's children lie at 256, `a` among them; its value at 512.
    fn rules() -> (Vec<u32>, Vec<u8>) {
        let mut units = vec![0u32; 768];
        units[0] = 256 << 10;
        units[256 ^ usize::from(b'a')] = (256 ^ u32::from(b'a') ^ 512) << 10 | 1 << 8 | u32::from(b'a');
        (units, b"b\0".to_vec())
    }

    fn bytes(units: &[u32], replacements: &[u8]) -> Vec<u8> {
        let units: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        [&(units.len() as u32).to_le_bytes()[..], &units, replacements].concat()
    }

    #[test]
    fn good_rules_pass_and_work() {
        let (units, replacements) = rules();
        let bytes = bytes(&units, &replacements);
        check(&bytes).unwrap();
        let rules = tokenizers::normalizers::Precompiled::from(&bytes).unwrap();
        assert_eq!(rules.normalize_string("xax"), "xbx");
    }

    #[test]
    fn rules_in_a_tokenizer_json_are_checked_when_it_is_loaded() {
        let (mut units, replacements) = rules();
        let load = |units: &[u32]| {
            let rules = STANDARD.encode(bytes(units, &replacements));
            let dir = tempfile::tempdir().unwrap();
            let json = json!({
                "version": "1.0",
                "added_tokens": [],
                "normalizer": {"type": "Sequence", "normalizers": [
                    {"type": "Lowercase"},
                    {"type": "Precompiled", "precompiled_charsmap": rules},
                ]},
                "model": {"type": "WordLevel", "vocab": {"b": 0, "?": 1}, "unk_token": "?"},
            });
            std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
            crate::Tokenizer::load(dir.path())
        };
        assert_eq!(load(&units).unwrap().encode("A", false).unwrap(), [0]);
        units[512] = 9;
        let refused = load(&units).err().expect("a refusal").to_string();
        assert!(
            refused.contains("tokenizer.json cannot be used") && refused.contains("precompiled_charsmap"),
            "{refused}"
        );
    }

    #[test]
    fn rules_that_lead_outside_are_refused() {
        let (units, replacements) = rules();
        let refused = |bytes: &[u8]| assert!(check(bytes).is_err());
        refused(&[]);
        refused(&[0, 0, 0, 0]);
        refused(&[255, 255, 255, 255, 0]);
        refused(&bytes(&units[..600], &replacements));
        refused(&bytes(&units, b"\xff"));
        let mut far = units.clone();
        far[0] = 2048 << 10;
        refused(&bytes(&far, &replacements));
        let mut value = units.clone();
        value[512] = 9;
        refused(&bytes(&value, &replacements));
    }
}
