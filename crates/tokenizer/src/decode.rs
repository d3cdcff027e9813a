//! Decoding one token at a time.

mod byte_run;
mod utf8;
mod window;

use byte_run::ByteRun;
use utf8::Carry;
use window::Window;

use crate::{DecoderShape, Tokenizer, TokenizerError};

/// What becomes of special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Special tokens leave no text.
    pub skip_special_tokens: bool,
    /// When false (and special tokens are kept), an added token right behind another one is written without a space
    /// between.
    pub spaces_between_special_tokens: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { skip_special_tokens: true, spaces_between_special_tokens: true }
    }
}

/// What stands before the first token to decode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// The last ids before it. Empty: the text starts here.
    pub ids: &'a [u32],
    /// More ids, not given here, stand before `ids`.
    pub is_tail: bool,
}

/// Turns ids into text one at a time. Each piece of text consists of whole characters, and all pieces together (with
/// [`finish`](Self::finish)) are the text that the context's and the new ids have together, less the context's.
///
/// Text is held back only while a character is incomplete; byte-fallback vocabularies hold a run of byte tokens until
/// it ends, because whether its bytes are text is decided for the whole run.
pub struct IncrementalDecoder {
    options: DecodeOptions,
    state: State,
    /// The last token was an added one.
    after_added: bool,
}

enum State {
    ByteLevel(Carry),
    ByteFallback(ByteRun),
    /// Whether a token came already.
    Pieces(bool),
    Window(Box<Window>),
}

impl IncrementalDecoder {
    /// Starts behind `context`, which gives no text itself. `tokenizer` must be the same in every call.
    ///
    /// # Errors
    /// As [`push`](Self::push), for the context's tokens.
    pub fn new(tokenizer: &Tokenizer, options: DecodeOptions, context: Context<'_>) -> Result<Self, TokenizerError> {
        let state = match tokenizer.shape() {
            DecoderShape::ByteLevel => State::ByteLevel(Carry::default()),
            DecoderShape::ByteFallback(rules) => State::ByteFallback(ByteRun::new(rules, context.is_tail)),
            DecoderShape::Pieces => State::Pieces(context.is_tail),
            DecoderShape::Other => State::Window(Box::default()),
        };
        let mut decoder = Self { options, state, after_added: false };
        let mut ignored = String::new();
        for &id in context.ids {
            decoder.push(tokenizer, id, &mut ignored)?;
        }
        Ok(decoder)
    }

    /// Takes the next id and appends the text that is now certain to `out`.
    ///
    /// # Errors
    /// Only vocabularies with an unusual decoder can fail, when the reference refuses the tokens; `out` is then
    /// unchanged.
    #[inline]
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) -> Result<(), TokenizerError> {
        let table = tokenizer.table();
        let class = table.class(id);
        if class.is_special() && self.options.skip_special_tokens || class == crate::table::TokenClass::None {
            return Ok(());
        }
        match &mut self.state {
            State::ByteLevel(carry) if carry.is_empty() && class.is_text() => out.push_str(table.text(id)),
            State::ByteLevel(carry) => carry.push(table.bytes(id), out),
            State::ByteFallback(run) => run.push(class, table, id, out),
            State::Pieces(_) | State::Window(_) => return self.push_joined(tokenizer, id, out),
        }
        Ok(())
    }

    /// The decoders that put something between tokens.
    fn push_joined(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) -> Result<(), TokenizerError> {
        let added = tokenizer.table().class(id).is_added();
        let bare = added && self.after_added && !self.options.spaces_between_special_tokens;
        let before = out.len();
        match &mut self.state {
            State::Pieces(later) if !*later => {
                out.push_str(&tokenizer.decode(&[id], false)?);
                *later = true;
            }
            State::Window(window) => window.push(tokenizer, id, out)?,
            _ => out.push_str(tokenizer.table().text(id)),
        }
        if bare && let Some(content) = tokenizer.id_to_token(id) {
            out.truncate(before);
            out.push_str(&content);
        }
        self.after_added = added;
        Ok(())
    }

    /// Appends what was held back, with U+FFFD for what never became a character. The decoder starts a new text
    /// afterwards.
    pub fn finish(&mut self, out: &mut String) {
        match &mut self.state {
            State::ByteLevel(carry) => carry.finish(out),
            State::ByteFallback(run) => run.flush(out),
            State::Pieces(_) => {}
            State::Window(window) => window.finish(out),
        }
    }
}
