//! What worlds are made of: configurations and requests.

use super::{
    oracle::{self, Context},
    source::Source,
    worker::CONTEXT_MARK,
};
use proto::{BeamSearch, Constraint, Media, Pooling, RequestKey, Sampling, prompt::Kind};
use sched_core::{Config, Features, MixedPrefill, Policy, PrefillBudget};

/// Any possible configuration, in small numbers.
pub fn config(source: &mut Source) -> Config {
    let max_num_seqs = source.between(1, 6);
    let max_model_len = source.between(4, 40);
    let enable_chunked_prefill = source.chance(80);
    let recurrent = source.chance(8);
    let speculative_tokens = if !recurrent && source.chance(45) { source.between(1, 5) } else { 0 };
    let decodes = max_num_seqs * (1 + speculative_tokens);
    let least = if enable_chunked_prefill { decodes } else { decodes.max(max_model_len) };
    let optional = |source: &mut Source, most| if source.chance(30) { source.between(1, most) } else { 0 };
    Config {
        model: "simulated".into(),
        block_size: source.between(1, 5),
        max_num_seqs,
        max_num_batched_tokens: least + source.below(24),
        max_model_len,
        long_prefill_token_threshold: optional(source, 9),
        mixed_prefill: mixed_prefill(source),
        enable_chunked_prefill,
        enable_prefix_caching: !recurrent && source.chance(75),
        windows: windows(source),
        recurrent,
        policy: if source.chance(50) { Policy::Fcfs } else { Policy::Priority },
        pipeline_depth: if source.chance(50) { 2 } else { source.between(1, 5) },
        stages: if source.chance(70) { 1 } else { source.between(2, 4) },
        speculative_tokens,
        adapter_slots: source.between(1, 3),
        features: Features { pooling: true, media: true, ..Features::default() },
        max_num_queued_reqs: source.chance(20).then(|| source.between(1, 8)),
        max_num_queued_tokens: source.chance(20).then(|| source.between(5, 90).into()),
        watermark: if source.chance(25) { 0.2 } else { 0.0 },
        eos_token_ids: vec![oracle::EOS],
        vocab_size: oracle::VOCAB,
        extra_vocab_size: 0,
        max_choices: 4,
        seed: 11,
        max_new_request_bytes: if source.chance(30) { source.below(900) as usize } else { 4 << 20 },
        jump_forward: source.chance(70),
    }
}

fn mixed_prefill(source: &mut Source) -> MixedPrefill {
    match source.below(3) {
        0 => MixedPrefill::Unlimited,
        1 => MixedPrefill::AtMost(source.between(1, 9)),
        _ => MixedPrefill::Timed(PrefillBudget {
            min_tokens: source.between(1, 9),
            target_us: source.below(9),
            few_decodes: source.below(4),
            few_decodes_target_us: source.below(9),
            target_tokens: source.below(9),
            tokens_per_decode: source.below(9),
            max_us: source.below(99),
            slow_max_us: source.below(99),
            row_multiple: source.below(4),
            large_row_multiple: source.below(9),
        }),
    }
}

/// Mostly one group that keeps everything; else up to three with and without windows.
fn windows(source: &mut Source) -> Vec<Option<u32>> {
    if source.chance(50) {
        return vec![None];
    }
    (0..source.between(1, 3)).map(|_| source.chance(65).then(|| source.between(1, 12))).collect()
}

/// Prompts come from three families with common beginnings, so that blocks are worth sharing.
pub fn request(source: &mut Source, number: u64, config: &Config) -> proto::Request {
    let family = source.below(3);
    let length = source.below(config.max_model_len + 1);
    let own_tail = source.below(4).min(length);
    let mut ids: Vec<u32> = (0..length - own_tail).map(|at| 1 + (at * 7 + family * 11) % (oracle::VOCAB - 1)).collect();
    ids.extend((0..own_tail).map(|_| source.below(oracle::VOCAB)));
    if source.chance(1) {
        ids.push(oracle::VOCAB + source.below(5));
    }
    let salt = if source.chance(80) { "" } else { "tenant" };
    let adapter = if source.chance(60) { "" } else { ["lora", "other", "third", "fourth"][source.below(4) as usize] };
    let media = media(source, length);
    let left = config.max_model_len.saturating_sub(length);
    let pooling = source.chance(12).then(|| Pooling { tokens: source.below(2) as i32, ..Pooling::default() });
    let no_max_tokens = source.chance(if pooling.is_some() { 95 } else { 25 });
    let max_tokens = if no_max_tokens { None } else { Some(source.between(0, left.min(20) + 1)) };
    let sampling = Sampling {
        seed: source.chance(70).then(|| u64::from(source.below(9))),
        min_tokens: if source.chance(20) { source.below(6) } else { 0 },
        stop_token_ids: if source.chance(20) { vec![source.below(oracle::VOCAB), 3] } else { Vec::new() },
        ignore_eos: source.chance(40),
        eos_token_id: source.chance(80).then_some(oracle::EOS),
        logprobs: source.chance(20).then_some(1),
        prompt_logprobs: source.chance(15).then_some(1),
        constraint: source.chance(35).then(Constraint::default),
        ..Sampling::default()
    };
    let mut request = proto::Request {
        key: Some(RequestKey { gateway: 1 + number % 3, number }),
        prompt: Some(proto::Prompt { kind: Some(Kind::Ids(proto::TokenIds { ids })), ..Default::default() }),
        sampling: Some(sampling),
        n: if source.chance(if pooling.is_some() { 95 } else { 70 }) { 1 } else { source.below(6) },
        priority: source.below(3) as i32 - 1,
        cache_salt: salt.into(),
        max_tokens,
        pooling,
        adapter: adapter.into(),
        media,
        ..Default::default()
    };
    if source.chance(25) {
        request.beam_search = Some(beam_search(source));
        request.n = source.between(1, 3);
    }
    request.request_id = format!("{number}{CONTEXT_MARK}{}", Context::of(&request).write());
    request
}

/// Searches that end soon and late, some with fewer beams than choices.
fn beam_search(source: &mut Source) -> BeamSearch {
    let length_penalty = [1.0, 0.0, 2.0, -1.0][source.below(4) as usize];
    BeamSearch { width: source.below(5), length_penalty, early_stopping: source.below(3) as i32 }
}

/// Few places and fewer contents, so that equal ones are frequent.
fn media(source: &mut Source, prompt_tokens: u32) -> Vec<Media> {
    let mut media = Vec::new();
    while source.chance(15) && media.len() < 2 {
        let free = media.last().map_or(0, |one: &Media| one.start + one.num_tokens);
        let (start, num_tokens) = (free + source.below(3), source.between(1, 4));
        // Now and then one that is not all in the prompt.
        if start + num_tokens > prompt_tokens && source.chance(90) {
            break;
        }
        media.push(Media { start, num_tokens, hash: vec![source.below(3) as u8].into() });
    }
    media
}
