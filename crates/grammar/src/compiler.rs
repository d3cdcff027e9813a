//! Compiles constraints within bounds, and keeps what was compiled.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use llguidance::{Matcher as Engine, ParserFactory, api::ParserLimits, toktrie::InferenceCapabilities};
use proto::{Constraint, Reasoning};

use crate::{constraint, error::GrammarError, matcher::Matcher, vocabulary::Vocabulary};

/// Compiled constraints that are kept; requests of one application share theirs.
const KEPT: usize = 64;

/// Compiles constraints over one vocabulary. Threads share it, and compile side by side.
pub struct Compiler {
    vocabulary: Vocabulary,
    factory: ParserFactory,
    /// The latest used last.
    kept: Mutex<VecDeque<Kept>>,
}

struct Kept {
    constraint: Constraint,
    reasoning: Option<Reasoning>,
    engine: Engine,
}

impl Compiler {
    /// Over a vocabulary; takes some 0.3 s for 128 k tokens, which are sorted into slices that most masks share.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&vocabulary.env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|error| refused(&error))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Self { vocabulary: vocabulary.clone(), factory, kept: Mutex::default() })
    }

    /// The tokens that it compiles over.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// A matcher at the beginning of a text, which may begin with reasoning. Compiles in some milliseconds, within
    /// bounds, what is not kept.
    pub fn matcher(&self, constraint: &Constraint, reasoning: Option<&Reasoning>) -> Result<Matcher, GrammarError> {
        // How much of it there may be is not the grammar's.
        let reasoning = reasoning.map(|all| Reasoning { budget: None, forced: None, ..all.clone() });
        if let Some(matcher) = self.find(constraint, reasoning.as_ref()) {
            return Ok(matcher);
        }
        let engine = self.compile(constraint, reasoning.as_ref())?;
        let matcher = Matcher::new(engine.deep_clone());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(Kept { constraint: constraint.clone(), reasoning, engine });
        Ok(matcher)
    }

    fn find(&self, constraint: &Constraint, reasoning: Option<&Reasoning>) -> Option<Matcher> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |kept: &Kept| is_alike(&kept.constraint, constraint) && kept.reasoning.as_ref() == reasoning;
        let at = kept.iter().position(is_same)?;
        let found = kept.remove(at)?;
        let matcher = Matcher::new(found.engine.deep_clone());
        kept.push_back(found);
        Some(matcher)
    }

    fn compile(&self, constraint: &Constraint, reasoning: Option<&Reasoning>) -> Result<Engine, GrammarError> {
        let parser = self.factory.create_parser(constraint::translate(constraint, reasoning, &self.vocabulary)?);
        let mut engine = Engine::new(Ok(parser.map_err(|error| refused(&error))?));
        // A grammar without any text shows here, and so does one whose first mask already exceeds the bounds.
        engine.compute_mask_or_eos().map_err(|error| refused(&error))?;
        Ok(engine)
    }
}

/// Whether two constraints demand the same, whatever field said it.
fn is_alike(one: &Constraint, other: &Constraint) -> bool {
    one.kind == other.kind
        && one.disable_any_whitespace == other.disable_any_whitespace
        && one.whitespace_pattern == other.whitespace_pattern
        && one.disable_additional_properties == other.disable_additional_properties
}

/// Bounds of time (by counted work, so that the same grammar always ends alike) and memory.
fn limits() -> ParserLimits {
    ParserLimits {
        // About 20 ms of building a lexer, some 15 of a mask, and at most 60 MB of states.
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 30_000,
        max_grammar_size: 500_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

fn refused(error: &dyn std::fmt::Display) -> GrammarError {
    let reason = error.to_string();
    // The engine's remedy is a switch that requests do not have.
    match reason.contains("'coerce_one_of'") {
        true => GrammarError::OneOf,
        false => GrammarError::Refused { reason },
    }
}
