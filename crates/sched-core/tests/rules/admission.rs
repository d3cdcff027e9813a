//! What is accepted: configurations and requests.

use super::*;
use proto::failure;
use sched_core::{ConfigError, Features, QueueBound, Refusal};

#[test]
fn impossible_configurations_are_refused() {
    let check = |change: fn(&mut Config), expected| assert_eq!(with(change).check(), Err(expected));
    check(|c| c.block_size = 0, ConfigError::Zero("block_size"));
    check(|c| c.pipeline_depth = 0, ConfigError::Zero("pipeline_depth"));
    check(|c| c.max_num_batched_tokens = 4, ConfigError::BudgetBelowSeqs { batched: 4, seqs: 8 });
    check(|c| c.enable_chunked_prefill = false, ConfigError::BudgetBelowPrompt { batched: 64, len: 100 });
    check(|c| c.watermark = 1.5, ConfigError::Watermark(1.5));
    check(|c| c.watermark = -0.1, ConfigError::Watermark(-0.1));
    assert!(with(|c| c.watermark = f32::NAN).check().is_err());
    assert_eq!(config().check(), Ok(()));
}

#[test]
fn refusals_name_the_reason() {
    let check = |change: fn(&mut proto::Request), expected: Refusal| {
        let mut scheduler = formed(config(), 20); // 80 positions
        let mut request = request(1, 10, 5);
        change(&mut request);
        assert_eq!(scheduler.admit(request, 0), Err(expected));
        assert!(scheduler.is_idle() && !scheduler.has_output());
        assert_eq!(scheduler.stats().totals.refused, 1);
    };
    check(|r| r.prompt = None, Refusal::Incomplete("prompt token ids"));
    check(|r| r.key = None, Refusal::Incomplete("key"));
    check(|r| *r = request(1, 0, 5), Refusal::EmptyPrompt);
    check(|r| *r = request(1, 100, 1), Refusal::PromptTooLong { prompt_tokens: 100, max_model_len: 100 });
    check(
        |r| r.max_tokens = Some(91),
        Refusal::MaxTokensTooLarge { max_tokens: 91, prompt_tokens: 10, max_model_len: 100 },
    );
    check(|r| r.max_tokens = Some(0), Refusal::ZeroMaxTokens);
    check(|r| r.pooling = Some(proto::Pooling::default()), Refusal::Unsupported("pooling"));
    check(|r| r.adapter = "lora".into(), Refusal::Unsupported("adapter"));
    check(|r| r.media.push(proto::Media::default()), Refusal::Unsupported("media"));
    for media in [(10, 1, "x"), (0, 0, "x"), (0, 1, ""), (8, u32::MAX, "x")] {
        let (start, num_tokens, hash) = media;
        let mut scheduler = formed(with(|c| c.features = Features { media: true, ..Features::default() }), 20);
        let first = proto::Media { start: 1, num_tokens: 1, hash: "y".into() };
        let media = vec![first, proto::Media { start, num_tokens, hash: hash.into() }];
        let refused = scheduler.admit(proto::Request { media, ..request(1, 10, 5) }, 0);
        assert_eq!(refused, Err(Refusal::Media { index: 1 }), "{start}, {num_tokens}, {hash:?}");
    }
    check(|r| r.n = 0, Refusal::Choices { n: 0, max: 4 });
    check(|r| r.n = 5, Refusal::Choices { n: 5, max: 4 });
    // 10 + 72 tokens: 81 positions.
    check(|r| r.max_tokens = Some(72), Refusal::NeverFits { blocks: 21, num_blocks: 20 });
    check(
        |r| {
            if let Some(Kind::Ids(ids)) = r.prompt.as_mut().and_then(|prompt| prompt.kind.as_mut()) {
                ids.ids[3] = 1000;
            }
        },
        Refusal::TokenOutOfRange { token: 1000, position: 3, vocab_size: 1000 },
    );
}

#[test]
fn refusals_know_whose_fault_they_are() {
    let check = |refusal: Refusal, kind: failure::Kind, param: &str| {
        let failure = refusal.to_failure();
        assert_eq!((failure.kind(), failure.param.as_str()), (kind, param));
    };
    check(Refusal::EmptyPrompt, failure::Kind::Invalid, "prompt");
    check(Refusal::Choices { n: 0, max: 4 }, failure::Kind::Invalid, "n");
    check(Refusal::Overloaded { bound: QueueBound::Requests, limit: 1 }, failure::Kind::Overloaded, "");
    check(Refusal::Unsupported("pooling"), failure::Kind::Unimplemented, "pooling");
    check(Refusal::Draining, failure::Kind::Unavailable, "");
    check(Refusal::NotReady, failure::Kind::Unavailable, "");
    check(Refusal::Duplicate, failure::Kind::Internal, "");
}

#[test]
fn the_longest_possible_request_fits() {
    let mut scheduler = formed(config(), 20);
    admit(&mut scheduler, request(1, 10, 71)); // 81 tokens, 80 positions, 20 blocks
    let mut generated = 0;
    while scheduler.has_unfinished() {
        generated += step(&mut scheduler, 1).1.token.len();
    }
    assert_eq!(generated, 71);
}

#[test]
fn without_max_tokens_the_context_or_the_blocks_end_it() {
    let check = |num_blocks, expected| {
        let mut scheduler = formed(config(), num_blocks);
        admit(&mut scheduler, proto::Request { max_tokens: None, ..request(1, 10, 0) });
        let mut generated = 0;
        while scheduler.has_unfinished() {
            generated += step(&mut scheduler, 1).1.token.len();
        }
        assert_eq!(generated, expected);
    };
    check(50, 90);
    check(20, 71);
}

#[test]
fn queue_bounds_refuse_until_something_starts() {
    let mut scheduler = formed(with(|c| c.max_num_queued_reqs = Some(2)), 50);
    admit(&mut scheduler, request(1, 4, 5));
    admit(&mut scheduler, request(2, 4, 5));
    let full = Refusal::Overloaded { bound: QueueBound::Requests, limit: 2 };
    assert_eq!(scheduler.admit(request(3, 4, 5), 0), Err(full));
    plan(&mut scheduler);
    admit(&mut scheduler, request(3, 4, 5));

    let mut scheduler = formed(with(|c| c.max_num_queued_tokens = Some(10)), 50);
    admit(&mut scheduler, request(1, 30, 5)); // an empty queue takes any
    let full = Refusal::Overloaded { bound: QueueBound::Tokens, limit: 10 };
    assert_eq!(scheduler.admit(request(2, 1, 5), 0), Err(full));
    assert_eq!((scheduler.stats().queued_requests, scheduler.stats().queued_tokens), (1, 30));
    plan(&mut scheduler);
    assert_eq!(scheduler.stats().queued_tokens, 0);
    admit(&mut scheduler, request(2, 10, 5));
}

#[test]
fn draining_and_missing_groups_refuse() {
    let mut scheduler = Scheduler::new(config()).expect("possible");
    assert_eq!(scheduler.admit(request(1, 4, 5), 0), Err(Refusal::NotReady));
    scheduler.group_formed(Epoch(1), 50, 0);
    admit(&mut scheduler, request(1, 4, 2));
    assert_eq!(scheduler.admit(request(1, 4, 5), 0), Err(Refusal::Duplicate));
    scheduler.drain();
    assert_eq!(scheduler.admit(request(2, 4, 5), 0), Err(Refusal::Draining));
    step(&mut scheduler, 1);
    let (_, batch) = step(&mut scheduler, 1);
    assert_eq!(batch.finished.len(), 1, "what was there ends as usual");
}
