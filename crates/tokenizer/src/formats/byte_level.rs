//! Byte-level vocabularies: pairs of bytes are merged inside what the model's regular expressions cut out.

use std::collections::BTreeMap;

use tokenizers::{
    AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer as Reference,
    models::bpe::{BPE, Vocab},
    normalizers::unicode::NFC,
    pre_tokenizers::{
        byte_level::ByteLevel as Bytes,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{Beside, check_fixed, mark_added, splits::Splits};

/// A byte-level vocabulary, written in the byte alphabet.
pub(super) struct ByteLevel {
    /// Tokens by id.
    pub(super) tokens: BTreeMap<u32, String>,
    /// Pairs that merge, first ones first.
    pub(super) merges: Vec<(String, String)>,
    pub(super) splits: &'static Splits,
    /// Tokens of the vocabulary that are cut out of texts before anything else, by id; written as texts have them.
    pub(super) added: BTreeMap<u32, AddedToken>,
}

impl ByteLevel {
    /// The tokenizer, without a template.
    pub(super) fn build(mut self, beside: &Beside) -> tokenizers::Result<Reference> {
        let len = self.tokens.last_key_value().map_or(0, |(id, _)| *id as usize + 1);
        check_fixed(&beside.fixed, len)?;
        self.added.extend(beside.fixed.iter().map(|(id, token)| (*id, token.clone())));
        self.tokens.extend(self.added.iter().map(|(id, token)| (*id, token.content.clone())));
        // Of tokens with the same text the first one counts.
        let vocab: Vocab = self.tokens.into_iter().rev().map(|(id, text)| (text, id)).collect();
        let known = |text: &String| vocab.contains_key(text);
        // Merges of tokens that other files have renamed make nothing.
        self.merges.retain(|(left, right)| known(left) && known(right) && known(&format!("{left}{right}")));
        let model =
            BPE::builder().vocab_and_merges(vocab, self.merges).ignore_merges(self.splits.whole_first).build()?;
        let mut reference = Reference::new(model);
        if self.splits.nfc {
            reference.with_normalizer(Some(NFC))?;
        }
        reference.with_pre_tokenizer(Some(cuts(self.splits)?));
        reference.with_decoder(Some(Bytes::new(false, true, false)));
        mark_added(&mut reference, self.added.into_values())?;
        Ok(reference)
    }
}

fn cuts(splits: &Splits) -> tokenizers::Result<Sequence> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for pattern in splits.patterns {
        let pattern = SplitPattern::Regex((*pattern).to_owned());
        steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
    }
    steps.push(Bytes::new(false, true, false).into());
    Ok(Sequence::new(steps))
}
