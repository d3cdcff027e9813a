//! What each token adds to a text, laid out flat: one entry per id, texts and bytes in two shared buffers.

use tokenizers::{Decoder, Tokenizer as Reference};

use crate::{DecoderShape, TokenizerError, alphabet::byte_of_char, shape::ByteFallback};

/// What an id is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenClass {
    /// No token has this id.
    None,
    /// Whole characters.
    Text,
    /// Bytes that are no text by themselves (byte-level vocabularies).
    Bytes,
    /// One byte of a byte-fallback vocabulary, such as `<0x0A>`.
    Byte,
    /// An added token, as text.
    Added,
    /// An added token that is special, as text.
    Special,
}

impl TokenClass {
    pub(crate) fn is_special(self) -> bool {
        self == Self::Special
    }

    pub(crate) fn is_added(self) -> bool {
        matches!(self, Self::Added | Self::Special)
    }

    /// The entry lies in the text buffer.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Added | Self::Special)
    }
}

/// One entry per id.
#[derive(Clone, Copy)]
struct Entry {
    start: u32,
    end: u32,
    class: TokenClass,
}

pub(crate) struct Table {
    entries: Vec<Entry>,
    text: String,
    bytes: Vec<u8>,
}

impl Table {
    pub(crate) fn build(reference: &Reference, shape: &DecoderShape) -> Result<Self, TokenizerError> {
        let len = reference.get_vocab(true).into_values().max().map_or(0, |largest| largest as usize + 1);
        let tokens: Vec<Option<String>> = (0..len as u32).map(|id| reference.id_to_token(id)).collect();
        let pieces = match shape {
            DecoderShape::Pieces => following(reference, &tokens)?,
            _ => Vec::new(),
        };
        let added = reference.get_added_vocabulary();
        let mut table = Self { entries: Vec::with_capacity(len), text: String::new(), bytes: Vec::new() };
        let mut piece = pieces.into_iter();
        for (id, token) in tokens.iter().enumerate() {
            let Some(token) = token else {
                table.push(TokenClass::None, b"");
                continue;
            };
            let (class, bytes) = match shape {
                DecoderShape::ByteLevel => byte_level(token),
                DecoderShape::ByteFallback(rules) => byte_fallback(token, rules),
                DecoderShape::Pieces => (TokenClass::Text, piece.next().unwrap_or_default().into_bytes()),
                DecoderShape::Other => (TokenClass::Text, alone(reference, token)?.into_bytes()),
            };
            let class = match class {
                TokenClass::Text if added.is_special_token(token) => TokenClass::Special,
                TokenClass::Text if added.get_added_tokens_decoder().contains_key(&(id as u32)) => TokenClass::Added,
                class => class,
            };
            table.push(class, &bytes);
        }
        Ok(table)
    }

    fn push(&mut self, class: TokenClass, bytes: &[u8]) {
        let class = match std::str::from_utf8(bytes) {
            Ok(text) if class.is_text() => {
                self.text.push_str(text);
                class
            }
            _ => {
                self.bytes.extend_from_slice(bytes);
                class
            }
        };
        let end = if class.is_text() { self.text.len() } else { self.bytes.len() };
        self.entries.push(Entry { start: (end - bytes.len()) as u32, end: end as u32, class });
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn class(&self, id: u32) -> TokenClass {
        self.entries.get(id as usize).map_or(TokenClass::None, |entry| entry.class)
    }

    /// The text of a token whose class is text; empty for others.
    pub(crate) fn text(&self, id: u32) -> &str {
        match self.entries.get(id as usize) {
            Some(entry) if entry.class.is_text() => &self.text[entry.start as usize..entry.end as usize],
            _ => "",
        }
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        match self.entries.get(id as usize) {
            Some(entry) if !entry.class.is_text() => &self.bytes[entry.start as usize..entry.end as usize],
            _ => self.text(id).as_bytes(),
        }
    }
}

/// The texts that all tokens have when they are not the first, by the reference itself.
fn following(reference: &Reference, tokens: &[Option<String>]) -> Result<Vec<String>, TokenizerError> {
    let Some(decoder) = reference.get_decoder() else {
        return Ok(tokens.iter().flatten().map(|token| format!(" {token}")).collect());
    };
    let chain: Vec<String> = std::iter::once("a".to_owned()).chain(tokens.iter().flatten().cloned()).collect();
    let mut texts =
        decoder.decode_chain(chain).map_err(|error| TokenizerError::Decode { reason: error.to_string() })?;
    texts.remove(0);
    Ok(texts)
}

fn alone(reference: &Reference, token: &str) -> Result<String, TokenizerError> {
    match reference.get_decoder() {
        Some(decoder) => {
            decoder.decode(vec![token.to_owned()]).map_err(|error| TokenizerError::Decode { reason: error.to_string() })
        }
        None => Ok(token.to_owned()),
    }
}

/// Byte-level vocabularies write each byte as one printable character. A token with any other character stands for
/// itself.
fn byte_level(token: &str) -> (TokenClass, Vec<u8>) {
    let bytes: Vec<u8> =
        token.chars().map(byte_of_char).collect::<Option<_>>().unwrap_or_else(|| token.as_bytes().to_vec());
    let class = if std::str::from_utf8(&bytes).is_ok() { TokenClass::Text } else { TokenClass::Bytes };
    (class, bytes)
}

fn byte_fallback(token: &str, rules: &ByteFallback) -> (TokenClass, Vec<u8>) {
    let mut text = token.to_owned();
    for (pattern, content) in &rules.replace {
        text = text.replace(pattern, content);
    }
    let byte = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>')).filter(|hex| hex.len() == 2);
    match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        Some(byte) => (TokenClass::Byte, vec![byte]),
        None => (TokenClass::Text, text.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tokens_are_told_from_text() {
        let rules = ByteFallback { replace: vec![("▁".into(), " ".into())], strip: None };
        assert_eq!(byte_fallback("<0x0A>", &rules), (TokenClass::Byte, vec![10]));
        assert_eq!(byte_fallback("<0xZZ>", &rules), (TokenClass::Text, b"<0xZZ>".to_vec()));
        assert_eq!(byte_fallback("▁the", &rules), (TokenClass::Text, b" the".to_vec()));
    }
}
