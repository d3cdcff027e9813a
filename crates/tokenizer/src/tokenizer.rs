//! One model's tokenizer: text to ids, ids to text, and what each token looks like.

use std::{borrow::Cow, path::Path};

use tokenizers::{ModelWrapper, Tokenizer as Reference};

use crate::{
    DecoderShape, SpecialTokens, TokenizerError, load,
    table::{Table, TokenClass},
};

/// The algorithm that splits words into tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// Byte-pair encoding, over bytes or over characters with byte fallback.
    Bpe,
    /// BERT's longest match first.
    WordPiece,
    /// Whole words.
    WordLevel,
    /// SentencePiece's unigram language model.
    Unigram,
}

/// What a token is inside a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind<'a> {
    /// A part of text: these bytes.
    Text(&'a [u8]),
    /// An added token that texts show.
    Added(&'a str),
    /// A special token, which texts do not show unless they are asked to.
    Special(&'a str),
    /// No token has this id.
    Absent,
}

/// Two texts that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The first.
    pub first: &'a str,
    /// The second.
    pub second: &'a str,
    /// Put what the model's template adds between and around them.
    pub add_special_tokens: bool,
}

/// Two texts as one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedPair {
    /// Their tokens.
    pub ids: Vec<u32>,
    /// The first token of the second type; absent where the model's template has one type alone.
    pub second: Option<usize>,
}

/// One model's tokenizer. Shared freely between threads.
pub struct Tokenizer {
    reference: Reference,
    special: SpecialTokens,
    shape: DecoderShape,
    table: Table,
}

impl Tokenizer {
    /// Loads the tokenizer of a model, a folder or a GGUF file: `tokenizer.json`, or else SentencePiece's, tiktoken's
    /// or GPT-2's files, or else what a GGUF file holds; with what `tokenizer_config.json` and
    /// `special_tokens_map.json` say, which may be absent.
    ///
    /// # Errors
    /// When there is no tokenizer, or a file cannot be read or used.
    pub fn load(model: &Path) -> Result<Self, TokenizerError> {
        let (reference, special) = load::load(model)?;
        let shape = DecoderShape::of(reference.get_decoder());
        let table = Table::build(&reference, &shape)?;
        Ok(Self { reference, special, shape, table })
    }

    /// The ids of `text`. `add_special_tokens` adds what the model's template adds, usually a begin-of-text token.
    ///
    /// # Errors
    /// When the model has no token for a part of the text and no unknown token either.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        match self.reference.encode_fast(text, add_special_tokens) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(TokenizerError::Encode { reason: error.to_string() }),
        }
    }

    /// Two texts as one prompt, with what the model's template puts between and around them. Of a prompt longer than
    /// `most` tokens the ends of the texts are left out, the second one's first.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_pair(&self, pair: Pair<'_>, most: Option<usize>) -> Result<EncodedPair, TokenizerError> {
        let Pair { first, second, add_special_tokens } = pair;
        let encoded = self.reference.encode((first, second), add_special_tokens);
        let encoding = encoded.map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        let (mut ids, mut types) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        let mut texts = encoding.get_sequence_ids();
        while most.is_some_and(|most| ids.len() > most) {
            let of = |text| texts.iter().rposition(|of| *of == Some(text));
            let Some(last) = of(1).or_else(|| of(0)).or_else(|| ids.len().checked_sub(1)) else { break };
            ids.remove(last);
            types.remove(last);
            texts.remove(last);
        }
        let second = types.iter().position(|kind| *kind > 0);
        Ok(EncodedPair { ids, second })
    }

    /// The text of `ids`, all at once. Ids that name no token are skipped.
    ///
    /// # Errors
    /// When the decoder of the model refuses the tokens.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        self.reference
            .decode(ids, skip_special_tokens)
            .map_err(|error| TokenizerError::Decode { reason: error.to_string() })
    }

    /// One more than the largest id, added tokens included.
    pub fn vocab_size(&self) -> u32 {
        self.table.len()
    }

    /// The special tokens that the model's files name.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// The id of a token, written as in the vocabulary.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.reference.token_to_id(token)
    }

    /// A token as the vocabulary writes it, such as `Ġthe` or `▁the`.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.reference.id_to_token(id)
    }

    /// The algorithm that splits words.
    pub fn kind(&self) -> ModelKind {
        match self.reference.get_model() {
            ModelWrapper::BPE(_) => ModelKind::Bpe,
            ModelWrapper::WordPiece(_) => ModelKind::WordPiece,
            ModelWrapper::WordLevel(_) => ModelKind::WordLevel,
            ModelWrapper::Unigram(_) => ModelKind::Unigram,
        }
    }

    /// How tokens are joined to text.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    /// Whether the token is a special one, which `skip_special_tokens` leaves out.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.class(id).is_special()
    }

    /// What the token adds to a text, and whether it is a marker.
    pub fn token_kind(&self, id: u32) -> TokenKind<'_> {
        match self.table.class(id) {
            TokenClass::None => TokenKind::Absent,
            TokenClass::Special => TokenKind::Special(self.table.text(id)),
            TokenClass::Added => TokenKind::Added(self.table.text(id)),
            TokenClass::Text | TokenClass::Bytes | TokenClass::Byte => TokenKind::Text(self.table.bytes(id)),
        }
    }

    /// The bytes that the token stands for inside a text. Empty for ids that name no token.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.table.bytes(id)
    }

    /// The token's text inside a text, with U+FFFD for bytes that are no whole character by themselves.
    pub fn token_text(&self, id: u32) -> Cow<'_, str> {
        match self.table.class(id) {
            TokenClass::None => Cow::Borrowed(""),
            class if class.is_text() => Cow::Borrowed(self.table.text(id)),
            _ => String::from_utf8_lossy(self.table.bytes(id)),
        }
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }
}
