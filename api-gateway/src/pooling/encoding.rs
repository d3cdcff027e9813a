//! How embeddings are written: as JSON numbers, as base64, or as bytes behind a header that describes them.

use base64::{Engine, prelude::BASE64_STANDARD};
use half::{bf16, f16};

use crate::{
    error::ApiError,
    openai::fields::{Fields, wrong},
};

/// How embeddings are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoding {
    /// As what.
    pub format: Format,
    /// Of each number, unless it is JSON.
    pub dtype: EmbedType,
    /// Order of a number's bytes.
    pub endianness: Endianness,
}

/// As what embeddings are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// A list of numbers.
    Float,
    /// A text.
    Base64,
    /// All embeddings as the answer's body, described in its header.
    Bytes,
    /// The same without a description.
    BytesOnly,
}

/// Types of an embedding's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmbedType {
    /// IEEE single.
    Float32,
    /// IEEE half.
    Float16,
    /// bfloat16.
    Bfloat16,
}

/// Order of a number's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Endianness {
    /// The least significant first.
    Little,
    /// The most significant first.
    Big,
}

impl Encoding {
    /// Reads `encoding_format`, `embed_dtype` and `endianness`.
    pub fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let format = match fields.text("encoding_format")?.as_deref() {
            None | Some("float") => Format::Float,
            Some("base64") => Format::Base64,
            Some("bytes") => Format::Bytes,
            Some("bytes_only") => Format::BytesOnly,
            Some(other) => return Err(wrong("encoding_format", other, "`float`, `base64`, `bytes` or `bytes_only`")),
        };
        let dtype = match fields.text("embed_dtype")?.as_deref() {
            None | Some("float32") => EmbedType::Float32,
            Some("float16") => EmbedType::Float16,
            Some("bfloat16") => EmbedType::Bfloat16,
            Some(other) => return Err(wrong("embed_dtype", other, "`float32`, `float16` or `bfloat16`")),
        };
        let endianness = match fields.text("endianness")?.as_deref() {
            None | Some("native" | "little") => Endianness::Little,
            Some("big") => Endianness::Big,
            Some(other) => return Err(wrong("endianness", other, "`native`, `little` or `big`")),
        };
        Ok(Self { format, dtype, endianness })
    }

    /// What JSON has in place of a list of numbers; absent where it has the list.
    pub fn json_text(self, values: &[f32]) -> Option<String> {
        (self.format != Format::Float).then(|| BASE64_STANDARD.encode(self.bytes(values)))
    }

    /// Its bytes.
    pub fn bytes(self, values: &[f32]) -> Vec<u8> {
        let big = self.endianness == Endianness::Big;
        match self.dtype {
            EmbedType::Float32 => flatten(values, |value| if big { value.to_be_bytes() } else { value.to_le_bytes() }),
            EmbedType::Float16 => flatten(values, |value| {
                let value = f16::from_f32(value);
                if big { value.to_be_bytes() } else { value.to_le_bytes() }
            }),
            EmbedType::Bfloat16 => flatten(values, |value| {
                let value = bf16::from_f32(value);
                if big { value.to_be_bytes() } else { value.to_le_bytes() }
            }),
        }
    }
}

fn flatten<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| bytes(*value)).collect()
}

impl EmbedType {
    /// As requests call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
        }
    }
}

impl Endianness {
    /// As requests call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Little => "little",
            Self::Big => "big",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Encoding, ApiError> {
        Encoding::read(&mut Fields::parse(json.as_bytes()).expect("an object"))
    }

    #[test]
    fn numbers_are_written_as_asked() {
        let values = [1.0, -2.5];
        let written = |json: &str| read(json).expect(json).json_text(&values);
        assert_eq!(written("{}"), None);
        assert_eq!(written(r#"{"encoding_format": "base64"}"#).as_deref(), Some("AACAPwAAIMA="));
        let of = |json: &str| read(json).expect(json).bytes(&values);
        assert_eq!(of(r#"{"endianness": "big"}"#), [0x3f, 0x80, 0, 0, 0xc0, 0x20, 0, 0]);
        assert_eq!(of(r#"{"embed_dtype": "float16"}"#), [0, 0x3c, 0, 0xc1]);
        assert_eq!(of(r#"{"embed_dtype": "bfloat16", "endianness": "big"}"#), [0x3f, 0x80, 0xc0, 0x20]);
    }

    #[test]
    fn other_words_are_refused_by_name() {
        for (json, field) in [
            (r#"{"encoding_format": "hex"}"#, "encoding_format"),
            (r#"{"embed_dtype": "fp8_e4m3"}"#, "embed_dtype"),
            (r#"{"endianness": "middle"}"#, "endianness"),
        ] {
            assert_eq!(read(json).unwrap_err().param.as_deref(), Some(field));
        }
    }
}
