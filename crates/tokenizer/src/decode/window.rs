//! Unusual decoders: the reference decodes a short window of ids, and what the window's text grew by is new.
//!
//! The idea of a window with a settled prefix is that of `DecodeStream` in the `tokenizers` crate.

use crate::{Tokenizer, TokenizerError};

/// Ids that may wait for a character to be completed; more than any character needs.
const MAX_PENDING: usize = 32;

/// The ids since the last text but one.
#[derive(Default)]
pub(super) struct Window {
    ids: Vec<u32>,
    /// How many of `ids` have given their text already.
    settled: usize,
    /// The text of those.
    settled_text: String,
    /// Text of later ids that waits.
    pending: String,
}

impl Window {
    pub(super) fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) -> Result<(), TokenizerError> {
        self.ids.push(id);
        let text = match tokenizer.decode(&self.ids, false) {
            Ok(text) => text,
            Err(error) => {
                self.ids.pop();
                return Err(error);
            }
        };
        let new = text.strip_prefix(self.settled_text.as_str()).unwrap_or_default();
        let unfinished = new.is_empty() || new.ends_with(char::REPLACEMENT_CHARACTER);
        if unfinished && self.ids.len() - self.settled < MAX_PENDING {
            self.pending = new.to_owned();
            return Ok(());
        }
        out.push_str(new);
        self.pending.clear();
        self.ids.drain(..self.settled);
        self.settled = self.ids.len();
        self.settled_text = tokenizer.decode(&self.ids, false)?;
        Ok(())
    }

    pub(super) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.pending);
        *self = Self::default();
    }
}
