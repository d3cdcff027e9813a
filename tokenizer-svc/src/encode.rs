//! A request's prompt becomes token ids. Pure: runs on any thread.

use jiff::Zoned;
use serde_json::json;

use proto::{Chat, Failure, Prompt, Request, Sampling, TextPair, TokenIds, prompt::Kind};
use tokenizer::{Pair, Tokenizer};

use chat_format::{ChatText, Conversation};

use crate::{constraint, error, model::Model, models::Models};

/// Stop strings of one request.
const MAX_STOPS: usize = 256;
/// Bytes of all stop strings of one request.
const MAX_STOP_BYTES: usize = 64 << 10;

const SUFFIX_OF_IDS: &str =
    "`suffix` needs a prompt that is text; put the model's fill-in-the-middle tokens among the ids instead.";
const NO_MIDDLE: &str =
    "`suffix` is not supported: this model's tokenizer has no known tokens for filling in the middle.";

const NO_TEMPLATE: &str = "`instruction` and `chat_template_kwargs` are variables of the template that renders pairs: \
                           start the server with --chat-template.";

/// Bytes at the end of a rendered prompt that tell how the answer begins.
const TAIL_BYTES: usize = 128;

/// Bytes of text that encoding `request` has to go through.
pub(crate) fn text_bytes(request: &Request) -> usize {
    let prompt = request.prompt.as_ref().map_or(0, prompt_bytes);
    let words = request.sampling.iter().flat_map(|sampling| &sampling.bad_words);
    let demanded = request.sampling.as_ref().map_or(0, constraint::bytes);
    // It may have to be read.
    let own_tokenizer = usize::from(request.adapter_tokenizer.is_some());
    prompt + words.map(String::len).sum::<usize>() + demanded + own_tokenizer
}

pub(crate) fn prompt_bytes(prompt: &Prompt) -> usize {
    match &prompt.kind {
        Some(Kind::Text(text)) => text.len(),
        Some(Kind::Chat(chat)) => chat.messages_json.len() + chat.tools_json.len() + chat.documents_json.len(),
        Some(Kind::Pair(pair)) => pair.first.len() + pair.second.len(),
        Some(Kind::Ids(_)) | None => 0,
    }
}

/// Replaces the request's prompt by token ids and its bad words by bad tokens, and says which token ends texts.
pub(crate) fn request(models: &Models, request: &mut Request, now: &Zoned) -> Result<(), Failure> {
    check_stops(request)?;
    let model = &*models.of(request.adapter_tokenizer.as_ref())?;
    let mut prompt = request.prompt.take().ok_or_else(|| error::internal("a request without a prompt"))?;
    if let Some(Kind::Pair(pair)) = prompt.kind {
        if !model.renders_pairs {
            return encode_pair(model, request, &pair, prompt.add_special_tokens);
        }
        prompt.kind = Some(Kind::Chat(conversation(pair)));
    }
    let prompt = rendered(model, prompt, now)?;
    if let Some(wanted) = request.output.as_mut().and_then(|output| output.prompt_tail.as_mut()) {
        *wanted = tail(&prompt).to_owned();
    }
    if let Some(sampling) = &mut request.sampling {
        // Workers guide answers by the model's own tokens.
        constraint::prepare(&models.base, sampling, tail(&prompt))?;
    }
    let mut ids = prompt_ids(model, prompt, now)?;
    truncate(&mut ids, request, model.max_model_len)?;
    if let Some(sampling) = &mut request.sampling {
        sampling.eos_token_id = model.eos_token_id;
        if request.adapter_tokenizer.is_some() {
            end_at_own_end(model, sampling);
        }
        for word in std::mem::take(&mut sampling.bad_words) {
            let ids = bad_word(&model.tokenizer, &word)?;
            sampling.bad_token_ids.extend(ids.into_iter().map(|ids| TokenIds { ids }));
        }
    }
    request.prompt = Some(Prompt { kind: Some(Kind::Ids(TokenIds { ids })), ..Prompt::default() });
    Ok(())
}

/// Texts of an adapter end at the end of text of its tokenizer, too, which the model need not know.
fn end_at_own_end(model: &Model, sampling: &mut Sampling) {
    if let Some(end) = model.eos_token_id.filter(|end| !sampling.ignore_eos && !model.info.eos_token_ids.contains(end))
    {
        sampling.stop_token_ids.push(end);
    }
}

/// A pair of texts as templates of rerankers expect it, in vLLM's roles.
fn conversation(pair: TextPair) -> Chat {
    let messages = json!([{"role": "query", "content": pair.first}, {"role": "document", "content": pair.second}]);
    let (messages_json, template_kwargs_json) = (messages.to_string(), pair.template_kwargs_json);
    Chat { messages_json, template_kwargs_json, ..Chat::default() }
}

/// Two texts as one prompt, which is pooled.
fn encode_pair(model: &Model, request: &mut Request, pair: &TextPair, special: bool) -> Result<(), Failure> {
    if !pair.template_kwargs_json.is_empty() {
        return Err(error::invalid("chat_template_kwargs", NO_TEMPLATE));
    }
    let most = kept(request, model.max_model_len)?.map(|most| most as usize);
    let pair = Pair { first: &pair.first, second: &pair.second, add_special_tokens: special };
    let encoded = model.tokenizer.encode_pair(pair, most).map_err(|error| error::encoding(&error))?;
    if let Some(pooling) = &mut request.pooling {
        pooling.second_text = encoded.second.map(|at| at as u32);
    }
    request.prompt = Some(Prompt { kind: Some(Kind::Ids(TokenIds { ids: encoded.ids })), ..Prompt::default() });
    Ok(())
}

