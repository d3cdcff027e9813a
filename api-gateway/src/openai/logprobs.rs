//! Log-probabilities in the shapes of the two APIs.

use proto::{TextLogprobs, TopLogprob};

use super::plan::{Listing, Plan};
use crate::json;

/// What the answers know of a prompt once it is admitted.
#[derive(Debug, Default)]
pub struct PromptFacts {
    /// Length in tokens.
    pub tokens: u32,
    /// Tokens found in the prefix cache.
    pub cached: u32,
    /// Token ids, when the plan needs them.
    pub ids: Vec<u32>,
    /// Text, when the plan needs it.
    pub text: String,
    /// Characters of the text.
    pub chars: u32,
    /// The end of the rendered prompt, when the plan needs it.
    pub tail: String,
}

impl From<proto::Admitted> for PromptFacts {
    fn from(admitted: proto::Admitted) -> Self {
        Self {
            tokens: admitted.prompt_tokens,
            cached: admitted.cached_tokens,
            ids: admitted.prompt_ids,
            chars: admitted.prompt_text.chars().count() as u32,
            text: admitted.prompt_text,
            tail: admitted.prompt_tail,
        }
    }
}

/// `{"content": [{token, logprob, bytes, top_logprobs}]}`.
pub fn chat(out: &mut Vec<u8>, entries: &[TextLogprobs], plan: &Plan) {
    json::raw(out, "{\"content\":");
    json::list(out, entries, |out, entry| {
        let chosen =
            Token { text: &entry.token, bytes: &entry.token_bytes, id: entry.token_id, logprob: entry.logprob };
        chat_token(out, &chosen, plan);
        json::raw(out, ",\"top_logprobs\":");
        let listed = top(entry, plan).iter();
        let listed = listed.map(|top| Token {
            text: &top.token,
            bytes: &top.token_bytes,
            id: top.token_id,
            logprob: top.logprob,
        });
        let is_missing = plan.listing == Listing::Named && listed.clone().all(|token| token.id != chosen.id);
        json::list(out, is_missing.then_some(chosen).into_iter().chain(listed), |out, token| {
            chat_token(out, &token, plan);
            out.push(b'}');
        });
        out.push(b'}');
    });
    out.push(b'}');
}

/// What a chosen and a listed token have in common.
struct Token<'a> {
    text: &'a str,
    bytes: &'a [u8],
    id: u32,
    logprob: f32,
}

/// The beginning of a token's object; the caller closes it.
fn chat_token(out: &mut Vec<u8>, token: &Token<'_>, plan: &Plan) {
    json::raw(out, "{\"token\":");
    name(out, token.text, token.id, plan);
    json::raw(out, ",\"logprob\":");
    json::logprob(out, token.logprob);
    json::raw(out, ",\"bytes\":");
    json::list(out, token.bytes, |out, byte| json::number(out, *byte));
}

/// The parallel lists of a completion: what was echoed of the prompt, then what was generated.
pub struct CompletionLogprobs<'a> {
    /// The prompt, when it is echoed with log-probabilities.
    pub prompt: Option<(&'a PromptFacts, &'a [TextLogprobs])>,
    /// Characters of the answer's text before the first generated one.
    pub offset: u32,
    /// Generated tokens.
    pub generated: &'a [TextLogprobs],
}

impl CompletionLogprobs<'_> {
    /// `{text_offset, token_logprobs, tokens, top_logprobs}`.
    pub fn write(&self, out: &mut Vec<u8>, plan: &Plan) {
        let first = self.prompt.and_then(|(facts, entries)| first_token(facts, entries));
        let of_prompt = self.prompt.map_or(&[][..], |(facts, entries)| without_first(facts, entries));
        let entries = || of_prompt.iter().map(|e| (e, 0)).chain(self.generated.iter().map(|e| (e, self.offset)));
        json::raw(out, "{\"text_offset\":");
        column(out, first.as_ref().map(|_| "0"), entries(), |out, (entry, offset)| {
            json::number(out, entry.text_offset.saturating_add(offset));
        });
        json::raw(out, ",\"token_logprobs\":");
        column(out, first.as_ref().map(|_| "null"), entries(), |out, (entry, _)| json::logprob(out, entry.logprob));
        json::raw(out, ",\"tokens\":");
        let first_name = first.as_ref().map(|(text, id)| {
            let mut out = Vec::new();
            name(&mut out, text, *id, plan);
            String::from_utf8(out).unwrap_or_default()
        });
        column(out, first_name.as_deref(), entries(), |out, (entry, _)| name(out, &entry.token, entry.token_id, plan));
        json::raw(out, ",\"top_logprobs\":");
        column(out, first.as_ref().map(|_| "null"), entries(), |out, (entry, _)| completion_top(out, entry, plan));
        out.push(b'}');
    }
}

