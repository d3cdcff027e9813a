//! Tokens and log-probabilities against what was recorded.

use link::LinkOptions;
use proto::{Sampling, StepPlan};

use crate::{
    reference::{folder, recorded},
    scheduler::{BLOCK_SIZE, Scheduler, greedy, row, sequence},
    worker,
};

/// A scheduler with `world_size` workers of a fixture model, in one group.
async fn formed(model: &str, world_size: u32, flags: &[&str]) -> Scheduler {
    let mut scheduler = Scheduler::bind().await;
    for rank in 0..world_size {
        worker::start(&folder(model), &scheduler.address, (rank, world_size), flags);
    }
    scheduler.meet(world_size as usize).await;
    scheduler.form().await;
    scheduler
}

async fn check_greedy(model: &str, world_size: u32, chunk: usize) {
    let mut scheduler = formed(model, world_size, &[]).await;
    let recorded = recorded(model);
    let prompts = (0..).zip(&recorded);
    let sequences = prompts.map(|(slot, recorded)| greedy(slot, &recorded.prompt)).collect();
    let tokens = scheduler.generate(sequences, 24, chunk).await;
    for (got, want) in tokens.iter().zip(&recorded) {
        assert_eq!(got, &want.greedy, "{model}, {world_size} ranks, chunks of {chunk}");
    }
}

#[tokio::test]
async fn greedy_tokens_are_the_recorded_ones() {
    check_greedy("llama", 1, 2048).await;
    check_greedy("llama", 1, 16).await;
    check_greedy("qwen3", 1, 7).await;
}

#[tokio::test]
async fn two_ranks_give_the_same_tokens() {
    check_greedy("llama", 2, 2048).await;
    check_greedy("llama", 2, 16).await;
}

#[tokio::test]
async fn what_a_worker_says_when_ready() {
    let scheduler = formed("llama", 1, &["--num-gpu-blocks-override=70"]).await;
    let ready = &scheduler.ranks[0].ready;
    assert_eq!((ready.num_blocks, ready.block_size, ready.world_size), (70, BLOCK_SIZE as u32, 1));
    assert_eq!((ready.vocab_size, ready.dtype.as_str()), (512, "float32"));
    assert!(ready.device.starts_with("cpu") && ready.weight_bytes > 0 && ready.kv_bytes_per_token > 0);
    assert!(!ready.eos_token_ids.is_empty());
}

#[tokio::test]
async fn seeded_tokens_do_not_depend_on_the_batch() {
    let mut scheduler = formed("llama", 1, &[]).await;
    let sampling = Sampling { temperature: 1.5, top_p: 0.95, top_k: 40, ..Sampling::default() };
    let recorded = recorded("llama");
    let mine = sequence(3, &recorded[2].prompt, sampling.clone());
    let alone = scheduler.generate(vec![mine.clone()], 20, 2048).await.remove(0);
    let strangers = (0..3).map(|slot| sequence(slot, &recorded[slot as usize].prompt, sampling.clone()));
    let crowd = strangers.chain([mine.clone()]).collect();
    assert_eq!(scheduler.generate(crowd, 20, 8).await[3], alone);
    // Back after a preemption: half of the output comes as known tokens.
    let mut resumed = mine;
    resumed.tokens.extend(&alone[..10]);
    assert_eq!(scheduler.generate(vec![resumed.clone()], 10, 2048).await[0], alone[10..]);
    resumed.seed += 1;
    assert_ne!(scheduler.generate(vec![resumed], 10, 2048).await[0], alone[10..]);
}

#[tokio::test]
async fn logprobs_of_prompt_and_output() {
    // 8 rows of logits: the prompt of 90 tokens is scored in 12 pieces.
    let mut scheduler = formed("llama", 1, &[]).await;
    let recorded = &recorded("llama")[3];
    let sampling = Sampling { logprobs: Some(3), prompt_logprobs: Some(0), ..Sampling::default() };
    let len = recorded.prompt.len();
    let mut plan = StepPlan { step: 1, added: vec![sequence(5, &recorded.prompt, sampling)], ..StepPlan::default() };
    row(&mut plan, 5, 0, len - 9, false);
    let first = scheduler.run(plan).await;
    let mut plan = StepPlan { step: 2, ..StepPlan::default() };
    row(&mut plan, 5, len - 9, 9, true);
    let second = scheduler.run(plan).await;
    let scored: Vec<_> = first.prompt_logprobs.iter().chain(&second.prompt_logprobs).collect();
    assert_eq!(scored.len(), len - 1);
    for (position, (got, want)) in (1..).zip(scored.iter().zip(&recorded.prompt_logprobs)) {
        assert_eq!(
            (got.index, got.token, got.prompt_of_sequence),
            (position, recorded.prompt[position as usize], Some(5))
        );
        assert!((f64::from(got.logprob) - want).abs() < 2e-3, "position {position}: {} {want}", got.logprob);
    }
    let [sampled] = &second.logprobs[..] else { panic!("one token, one entry") };
    assert_eq!((second.token[0], sampled.index, sampled.rank), (recorded.greedy[0], 0, 1));
    assert_eq!((sampled.top_ids.len(), sampled.top_ids[0]), (3, recorded.greedy[0]));
    assert!((f64::from(sampled.logprob) - recorded.greedy_logprobs[0]).abs() < 2e-3);
}

