//! Log-probabilities in the shapes that the API needs: token texts, bytes, offsets.

use proto::{TextLogprobs, TokenLogprobs, TopLogprob};
use tokenizer::{Context, DecodeOptions, IncrementalDecoder, Tokenizer};

/// Gives `logprobs` of `token` its texts. `text_offset` is in characters.
pub(crate) fn with_text(tokenizer: &Tokenizer, logprobs: TokenLogprobs, token: u32, text_offset: u32) -> TextLogprobs {
    let alternatives = logprobs.top_ids.iter().zip(&logprobs.top_logprobs);
    let top = alternatives.map(|(&token_id, &logprob)| TopLogprob {
        token: tokenizer.token_text(token_id).into_owned(),
        token_bytes: tokenizer.token_bytes(token_id).to_vec().into(),
        token_id,
        logprob,
    });
    TextLogprobs {
        token: tokenizer.token_text(token).into_owned(),
        token_bytes: tokenizer.token_bytes(token).to_vec().into(),
        token_id: token,
        logprob: logprobs.logprob,
        rank: logprobs.rank,
        text_offset,
        top: top.collect(),
    }
}

/// Where each prompt token's text begins, in characters from the prompt's start.
pub(crate) fn prompt_offsets(tokenizer: &Tokenizer, ids: &[u32], options: DecodeOptions) -> Vec<u32> {
    let mut offsets = Vec::with_capacity(ids.len());
    let Ok(mut decoder) = IncrementalDecoder::new(tokenizer, options, Context::default()) else { return offsets };
    let (mut text, mut characters) = (String::new(), 0);
    for &id in ids {
        offsets.push(characters);
        text.clear();
        // A token that cannot be decoded has no text.
        let _ = decoder.push(tokenizer, id, &mut text);
        characters += text.chars().count() as u32;
    }
    offsets
}
