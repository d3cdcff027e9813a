//! How a tokenizer writes the text that a grammar forces.

use std::sync::Arc;

use llguidance::toktrie::{TokTrie, TokenId, TokenizerEnv};

/// A text as the tokenizer's tokens, without special tokens around it; empty where it cannot be written.
pub type Encode = dyn Fn(&str) -> Vec<u32> + Send + Sync;

/// What stands before a text, so that a tokenizer does not take it for the beginning of a prompt.
const BEFORE: &str = "\n";

/// A vocabulary whose tokenizer is known.
pub(crate) struct CanonicalTokens {
    trie: TokTrie,
    encode: Arc<Encode>,
}

impl CanonicalTokens {
    pub(crate) fn new(trie: TokTrie, encode: Arc<Encode>) -> Self {
        Self { trie, encode }
    }

    /// The tokenizer's own tokens of a text, if they write it byte by byte: SentencePiece begins prompts with a space,
    /// and some tokenizers change letters.
    fn canonical(&self, text: &str) -> Option<Vec<TokenId>> {
        let own = (self.encode)(text);
        if self.writes(&own, text) {
            return Some(own);
        }
        let mut within = (self.encode)(&format!("{BEFORE}{text}"));
        let end_of_before = within.iter().position(|token| self.bytes(*token) == Some(BEFORE.as_bytes()))?;
        within.drain(..=end_of_before);
        self.writes(&within, text).then_some(within)
    }

    fn writes(&self, tokens: &[TokenId], text: &str) -> bool {
        let mut rest = text.as_bytes();
        for token in tokens {
            match self.bytes(*token).and_then(|bytes| rest.strip_prefix(bytes)) {
                Some(left) => rest = left,
                None => return false,
            }
        }
        rest.is_empty()
    }

    fn bytes(&self, token: TokenId) -> Option<&[u8]> {
        ((token as usize) < self.trie.vocab_size()).then(|| self.trie.token(token))
    }
}

impl TokenizerEnv for CanonicalTokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    /// A text that the tokenizer would write otherwise is written by the longest tokens that fit.
    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        let canonical = std::str::from_utf8(text).ok().and_then(|text| self.canonical(text));
        canonical.unwrap_or_else(|| self.trie.greedy_tokenize(text))
    }
}
