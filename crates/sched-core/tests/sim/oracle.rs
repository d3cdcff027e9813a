//! The model: what a sequence's keys and values are, and which token follows. Both the worker and the expected answers
//! use it, the worker from block contents, the answers from the plain token list.

use super::source::mix;
use proto::{BeamSearch, EarlyStopping, Sampling, pooling::Tokens};

/// Ids are below this.
pub const VOCAB: u32 = 40;
/// Ends a text.
pub const EOS: u32 = 0;

/// What keys and values depend on beside the tokens. A request's id carries it to the worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    pub salt: String,
    pub adapter: String,
    /// First placeholder, how many, and what stands behind them.
    pub media: Vec<(u32, u32, u8)>,
}

impl Context {
    pub fn of(request: &proto::Request) -> Self {
        let media = request.media.iter().map(|one| (one.start, one.num_tokens, one.hash[0])).collect();
        Self { salt: request.cache_salt.clone(), adapter: request.adapter.clone(), media }
    }

    /// As it stands in a request's id.
    pub fn write(&self) -> String {
        let media: Vec<String> = self.media.iter().map(|(start, len, hash)| format!("{start}:{len}:{hash}")).collect();
        format!("{},{},{}", self.salt, self.adapter, media.join(";"))
    }

    pub fn read(text: &str) -> Self {
        let mut parts = text.split(',').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        let (salt, adapter, media) = (next(), next(), next());
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok()).expect("a number");
        let media = media.split_terminator(';').map(|one| {
            let mut numbers = one.split(':');
            let (start, len) = (number(numbers.next()), number(numbers.next()));
            (start, len, number(numbers.next()) as u8)
        });
        Self { salt, adapter, media: media.collect() }
    }

    /// Keys and values before position 0. Tenants and adapters differ, so that a block shared between them is a wrong
    /// one.
    fn root(&self) -> u64 {
        let tenant = self.salt.bytes().fold(7, |state, byte| mix(state ^ u64::from(byte)));
        self.adapter.bytes().fold(mix(tenant), |state, byte| mix(state ^ u64::from(byte)))
    }

    /// Keys and values of a position: they depend on all tokens up to it, and on what stands behind placeholders.
    fn next_kv(&self, before: u64, position: usize, token: u32) -> u64 {
        let inside = |(start, len, _): &&(u32, u32, u8)| (*start..*start + *len).contains(&(position as u32));
        let medium = self
            .media
            .iter()
            .find(inside)
            .map_or(0, |(start, _, hash)| u64::from(*hash) << 8 | (position as u64 - u64::from(*start) + 1));
        mix(before ^ (u64::from(token) << 20) ^ mix(medium))
    }
}

/// Keys and values of all positions of `tokens`.
pub fn kv_chain(context: &Context, tokens: &[u32]) -> Vec<u64> {
    let mut kv = context.root();
    let positions = tokens.iter().enumerate().map(|(position, token)| {
        kv = context.next_kv(kv, position, *token);
        kv
    });
    positions.collect()
}

/// The only token that may follow another, if the constraint leaves one: 1, 5, 9 … 37 follow each other.
pub fn forced(before: u32, sampling: &Sampling) -> Option<u32> {
    let is_forced = sampling.constraint.is_some() && before % 4 == 1;
    Some(before + 4).filter(|token| is_forced && *token < VOCAB)
}

