//! Encoding and incremental decoding of text.
//!
//! [`Tokenizer`] turns text into ids exactly as the tokenizer files of a model say, whatever their format.
//! [`IncrementalDecoder`] turns ids into text one token at a time, at a cost that does not grow with the text: the
//! pieces that it returns never split a character, and together they are what decoding all ids at once gives.

mod alphabet;
mod decode;
mod error;
mod files;
mod fim;
mod fingerprint;
mod formats;
mod load;
mod shape;
mod special;
mod table;
mod tokenizer;

pub use decode::{Context, DecodeOptions, IncrementalDecoder};
pub use error::TokenizerError;
pub use fingerprint::fingerprint;
pub use shape::DecoderShape;
pub use special::SpecialTokens;
pub use tokenizer::{EncodedPair, ModelKind, Pair, TokenKind, Tokenizer};
