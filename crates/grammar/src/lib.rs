//! Structured output: compiles what a request demands of its text, and says which tokens may come next.
//!
//! The engine is llguidance, which walks a trie of the vocabulary with an Earley parser over a lexer of derivatives.
//! This crate gives it the vocabulary of a tokenizer ([`Vocabulary`]), translates what requests name (`constraint.rs`;
//! `source.rs` for most, `gbnf` for llama.cpp's grammars, `structural.rs` for structural tags, `reasoning.rs` for
//! answers that think first), sets the bounds within which a hostile grammar ends, and keeps what was compiled
//! ([`Compiler`]). A [`Matcher`] follows one sequence:
//!
//! ```text
//! mask()  →  a bit a token: may it come next?      (tens of microseconds; before the token is sampled)
//! accept(token)                                     (below a microsecond; after it)
//! forced()         the tokens that must come next, where the tokenizer is known ([`Vocabulary::with_encoder`])
//! ```
//!
//! Pure: no clock, no threads, no files.

mod compiler;
mod constraint;
mod dialect;
mod error;
mod formats;
mod gbnf;
mod matcher;
mod names;
mod one_of;
mod reasoning;
mod source;
mod structural;
mod token_env;
mod vocabulary;

pub use compiler::Compiler;
pub use error::{GrammarError, MatchError};
pub use matcher::{Matcher, TokenMask};
pub use token_env::Encode;
pub use vocabulary::{Token, Vocabulary};
