//! Vocabularies with byte fallback: runs of byte tokens, and spaces cut from the start.

use crate::{
    shape::ByteFallback,
    table::{Table, TokenClass},
};

/// A run of byte tokens that has not ended, and what is still to be cut from the start of the text.
///
/// The reference reads a run as text only if all of it is valid; else every byte becomes U+FFFD. So a run is kept until
/// it ends.
pub(super) struct ByteRun {
    run: Vec<u8>,
    strip: Option<(char, usize)>,
}

impl ByteRun {
    /// `inside` a text nothing is cut.
    pub(super) fn new(rules: &ByteFallback, inside: bool) -> Self {
        Self { run: Vec::new(), strip: rules.strip.filter(|_| !inside) }
    }

    #[inline]
    pub(super) fn push(&mut self, class: TokenClass, table: &Table, id: u32, out: &mut String) {
        if class == TokenClass::Byte {
            self.run.extend_from_slice(table.bytes(id));
            return;
        }
        self.flush(out);
        self.emit(table.text(id), out);
    }

    /// Ends the run.
    pub(super) fn flush(&mut self, out: &mut String) {
        if self.run.is_empty() {
            return;
        }
        let run = std::mem::take(&mut self.run);
        match String::from_utf8(run) {
            Ok(text) => self.emit(&text, out),
            Err(error) => {
                let marks = "\u{FFFD}".repeat(error.as_bytes().len());
                self.emit(&marks, out);
            }
        }
    }

    fn emit(&mut self, text: &str, out: &mut String) {
        match self.strip {
            None => out.push_str(text),
            Some(_) => self.emit_start(text, out),
        }
    }

    fn emit_start(&mut self, mut text: &str, out: &mut String) {
        while let Some((character, left)) = self.strip {
            if text.is_empty() {
                return;
            }
            self.strip = None;
            if let Some(rest) = text.strip_prefix(character).filter(|_| left > 0) {
                text = rest;
                self.strip = Some((character, left - 1));
            }
        }
        out.push_str(text);
    }
}
