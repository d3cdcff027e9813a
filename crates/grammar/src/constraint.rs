//! A request's constraint as grammars, one after the other.

use llguidance::api::TopLevelGrammar;
use proto::{Constraint, Reasoning, constraint::Kind};
use serde_json::json;

use crate::{error::GrammarError, reasoning, source, structural, vocabulary::Vocabulary};

/// Translates a constraint, behind the answer's reasoning if it has any; finds what needs no compiling to be wrong.
pub(crate) fn translate(
    constraint: &Constraint,
    reasoning: Option<&Reasoning>,
    vocabulary: &Vocabulary,
) -> Result<TopLevelGrammar, GrammarError> {
    let mut grammars = match constraint.kind.as_ref() {
        None => return Err(GrammarError::Refused { reason: "it says nothing".to_owned() }),
        Some(Kind::JsonObject(_)) => vec![source::schema(json!({"type": "object"}), constraint)?],
        Some(Kind::JsonSchema(text)) => vec![source::schema(source::parse(text)?, constraint)?],
        Some(Kind::Regex(pattern)) => vec![source::regex(pattern)?],
        Some(Kind::Choice(choices)) => vec![source::choice(&choices.choices)?],
        Some(Kind::Grammar(text)) => vec![source::grammar(text)?],
        Some(Kind::StructuralTag(text)) => structural::translate(&source::parse(text)?, constraint, vocabulary)?,
    };
    if let Some(reasoning) = reasoning {
        grammars = reasoning::before(grammars, reasoning, vocabulary)?;
    }
    Ok(TopLevelGrammar { grammars, max_tokens: None })
}
