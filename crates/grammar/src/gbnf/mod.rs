//! GBNF, the EBNF dialect of llama.cpp's grammars, which vLLM's `grammar` takes too, as the engine's Lark.
//!
//! ```text
//! root  ::= "[" ws (item ("," ws item)*)? "]"      # rules; the text is one `root`
//! item  ::= [0-9]+ | "\"" [^"\\]{0,8} "\"" | root
//! ws    ::= [ \t\n]*
//! ```
//!
//! What does not recur is one regular expression: exactly the language that was written. Where rules recur, each
//! longest run of regular elements becomes a lexeme, which takes as much text as it can; a grammar in which a lexeme
//! ends where it could also go on is therefore read more narrowly than it was written, never more widely.

mod lark;
mod parse;

use crate::error::GrammarError;

/// A text as a literal of Lark.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A text as a regular expression that matches it alone.
pub(crate) fn pattern(text: &str) -> String {
    let mut out = String::from("(?:");
    text.chars().for_each(|character| lark::push_literal(&mut out, character));
    out.push(')');
    out
}

/// Whether a grammar is written in GBNF: Lark has no `::=`.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// Translates a grammar.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    lark::write(&parse::parse(text)?)
}

/// A grammar: rules that refer to each other by index; the first rule is the root.
#[derive(Debug, PartialEq)]
struct Rules {
    bodies: Vec<Expr>,
    root: usize,
}

/// What a rule may be.
#[derive(Clone, Debug, PartialEq)]
enum Expr {
    /// One of these.
    Either(Vec<Expr>),
    /// These, one after the other.
    Sequence(Vec<Expr>),
    Literal(String),
    /// A set of characters as a regular expression writes it, brackets included.
    Class(String),
    /// Any character.
    Any,
    Rule(usize),
    Repeat {
        body: Box<Expr>,
        least: u32,
        most: Option<u32>,
    },
}
