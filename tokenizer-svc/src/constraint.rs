//! What a request demands of its text is compiled here first, so that what cannot be compiled is that request's error,
//! before the scheduler hears of it; and what its reasoning looks like is told, because here the prompt's end is known.

use std::sync::OnceLock;

use chat_format::parsers::{Begins, ReasoningFormat};
use grammar::{Compiler, Token, Vocabulary};
use proto::{Constraint, Failure, Reasoning, Sampling, TokenIds, constraint::Kind, reasoning::Start};
use tokenizer::{TokenKind, Tokenizer};

use crate::{error, model::Model};

/// What a constraint costs at least, in bytes of text to encode.
const LEAST_BYTES: usize = 1 << 10;

/// The compiler of one vocabulary, made when the first constraint comes.
#[derive(Default)]
pub(crate) struct Grammars(OnceLock<Option<Compiler>>);

impl Grammars {
    fn compiler(&self, tokenizer: &Tokenizer, end_tokens: &[u32]) -> Option<&Compiler> {
        self.0.get_or_init(|| compiler(tokenizer, end_tokens)).as_ref()
    }
}

fn compiler(tokenizer: &Tokenizer, end_tokens: &[u32]) -> Option<Compiler> {
    let tokens = (0..tokenizer.vocab_size()).map(|id| match tokenizer.token_kind(id) {
        TokenKind::Text(bytes) => Token::Text(bytes),
        TokenKind::Added(text) => Token::Added(text),
        TokenKind::Special(name) => Token::Special(name),
        TokenKind::Absent => Token::Absent,
    });
    let vocabulary = Vocabulary::new(tokens, end_tokens)?;
    Compiler::new(&vocabulary).inspect_err(|error| tracing::warn!("no structured output: {error}")).ok()
}

/// Bytes of text that checking the constraint has to go through.
pub(crate) fn bytes(sampling: &Sampling) -> usize {
    let Some(constraint) = &sampling.constraint else { return 0 };
    LEAST_BYTES
        + match &constraint.kind {
            Some(Kind::JsonSchema(text) | Kind::Regex(text) | Kind::Grammar(text) | Kind::StructuralTag(text)) => {
                text.len()
            }
            Some(Kind::Choice(choices)) => choices.choices.iter().map(String::len).sum(),
            Some(Kind::JsonObject(_)) | None => 0,
        }
}

/// Says how the answer's reasoning begins and ends, behind a prompt with this end, and compiles the constraint.
pub(crate) fn prepare(model: &Model, sampling: &mut Sampling, prompt_tail: &str) -> Result<(), Failure> {
    if let Some(reasoning) = &mut sampling.reasoning {
        describe(model, reasoning, prompt_tail)?;
        if reasoning.start() == Start::None {
            sampling.reasoning = None;
        }
    }
    match &sampling.constraint {
        Some(constraint) => check(model, constraint, sampling.reasoning.as_ref()),
        None => Ok(()),
    }
}

fn describe(model: &Model, reasoning: &mut Reasoning, prompt_tail: &str) -> Result<(), Failure> {
    let format = ReasoningFormat::named(&reasoning.format).map_err(|error| error::internal(error.to_string()))?;
    let start = match format.begins(prompt_tail) {
        Begins::InReasoning => Start::Open,
        Begins::InAnswer => Start::None,
        Begins::InEither => Start::MayOpen,
    };
    reasoning.set_start(start);
    reasoning.open = format.opens().iter().map(|&marker| marker.to_owned()).collect();
    let marks = if reasoning.calls { format.call_marks() } else { format.answer_marks() };
    reasoning.close = marks.iter().map(|&marker| marker.to_owned()).collect();
    if reasoning.budget.is_none() || start == Start::None {
        return Ok(());
    }
    let Some(close) = reasoning.close.first() else {
        let message = format!("how reasoning ends in the format `{}` cannot be told", reasoning.format);
        return Err(error::invalid("thinking_token_budget", message));
    };
    let marker = format!("{}{close}", format.turn());
    let ids = model.tokenizer.encode(&marker, false).map_err(|error| error::encoding(&error))?;
    reasoning.forced = Some(TokenIds { ids });
    Ok(())
}

fn check(model: &Model, constraint: &Constraint, reasoning: Option<&Reasoning>) -> Result<(), Failure> {
    let Some(compiler) = model.grammars.compiler(&model.tokenizer, &model.info.eos_token_ids) else {
        let message = "structured output needs a token that ends texts, and this model has none";
        return Err(error::invalid(&constraint.param, message));
    };
    let compiled = compiler.matcher(constraint, reasoning);
    compiled.map(drop).map_err(|error| error::invalid(&constraint.param, format!("{}: {error}", constraint.param)))
}