/// A list whose first item, if any, is written already.
fn column<T>(
    out: &mut Vec<u8>,
    first: Option<&str>,
    rest: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    json::raw(out, first.unwrap_or(""));
    for (index, item) in rest.enumerate() {
        if index > 0 || first.is_some() {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// `{text: logprob}` of the chosen token and the most likely ones. Tokens that read alike appear once.
fn completion_top(out: &mut Vec<u8>, entry: &TextLogprobs, plan: &Plan) {
    out.push(b'{');
    name(out, &entry.token, entry.token_id, plan);
    out.push(b':');
    json::logprob(out, entry.logprob);
    let listed = top(entry, plan);
    for (index, candidate) in listed.iter().enumerate() {
        let same =
            |token: &str, id: u32| if plan.tokens_as_ids { id == candidate.token_id } else { token == candidate.token };
        if same(&entry.token, entry.token_id) || listed[..index].iter().any(|other| same(&other.token, other.token_id))
        {
            continue;
        }
        out.push(b',');
        name(out, &candidate.token, candidate.token_id, plan);
        out.push(b':');
        json::logprob(out, candidate.logprob);
    }
    out.push(b'}');
}

/// `prompt_logprobs`: null for the first position, then `{id: {logprob, rank, decoded_token}}` for each.
pub fn prompt(out: &mut Vec<u8>, facts: &PromptFacts, entries: &[TextLogprobs]) {
    json::raw(out, "[null");
    for entry in without_first(facts, entries) {
        json::raw(out, ",{");
        prompt_token(out, entry.token_id, entry.logprob, entry.rank, &entry.token);
        for (index, top) in entry.top.iter().enumerate().filter(|(_, top)| top.token_id != entry.token_id) {
            out.push(b',');
            prompt_token(out, top.token_id, top.logprob, index as u32 + 1, &top.token);
        }
        out.push(b'}');
    }
    out.push(b']');
}

fn prompt_token(out: &mut Vec<u8>, id: u32, logprob: f32, rank: u32, text: &str) {
    out.push(b'"');
    json::number(out, id);
    json::raw(out, "\":{\"logprob\":");
    json::logprob(out, logprob);
    json::raw(out, ",\"rank\":");
    json::number(out, rank);
    json::raw(out, ",\"decoded_token\":");
    json::string(out, text);
    out.push(b'}');
}

fn top<'a>(entry: &'a TextLogprobs, plan: &Plan) -> &'a [TopLogprob] {
    let count = plan.top_logprobs.unwrap_or(0) as usize;
    &entry.top[..entry.top.len().min(count)]
}

fn name(out: &mut Vec<u8>, text: &str, id: u32, plan: &Plan) {
    if plan.tokens_as_ids {
        json::raw(out, "\"token_id:");
        json::number(out, id);
        out.push(b'"');
    } else {
        json::string(out, text);
    }
}

/// Entries from the prompt's second token on; a list as long as the prompt has one for the first too.
fn without_first<'a>(facts: &PromptFacts, entries: &'a [TextLogprobs]) -> &'a [TextLogprobs] {
    if entries.len() >= facts.tokens as usize { entries.get(1..).unwrap_or(&[]) } else { entries }
}

/// The first prompt token, which has no probability: its text is what comes before the second token.
fn first_token(facts: &PromptFacts, entries: &[TextLogprobs]) -> Option<(String, u32)> {
    let id = facts.ids.first().copied()?;
    let end = without_first(facts, entries).first().map_or(facts.chars, |entry| entry.text_offset);
    Some((facts.text.chars().take(end as usize).collect(), id))
}