#[tokio::test]
async fn log_probabilities_that_no_message_holds_come_in_parts() {
    // Each position has those of the whole vocabulary, for which a message just suffices.
    let sampling = Sampling { logprobs: Some(512), prompt_logprobs: Some(512), ..Sampling::default() };
    let recorded = &recorded("llama")[3];
    let mut given = Vec::new();
    for capacity_bytes in [4 << 10, 8 << 20] {
        let options = LinkOptions { capacity_bytes, ..LinkOptions::default() };
        let mut scheduler = Scheduler::bind_with(options).await;
        worker::start(&folder("llama"), &scheduler.address, (0, 1), &[]);
        scheduler.meet(1).await;
        scheduler.form().await;
        let added = vec![sequence(5, &recorded.prompt, sampling.clone())];
        let mut plan = StepPlan { step: 1, added, ..StepPlan::default() };
        row(&mut plan, 5, 0, recorded.prompt.len(), true);
        let result = scheduler.run(plan).await;
        given.push((scheduler.parts, (result.prompt_logprobs, result.logprobs, result.token)));
    }
    let [(parts, divided), (1, whole)] = &given[..] else { panic!("one message with a large link") };
    assert_eq!(divided, whole);
    assert!(*parts >= recorded.prompt.len(), "{parts} parts");
}

#[tokio::test]
async fn a_copied_block_serves_a_second_sequence() {
    let mut scheduler = formed("llama", 1, &[]).await;
    let recorded = &recorded("llama")[2]; // 33 tokens: two blocks full, one begun
    let first = greedy(0, &recorded.prompt);
    let mut plan = StepPlan { step: 1, added: vec![first.clone()], ..StepPlan::default() };
    row(&mut plan, 0, 0, recorded.prompt.len(), true);
    scheduler.run(plan).await;
    // The second shares the first two blocks, and gets a copy of the third in place of the first's.
    let mut second = greedy(1, &recorded.prompt);
    let own = second.blocks.split_off(2);
    second.blocks = first.blocks[..3].to_vec();
    let mut plan = StepPlan {
        step: 2,
        added: vec![second],
        copy_from: vec![first.blocks[2]],
        copy_to: vec![own[0]],
        replace_slot: vec![1],
        replace_index: vec![2],
        replace_block: vec![own[0]],
        new_block_slot: vec![1],
        new_block: vec![own[1]],
        ..StepPlan::default()
    };
    row(&mut plan, 0, 33, 1, true);
    row(&mut plan, 1, 32, 1, true);
    let mut tokens = [vec![recorded.greedy[0]], vec![]];
    let mut result = scheduler.run(plan).await;
    for step in 3..20 {
        for (slot, token) in result.slot.iter().zip(&result.token) {
            tokens[*slot as usize].push(*token);
        }
        let mut plan = StepPlan { step, ..StepPlan::default() };
        for (slot, tokens) in (0..).zip(&tokens) {
            row(&mut plan, slot, 32 + tokens.len(), 1, true);
        }
        result = scheduler.run(plan).await;
    }
    for tokens in tokens {
        assert_eq!(tokens, recorded.greedy[..tokens.len()]);
    }
}

#[tokio::test]
async fn the_echo_model_repeats_the_prompt() {
    let model = tempfile::tempdir().unwrap();
    let config = r#"{"architectures": ["EchoForCausalLM"], "vocab_size": 100, "max_position_embeddings": 4096}"#;
    std::fs::write(model.path().join("config.json"), config).unwrap();
    let mut scheduler = Scheduler::bind().await;
    worker::start(model.path(), &scheduler.address, (0, 1), &[]);
    scheduler.meet(1).await;
    scheduler.form().await;
    let tokens = scheduler.generate(vec![greedy(0, &[7, 8, 9]), greedy(1, &[5])], 7, 2048).await;
    assert_eq!(tokens, [vec![7, 8, 9, 7, 8, 9, 7], vec![5; 7]]);
}
