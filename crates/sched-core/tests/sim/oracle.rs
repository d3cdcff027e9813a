//! The model: what a sequence's keys and values are, and which token follows. Both the worker and the expected answers
//! use it, the worker from block contents, the answers from the plain token list.

use super::source::mix;
use proto::{Sampling, pooling::Tokens};

/// Ids are below this.
pub const VOCAB: u32 = 40;
/// Ends a text.
pub const EOS: u32 = 0;

/// Keys and values before position 0. Tenants differ, so that a block shared between tenants is a wrong one.
pub fn root(cache_salt: &str) -> u64 {
    cache_salt.bytes().fold(7, |state, byte| mix(state ^ u64::from(byte)))
}

/// Keys and values of a position: they depend on all tokens up to it.
pub fn next_kv(before: u64, token: u32) -> u64 {
    mix(before ^ (u64::from(token) << 20))
}

/// Keys and values of all positions of `tokens`.
pub fn kv_chain(cache_salt: &str, tokens: &[u32]) -> Vec<u64> {
    let mut kv = root(cache_salt);
    tokens
        .iter()
        .map(|token| {
            kv = next_kv(kv, *token);
            kv
        })
        .collect()
}

/// The token after a position whose keys and values are `kv`, as output number `position`.
pub fn sample(kv: u64, seed: u64, position: u32, sampling: &Sampling) -> u32 {
    let mut state = mix(kv ^ seed.rotate_left(17) ^ (u64::from(position) << 40));
    loop {
        let token = (state % u64::from(VOCAB)) as u32;
        let ends = token == EOS && !sampling.ignore_eos || sampling.stop_token_ids.contains(&token);
        if position >= sampling.min_tokens || !ends {
            return token;
        }
        state = mix(state);
    }
}

/// The output of a prompt that is pooled; `hidden` is what the last layer gave for its positions, of which the last is
/// the prompt's.
pub fn pooled(hidden: &[u64], tokens: Tokens) -> Vec<f32> {
    let pooled = match tokens {
        Tokens::Last => *hidden.last().expect("a position"),
        Tokens::All => hidden.iter().fold(0, |all: u64, one| all.rotate_left(7) ^ one),
    };
    // 24 bits are exact in a float.
    vec![(pooled >> 40) as f32, if tokens == Tokens::All { hidden.len() as f32 } else { 0.0 }]
}

/// How an answer ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Eos,
    StopToken(u32),
    Length,
}

/// The whole answer, computed alone and in order.
pub fn answer(cache_salt: &str, prompt: &[u32], seed: u64, sampling: &Sampling, limit: usize) -> (Vec<u32>, Ending) {
    let mut kv = prompt.iter().fold(root(cache_salt), |kv, token| next_kv(kv, *token));
    let mut output = Vec::new();
    loop {
        let token = sample(kv, seed, output.len() as u32, sampling);
        output.push(token);
        kv = next_kv(kv, token);
        let counts = output.len() >= sampling.min_tokens as usize;
        if counts && token == EOS && !sampling.ignore_eos {
            let own = sampling.eos_token_id == Some(EOS);
            return (output, if own { Ending::Eos } else { Ending::StopToken(EOS) });
        }
        if counts && sampling.stop_token_ids.contains(&token) {
            return (output, Ending::StopToken(token));
        }
        if prompt.len() + output.len() >= limit {
            return (output, Ending::Length);
        }
    }
}
