//! The tokens that a grammar's text is made of.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::{
    gbnf::quoted,
    token_env::{CanonicalTokens, Encode},
};

/// What marks a token of the trie as one that stands for no text (llguidance's convention): byte FF occurs in no UTF-8.
const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;

/// A tokenizer's tokens as a trie of their bytes; cloning shares it.
#[derive(Clone)]
pub struct Vocabulary {
    pub(crate) env: TokEnv,
    marks: Arc<Marks>,
}

/// Tokens that have a name, longest first.
#[derive(Default)]
struct Marks {
    special: Vec<(String, u32)>,
    added: Vec<(String, u32)>,
    end_tokens: Vec<u32>,
}

/// One token of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// It adds these bytes to a text.
    Text(&'a [u8]),
    /// The same, and it is no part of words: a marker that texts show.
    Added(&'a str),
    /// It adds nothing: end of text, roles of a conversation. Grammars name it.
    Special(&'a str),
    /// No token has this id.
    Absent,
}

/// A piece of a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    Special(u32),
}

impl Vocabulary {
    /// Of the tokens with ids 0, 1, 2, …; `end_tokens` end a text, and those outside the vocabulary do not count.
    ///
    /// Takes some 0.2 s for 128 k tokens. Absent when no end token is left: a text could never end.
    pub fn new<'a>(tokens: impl Iterator<Item = Token<'a>>, end_tokens: &[u32]) -> Option<Self> {
        let mut marks = Marks::default();
        let words: Vec<Vec<u8>> = tokens.zip(0..).map(|(token, id)| marks.word(token, id)).collect();
        let end_tokens: Vec<u32> = end_tokens.iter().copied().filter(|&id| (id as usize) < words.len()).collect();
        let info = TokRxInfo::new(words.len() as u32, *end_tokens.first()?);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&end_tokens);
        for list in [&mut marks.special, &mut marks.added] {
            list.sort_by(|one, other| other.0.len().cmp(&one.0.len()).then(one.cmp(other)));
        }
        marks.end_tokens = end_tokens;
        Some(Self { env: Arc::new(ApproximateTokEnv::new(trie)), marks: Arc::new(marks) })
    }

    /// The same tokens, and how the tokenizer writes a text: grammars then know which tokens must come next. Masks of
    /// such places allow the tokenizer's own token alone.
    pub fn with_encoder(self, encode: Arc<Encode>) -> Self {
        let env = CanonicalTokens::new(self.env.tok_trie().clone(), encode);
        Self { env: Arc::new(env), ..self }
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.env.tok_trie().vocab_size()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a token writes: its text, or its name.
    pub fn shown(&self, token: u32) -> &[u8] {
        if token as usize >= self.len() {
            return &[];
        }
        let bytes = self.env.tok_trie().token(token);
        bytes.strip_prefix(&[SPECIAL]).unwrap_or(bytes)
    }

    /// A token that ends a text.
    pub fn end_token(&self) -> u32 {
        self.env.tok_trie().eos_token()
    }

    /// Tokens that end a text.
    pub(crate) fn end_tokens(&self) -> &[u32] {
        &self.marks.end_tokens
    }

    /// The added token that is exactly this text.
    pub(crate) fn added(&self, text: &str) -> Option<u32> {
        self.marks.added.iter().find(|(name, _)| name == text).map(|(_, id)| *id)
    }

    /// A text as special tokens and what stands between them.
    pub(crate) fn parts(&self, text: &str) -> Vec<Part> {
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(letter) = rest.chars().next() {
            let special = self.marks.special.iter().find(|(name, _)| rest.starts_with(name.as_str()));
            let Some((name, id)) = special else {
                plain.push(letter);
                rest = &rest[letter.len_utf8()..];
                continue;
            };
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Special(*id));
            rest = &rest[name.len()..];
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        parts
    }

    /// A text as an expression of Lark.
    pub(crate) fn literal(&self, text: &str) -> String {
        let parts: Vec<String> = self.parts(text).iter().map(Part::lark).collect();
        if parts.is_empty() { "\"\"".to_owned() } else { format!("({})", parts.join(" ")) }
    }

    /// The same; a text that is one added token is written by that token alone.
    pub(crate) fn token_literal(&self, text: &str) -> String {
        self.added(text).map_or_else(|| self.literal(text), |id| format!("<[{id}]>"))
    }
}

impl Part {
    pub(crate) fn lark(&self) -> String {
        match self {
            Self::Text(text) => quoted(text),
            Self::Special(id) => format!("<[{id}]>"),
        }
    }
}

impl Marks {
    /// The bytes of a token in the trie.
    fn word(&mut self, token: Token<'_>, id: u32) -> Vec<u8> {
        match token {
            Token::Absent => Vec::new(),
            // A text that begins with the marker would pass for a special token; no valid text does.
            Token::Text(bytes) if bytes.first() == Some(&SPECIAL) => Vec::new(),
            Token::Text(bytes) => bytes.to_vec(),
            Token::Added(text) => {
                if !text.is_empty() {
                    self.added.push((text.to_owned(), id));
                }
                text.as_bytes().to_vec()
            }
            Token::Special(name) => {
                if !name.is_empty() {
                    self.special.push((name.to_owned(), id));
                }
                [&[SPECIAL], name.as_bytes()].concat()
            }
        }
    }
}