/// The token after a position whose keys and values are `kv` and whose token is `before`, as output number `position`.
pub fn sample(kv: u64, seed: u64, position: u32, sampling: &Sampling, before: u32) -> u32 {
    if let Some(token) = forced(before, sampling) {
        return token;
    }
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
pub fn answer(context: &Context, prompt: &[u32], seed: u64, sampling: &Sampling, limit: usize) -> (Vec<u32>, Ending) {
    let mut kv = *kv_chain(context, prompt).last().expect("a prompt");
    let mut output = Vec::new();
    loop {
        let before = output.last().or(prompt.last()).copied().unwrap_or_default();
        let token = sample(kv, seed, output.len() as u32, sampling, before);
        output.push(token);
        kv = context.next_kv(kv, prompt.len() + output.len() - 1, token);
        if let Some(ending) = ending(sampling, token, output.len()) {
            return (output, ending);
        }
        if prompt.len() + output.len() >= limit {
            return (output, Ending::Length);
        }
    }
}

/// Log-probabilities of all tokens after a position whose keys and values are `kv`, as output number `position`; -inf
/// where a token may not come. Now and then there are few that may.
fn logprobs(kv: u64, position: u32, sampling: &Sampling) -> Vec<f32> {
    let few = mix(kv).is_multiple_of(12);
    let logprob = |token: u32| {
        let state = mix(kv ^ u64::from(token).rotate_left(33));
        let ends = token == EOS && !sampling.ignore_eos || sampling.stop_token_ids.contains(&token);
        if position < sampling.min_tokens && ends || few && !state.is_multiple_of(20) {
            return f32::NEG_INFINITY;
        }
        // Distinct for the most part; ends are likely enough.
        -((state >> 44) as f32) * 4e-6 - if ends { 0.0 } else { 0.5 }
    };
    (0..VOCAB).map(logprob).collect()
}

/// The tokens that may follow, most likely first, `most` of them.
pub fn candidates(kv: u64, position: u32, sampling: &Sampling, most: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..VOCAB).zip(logprobs(kv, position, sampling)).collect();
    all.retain(|(_, logprob)| *logprob > f32::NEG_INFINITY);
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(most);
    all
}

/// The texts of a beam search, best first, each as a list of its own, all tokens looked at in each step.
pub fn beams(
    context: &Context,
    prompt: &[u32],
    search: &BeamSearch,
    sampling: &Sampling,
    limit: usize,
) -> Vec<(Vec<u32>, Ending)> {
    let (width, most) = (search.width as usize, limit - prompt.len());
    let penalty = f64::from(search.length_penalty);
    let mut running = vec![(Vec::new(), 0.0)];
    let mut best: Vec<(Vec<u32>, Ending, f64)> = Vec::new();
    loop {
        let mut all = Vec::new();
        for (text, score) in &running {
            let known = [prompt, text].concat();
            let kv = *kv_chain(context, &known).last().expect("a prompt");
            for (token, logprob) in (0..).zip(logprobs(kv, text.len() as u32, sampling)) {
                all.push(([text.as_slice(), &[token]].concat(), score + f64::from(logprob)));
            }
        }
        all.retain(|(_, score): &(Vec<u32>, f64)| *score > f64::NEG_INFINITY);
        all.sort_by(|a, b| b.1.total_cmp(&a.1)); // stable: better beams and lower tokens first
        running.clear();
        for (rank, (text, score)) in all.into_iter().enumerate() {
            let length = text.len();
            let ending = ending(sampling, *text.last().expect("a token"), length);
            match ending.or((length >= most).then_some(Ending::Length)) {
                Some(ending) if rank < width => best.push((text, ending, score / (length as f64).powf(penalty))),
                None if running.len() < width => running.push((text, score)),
                _ => {}
            }
        }
        best.sort_by(|a, b| b.2.total_cmp(&a.2));
        best.truncate(width);
        let is_over = running.first().is_none_or(|(text, score)| {
            let length = match search.early_stopping() {
                EarlyStopping::Never if penalty > 0.0 => most,
                _ => text.len(),
            };
            let hopeless = best.last().is_some_and(|worst| score / (length as f64).powf(penalty) <= worst.2);
            best.len() == width && (search.early_stopping() == EarlyStopping::WhenFull || hopeless)
        });
        if is_over {
            return best.into_iter().map(|(text, ending, _)| (text, ending)).collect();
        }
    }
}

fn ending(sampling: &Sampling, token: u32, length: usize) -> Option<Ending> {
    if length < sampling.min_tokens as usize {
        return None;
    }
    if token == EOS && !sampling.ignore_eos {
        return Some(if sampling.eos_token_id == Some(EOS) { Ending::Eos } else { Ending::StopToken(EOS) });
    }
    sampling.stop_token_ids.contains(&token).then_some(Ending::StopToken(token))
}