/// A conversation as its text; other prompts as they are.
fn rendered(model: &Model, prompt: Prompt, now: &Zoned) -> Result<Prompt, Failure> {
    let kind = match prompt.kind {
        Some(Kind::Chat(chat)) => Some(Kind::Text(render(model, chat, now)?)),
        other => other,
    };
    Ok(Prompt { kind, ..prompt })
}

/// The last characters of a text.
fn tail(prompt: &Prompt) -> &str {
    let Some(Kind::Text(text)) = &prompt.kind else { return "" };
    let from = text.len().saturating_sub(TAIL_BYTES);
    let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    &text[from..]
}

/// The ids of a prompt in any of its forms.
pub(crate) fn prompt_ids(model: &Model, prompt: Prompt, now: &Zoned) -> Result<Vec<u32>, Failure> {
    let text = match prompt.kind {
        Some(Kind::Ids(_)) if prompt.suffix.is_some() => return Err(error::invalid("suffix", SUFFIX_OF_IDS)),
        Some(Kind::Ids(ids)) => return Ok(ids.ids),
        Some(Kind::Text(text)) => text,
        Some(Kind::Chat(chat)) => render(model, chat, now)?,
        Some(Kind::Pair(_)) => return Err(error::internal("a pair of texts where one is expected")),
        None => return Err(error::internal("a request without a prompt")),
    };
    if let Some(suffix) = prompt.suffix {
        let ids = model.tokenizer.fill_in_the_middle(&text, &suffix, prompt.add_special_tokens);
        return ids.map_err(|error| error::encoding(&error))?.ok_or_else(|| error::invalid("suffix", NO_MIDDLE));
    }
    model.tokenizer.encode(&text, prompt.add_special_tokens).map_err(|error| error::encoding(&error))
}

fn render(model: &Model, chat: Chat, now: &Zoned) -> Result<String, Failure> {
    let text = ChatText {
        messages: &chat.messages_json,
        tools: &chat.tools_json,
        documents: &chat.documents_json,
        kwargs: &chat.template_kwargs_json,
    };
    let mut conversation = Conversation::parse(text).map_err(|error| error::chat(&error))?;
    conversation.add_generation_prompt = chat.add_generation_prompt;
    conversation.continue_final_message = chat.continue_final_message;
    conversation.chat_template = Some(chat.chat_template).filter(|template| !template.is_empty());
    model.chat.render(&conversation, now).map_err(|error| error::chat(&error))
}

/// Cuts the prompt to `truncate_prompt_tokens`; -1 leaves room for `max_tokens` (at least one) in the model's context.
fn truncate(ids: &mut Vec<u32>, request: &Request, max_model_len: Option<u32>) -> Result<(), Failure> {
    let Some(keep) = kept(request, max_model_len)? else { return Ok(()) };
    let excess = ids.len().saturating_sub(keep as usize);
    if request.truncate_keep_first {
        ids.truncate(keep as usize);
    } else {
        ids.drain(..excess);
    }
    Ok(())
}

/// How many tokens of the prompt are kept at most; absent: all.
fn kept(request: &Request, max_model_len: Option<u32>) -> Result<Option<u32>, Failure> {
    let keep = match request.truncate_prompt_tokens {
        None => return Ok(None),
        Some(-1) => {
            let Some(context) = max_model_len else { return Ok(None) };
            let generated = if request.pooling.is_some() { 0 } else { request.max_tokens.unwrap_or(1).max(1) };
            context.saturating_sub(generated).max(1)
        }
        Some(keep) => match u32::try_from(keep) {
            Ok(keep) if keep > 0 && max_model_len.is_none_or(|context| keep <= context) => keep,
            _ => {
                let most = max_model_len.map_or("the model's context".to_owned(), |context| context.to_string());
                let message = format!("truncate_prompt_tokens must be -1 or 1 to {most}, got {keep}");
                return Err(error::invalid("truncate_prompt_tokens", message));
            }
        },
    };
    Ok(Some(keep))
}

/// The token sequences that write `word`: at the start of a text, and behind a space where that is as many tokens with
/// another first one (vLLM's rule).
fn bad_word(tokenizer: &Tokenizer, word: &str) -> Result<Vec<Vec<u32>>, Failure> {
    let word = word.trim_start();
    let encode =
        |text: &str| tokenizer.encode(text, false).map_err(|error| error::invalid("bad_words", error.to_string()));
    let bare = encode(word)?;
    if bare.is_empty() {
        return Err(error::invalid("bad_words", "bad_words must not contain empty words"));
    }
    let spaced = encode(&format!(" {word}"))?;
    let mut found = vec![bare];
    if spaced.len() == found[0].len() && spaced[0] != found[0][0] {
        found.push(spaced);
    }
    Ok(found)
}

fn check_stops(request: &Request) -> Result<(), Failure> {
    let Some(output) = &request.output else { return Ok(()) };
    if output.stop.iter().any(String::is_empty) {
        return Err(error::invalid("stop", "stop must not contain an empty string"));
    }
    let bytes: usize = output.stop.iter().map(String::len).sum();
    if output.stop.len() > MAX_STOPS || bytes > MAX_STOP_BYTES {
        let message = format!("stop takes at most {MAX_STOPS} strings of {MAX_STOP_BYTES} bytes in all");
        return Err(error::invalid("stop", message));
    }
    Ok(())
}
