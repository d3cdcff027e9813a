//! An answer that begins with reasoning: any tokens up to its end, and then what is demanded.

use llguidance::api::GrammarWithLexer;
use proto::{Reasoning, reasoning::Start};

use crate::{
    error::GrammarError,
    gbnf::pattern,
    vocabulary::{Part, Vocabulary},
};

/// The grammars behind the reasoning; the first of them is the answer's.
pub(crate) fn before(
    mut grammars: Vec<GrammarWithLexer>,
    reasoning: &Reasoning,
    vocabulary: &Vocabulary,
) -> Result<Vec<GrammarWithLexer>, GrammarError> {
    const ANSWER: &str = "the-answer";
    if reasoning.start() == Start::None {
        return Ok(grammars);
    }
    if reasoning.close.is_empty() {
        let reason = format!("the end of reasoning in the format `{}` cannot be told", reasoning.format);
        return Err(GrammarError::Refused { reason });
    }
    let opens: Vec<String> = reasoning.open.iter().map(|open| vocabulary.literal(open)).collect();
    let start = match reasoning.start() {
        Start::MayOpen if opens.is_empty() => return Ok(grammars),
        Start::MayOpen => format!("(({}) thinking SEAM?)? @{ANSWER}", opens.join(" | ")),
        _ => format!("thinking SEAM? @{ANSWER}"),
    };
    if let Some(answer) = grammars.first_mut() {
        answer.name = Some(ANSWER.to_owned());
    }
    let lark = format!("start: {start}\nSEAM: /[\\n]{{1,2}}/\n{}", thinking(reasoning, vocabulary));
    grammars.insert(0, GrammarWithLexer::from_lark(lark));
    Ok(grammars)
}

/// The rule of all that comes up to one of the markers, and the marker.
fn thinking(reasoning: &Reasoning, vocabulary: &Vocabulary) -> String {
    let first_token = |close: &String| match vocabulary.parts(close).into_iter().next() {
        Some(Part::Special(token)) => Some(token),
        _ => vocabulary.added(close),
    };
    let firsts: Option<Vec<u32>> = reasoning.close.iter().map(first_token).collect();
    match firsts {
        // Any tokens but that, which costs next to nothing.
        Some(firsts) => {
            let ends: Vec<String> = reasoning.close.iter().map(|close| vocabulary.token_literal(close)).collect();
            let never = firsts.iter().chain(vocabulary.end_tokens()).map(u32::to_string).collect::<Vec<_>>();
            let others: Vec<String> = reasoning.close.iter().filter_map(|close| other(close, vocabulary)).collect();
            let others: String = others.iter().map(|other| format!(" | {other}")).collect();
            format!("thinking: thought* ({})\nthought: <[^{}]>{others}\n", ends.join(" | "), never.join(","))
        }
        None => {
            let ends: Vec<String> = reasoning.close.iter().map(|close| pattern(close)).collect();
            format!("thinking[lazy]: /(?s:.*)({})/\n", ends.join("|"))
        }
    }
}

/// What may follow the special token that a marker begins with, where text behind it makes the marker: any other text,
/// as in Harmony, where `<|channel|>` begins the channels of reasoning and of the answer.
fn other(close: &str, vocabulary: &Vocabulary) -> Option<String> {
    let mut parts = vocabulary.parts(close).into_iter();
    let (Some(Part::Special(token)), Some(Part::Text(text))) = (parts.next(), parts.next()) else { return None };
    let first = text.chars().next().filter(char::is_ascii_alphanumeric)?;
    Some(format!("<[{token}]> /[^{first}<][^<]*/"))
}
