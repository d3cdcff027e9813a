//! Plans that run ahead give the same results as plans in order, and captured steps the same as steps that are launched
//! kernel by kernel. `QUIRE_TEST_DEVICE=cuda` computes on a GPU; only a GPU captures graphs.

use collectives::{Collective, Solo};
use kernels::cpu::{CpuBackend, CpuOptions};
use kernels::ops::Backend;
use kernels_cuda::CudaBackend;
use models::{ActivationRounding, LoadFormat, LoadOptions, NetworkHead, Placement, StateOptions};
use proto::{Constraint, LogitBias, NewSequence, Sampling, TokenIds, Want, constraint::Kind};

use super::*;
use crate::{
    config,
    guide::Grammars,
    idle::rehearsal::{self, Room},
};

mod jump;
mod ranks;

const BLOCKS: u32 = 64;
const LOGIT_ROWS: usize = 8;

/// Room of a rehearsal.
const ROOM: Room = Room { max_rows: 256, max_len: 300, block_size: 16, num_blocks: BLOCKS as usize, tables: 1 };

fn model() -> Box<dyn Runner> {
    model_at(Placement::WHOLE)
}

fn model_at(placement: Placement) -> Box<dyn Runner> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/zoo/llama");
    let options = LoadOptions {
        dtype: None,
        kv_cache_dtype: None,
        states: StateOptions::default(),
        placement,
        head: NetworkHead::Stored,
        format: LoadFormat::Auto,
        quantization: None,
        activations: ActivationRounding::None,
        seed: 0,
        max_len: None,
        block_size: 16,
        max_rows: 256,
        max_logit_rows: LOGIT_ROWS,
        threads: 1,
        lora: None,
    };
    let mut model = models::load(folder.as_ref(), &options, backend(), &mut |_| {}).unwrap().runner;
    model.set_capture_sizes(&[1, 2, 4, 8]);
    model.allocate(models::Memory { num_blocks: BLOCKS as usize, block_size: 16, max_sequences: 8 });
    model
}

fn backend() -> Box<dyn Backend> {
    if let Some(options) = config::test_gpu() {
        return Box::new(CudaBackend::open(&options).unwrap());
    }
    Box::new(CpuBackend::new(CpuOptions { threads: 1, isa: None }))
}

fn engine<'m>(model: &'m mut dyn Runner, graphs: &'m mut GraphCapture) -> Engine<'m> {
    engine_of(model, graphs, Box::new(Solo))
}

fn engine_of<'m>(model: &'m mut dyn Runner, graphs: &'m mut GraphCapture, group: Box<dyn Collective>) -> Engine<'m> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/zoo/llama");
    let slots = Slots::new(8, BLOCKS, 1, vec![2]).guided_by(Grammars::start(folder.into(), vec![2]).unwrap());
    Engine::new(OnDevice { runner: model, graphs }, slots, group, Options { threads: 1, max_logit_rows: LOGIT_ROWS })
}

fn sequence(slot: u32, prompt: &[u32], sampling: Sampling) -> NewSequence {
    NewSequence {
        slot,
        tokens: prompt.to_vec(),
        num_prompt_tokens: prompt.len() as u32,
        blocks: (slot * 4..slot * 4 + 4).collect(),
        sampling: Some(sampling),
        seed: 11 + u64::from(slot),
        ..NewSequence::default()
    }
}

/// A plan with rows of (slot, start, tokens, sample).
fn plan(step: u64, added: Vec<NewSequence>, rows: &[(u32, usize, usize, bool)]) -> StepPlan {
    let mut plan = StepPlan { step, added, ..StepPlan::default() };
    for (slot, start, len, sample) in rows {
        plan.slot.push(*slot);
        plan.start.push(*start as u32);
        plan.num_tokens.push(*len as u32);
        plan.want.push(if *sample { Want::Sample } else { Want::None }.into());
    }
    plan
}

/// When steps are captured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Capture {
    Never,
    /// Once they have run.
    Meanwhile,
    /// All of them and all other idle tasks, before the first plan.
    First,
    /// Once they have run, some of them in a rehearsal.
    Rehearsed,
}

/// What plans give, each submitted as early as the engine lets it be, or when the one before it is finished.
fn results(plans: &[StepPlan], ahead: bool, capture: Capture) -> Vec<StepResult> {
    let (mut model, mut graphs) = (model(), GraphCapture::new(capture == Capture::Never));
    if capture == Capture::Rehearsed {
        model.set_slots(8);
        rehearsal::run_steps(&mut *model, &mut graphs, &mut Solo, ROOM).unwrap();
        model.load_ahead(Duration::from_secs(60));
    }
    let mut engine = engine(&mut *model, &mut graphs);
    while capture == Capture::First && engine.has_idle_task() {
        engine.run_idle_task().unwrap();
    }
    let mut waiting = plans.iter().cloned();
    let mut results = Vec::new();
    while results.len() < plans.len() {
        while engine.has_room()
            && (ahead || engine.is_idle())
            && let Some(plan) = waiting.next()
        {
            engine.submit(plan).unwrap();
        }
        if engine.can_mask() {
            engine.mask_and_sample().unwrap();
            continue;
        }
        results.push(StepResult { compute_us: 0, ..engine.finish().unwrap().unwrap() });
    }
    results
}

fn check(plans: &[StepPlan]) -> Vec<StepResult> {
    let in_order = results(plans, false, Capture::Never);
    for capture in [Capture::Never, Capture::Meanwhile, Capture::First, Capture::Rehearsed] {
        assert_eq!(results(plans, true, capture), in_order);
    }
    in_order
}

/// Prompts at once, the last of them in two chunks, then a token a step for each.
fn decode(sequences: Vec<NewSequence>, steps: u64) -> Vec<StepPlan> {
    let lens: Vec<(u32, usize)> = sequences.iter().map(|s| (s.slot, s.tokens.len())).collect();
    let (last, others) = lens.split_last().unwrap();
    let mut first: Vec<_> = others.iter().map(|(slot, len)| (*slot, 0, *len, true)).collect();
    first.push((last.0, 0, last.1 - 1, false));
    let mut plans = vec![plan(1, sequences, &first)];
    for step in 2..=steps {
        let mut rows: Vec<_> = others.iter().map(|(slot, len)| (*slot, len + step as usize - 2, 1, true)).collect();
        rows.push((last.0, last.1 + step as usize - 3, 1, true));
        plans.push(plan(step, vec![], &rows));
    }
    plans
}

#[test]
fn greedy_plans_run_ahead() {
    let prompts = [&[1, 2, 3][..], &[4, 5, 6, 7], &[9, 10]];
    let sequences = (0..).zip(prompts).map(|(slot, prompt)| sequence(slot, prompt, Sampling::default()));
    let plans = decode(sequences.collect(), 12);
    let given = check(&plans);
    assert!(given[1..].iter().all(|result| result.token.len() == 3));
    // Plans do run ahead: two tokens of a sequence are pending.
    let (mut model, mut graphs) = (model(), GraphCapture::default());
    let mut engine = engine(&mut *model, &mut graphs);
    engine.submit(plans[0].clone()).unwrap();
    engine.submit(plans[1].clone()).unwrap();
    let slot = engine.slots.get(0).unwrap();
    assert_eq!((slot.pending, slot.history.tokens().len()), (2, 3));
    assert!(!engine.has_room());
}

#[test]
fn device_and_host_sample_rows_of_the_same_batch() {
    let seeded = Sampling { temperature: 1.3, top_p: 0.9, top_k: 50, min_p: 0.01, ..Sampling::default() };
    let penalised = Sampling {
        repetition_penalty: 1.4,
        frequency_penalty: 0.5,
        presence_penalty: 0.2,
        logprobs: Some(5),
        ..Sampling::default()
    };
    let steered = Sampling {
        logit_bias: vec![LogitBias { token: 7, bias: 30.0 }],
        bad_token_ids: vec![TokenIds { ids: vec![7, 7] }],
        min_tokens: 4,
        ..seeded.clone()
    };
    let scored = Sampling { prompt_logprobs: Some(2), ..Sampling::default() };
    let settings = [Sampling::default(), seeded, penalised, steered, scored, Sampling::default()];
    let prompt: Vec<u32> = (20..33).collect();
    let sequences: Vec<_> = (0..).zip(settings).map(|(slot, sampling)| sequence(slot, &prompt, sampling)).collect();
    let given = check(&decode(sequences.clone(), 10));
    assert_eq!(given[0].prompt_logprobs.len(), prompt.len() - 1);
    assert!(given[5].logprobs.iter().any(|entry| entry.top_ids.len() == 5));
    // Without rows that the host samples, every row stays on the device.
    let alone = check(&decode(vec![sequences[1].clone(), sequences[0].clone()], 10));
    let tokens = |given: &[StepResult], slot| -> Vec<u32> {
        let pairs = given.iter().flat_map(|result| result.slot.iter().zip(&result.token));
        pairs.filter(|(held, _)| **held == slot).map(|(_, token)| *token).collect()
    };
    let greedy = tokens(&given, 0);
    assert_eq!(tokens(&alone, 0), greedy[..9]);
    assert_eq!(tokens(&alone, 1), tokens(&given, 1));
}

/// A sequence whose text is to match a regular expression.
fn guided(slot: u32, regex: &str, sampling: Sampling) -> NewSequence {
    let constraint = Constraint { kind: Some(Kind::Regex(regex.to_owned())), ..Constraint::default() };
    sequence(slot, &[3, 4, 5, 6], Sampling { constraint: Some(constraint), ..sampling })
}

#[test]
fn guided_sequences_run_ahead() {
    let seeded = Sampling { temperature: 1.5, top_k: 40, ..Sampling::default() };
    let scored = Sampling { logprobs: Some(2), ..Sampling::default() };
    let settings = [Sampling::default(), seeded, scored];
    let regex = "[0-9a-f ]{30,60}[A-Z]";
    let guides = (0..).zip(&settings).map(|(slot, sampling)| guided(slot, regex, sampling.clone()));
    let mut sequences: Vec<_> = guides.collect();
    sequences.push(sequence(3, &[7, 8, 9], Sampling::default()));
    let given = check(&decode(sequences.clone(), 14));
    assert!(given.iter().all(|result| result.failed.is_empty()));
    // A rule that only the host knows, and that no text meets, has the host sample them.
    let unmet = vec![TokenIds { ids: vec![2, 2] }];
    for (at, sampling) in settings.iter().enumerate() {
        let sampling = Sampling { bad_token_ids: unmet.clone(), ..sampling.clone() };
        sequences[at] = guided(at as u32, regex, sampling);
    }
    assert_eq!(results(&decode(sequences, 14), false, Capture::Never), given);
}

#[test]
fn a_guided_plan_waits_for_the_tokens_before_it() {
    let plans = decode(vec![guided(0, "[ab]{9}", Sampling::default()), guided(1, "x+", Sampling::default())], 3);
    let (mut model, mut graphs) = (model(), GraphCapture::default());
    let mut engine = engine(&mut *model, &mut graphs);
    engine.submit(plans[0].clone()).unwrap();
    engine.submit(plans[1].clone()).unwrap();
    let is_on_device = engine.slots.get(0).unwrap().on_device;
    assert_eq!((is_on_device, engine.awaits_masks(), engine.can_mask()), (true, true, false));
    engine.finish().unwrap();
    assert_eq!((engine.awaits_masks(), engine.can_mask(), engine.has_room()), (true, true, false));
    engine.mask_and_sample().unwrap();
    assert_eq!((engine.awaits_masks(), engine.has_room()), (false, true));
    engine.submit(plans[2].clone()).unwrap();
    assert!(engine.awaits_masks());
}

#[test]
fn a_slot_changes_hands_while_its_token_is_under_way() {
    let first = sequence(0, &[1, 2, 3], Sampling::default());
    let second = sequence(0, &[30, 31, 32, 33, 34], Sampling::default());
    let mut plans = decode(vec![sequence(1, &[8, 8], Sampling::default()), first], 5);
    let mut change = plan(6, vec![second], &[(1, 6, 1, true), (0, 0, 5, true)]);
    change.removed.push(0);
    plans.push(change);
    plans.extend(
        (7..11).map(|step| plan(step, vec![], &[(1, step as usize, 1, true), (0, step as usize - 2, 1, true)])),
    );
    let given = check(&plans);
    let fresh = check(&decode(
        vec![sequence(0, &[30, 31, 32, 33, 34], Sampling::default()), sequence(1, &[8, 8], Sampling::default())],
        6,
    ));
    let of = |result: &StepResult| result.token[result.slot.iter().position(|slot| *slot == 0).unwrap()];
    assert_eq!(given[5..].iter().map(of).collect::<Vec<_>>(), fresh[..5].iter().map(of).collect::<Vec<_>>());
}

#[test]
fn a_token_that_no_row_samples_cannot_be_an_input() {
    let plans = decode(vec![sequence(0, &[1, 2], Sampling::default()), sequence(1, &[5, 6], Sampling::default())], 3);
    let (mut model, mut graphs) = (model(), GraphCapture::default());
    let mut engine = engine(&mut *model, &mut graphs);
    engine.submit(plans[0].clone()).unwrap();
    engine.submit(plans[1].clone()).unwrap();
    // Plan 2 computes position 2; of the pending tokens, only that of position 3 can be an input.
    for (start, len) in [(2, 1), (2, 2), (4, 1)] {
        let late = plan(3, vec![], &[(0, start, len, true)]);
        assert!(forward_passes(&late, &engine.slots, LOGIT_ROWS, vec![]).is_err(), "{start}, {len}");
    }
    assert!(forward_passes(&plan(3, vec![], &[(0, 3, 1, true)]), &engine.slots, LOGIT_ROWS, vec![]).is_ok());
}

/// Tokens of slot 0, `drafted` at a time beside a plain decode in slot 1. Every draft is what `plain` decoding gave,
/// but for its token number `wrong`.
fn verified(sequences: &[NewSequence], plain: &[u32], drafted: usize, wrong: usize) -> [Vec<u32>; 2] {
    let (mut model, mut graphs) = (model(), GraphCapture::new(true));
    let mut engine = engine(&mut *model, &mut graphs);
    let lens = [sequences[0].tokens.len(), sequences[1].tokens.len()];
    let mut tokens = [Vec::new(), Vec::new()];
    let mut next = plan(1, sequences.to_vec(), &[(1, 0, lens[1], true), (0, 0, lens[0], true)]);
    while tokens[0].len() < plain.len() {
        let step = next.step;
        let draft = next.draft.clone();
        engine.submit(next).unwrap();
        let result = engine.finish().unwrap().unwrap();
        let given = result.count.get(1).map_or(1, |count| *count as usize);
        assert_eq!(given, 1 + wrong.min(draft.len()), "what is right up to the wrong one, and one more");
        assert_eq!((result.slot.as_slice(), result.token.len()), (&[1, 0][..], 1 + given));
        tokens[1].push(result.token[0]);
        tokens[0].extend(&result.token[1..]);
        assert!(result.logprobs.iter().all(|entry| result.token[entry.index as usize] == entry.token));
        let rest = &plain[tokens[0].len().min(plain.len())..];
        let mut draft = rest[..rest.len().min(drafted)].to_vec();
        if let Some(token) = draft.get_mut(wrong) {
            *token = (*token + 1) % 50;
        }
        let starts = [0, 1].map(|slot| lens[slot] + tokens[slot].len() - 1);
        next = plan(step + 1, vec![], &[(1, starts[1], 1, true), (0, starts[0], 1 + draft.len(), true)]);
        if !draft.is_empty() {
            next.want[1] = Want::Verify as i32;
            (next.num_draft, next.draft) = (vec![draft.len() as u32], draft);
        }
    }
    tokens
}

#[test]
fn verified_drafts_give_the_tokens_of_plain_decoding() {
    let seeded = Sampling { temperature: 1.3, top_k: 50, ..Sampling::default() };
    let penalised = Sampling { repetition_penalty: 1.4, frequency_penalty: 0.5, logprobs: Some(2), ..seeded.clone() };
    for sampling in [Sampling::default(), seeded, penalised] {
        let sequences = [sequence(0, &[3, 4, 5, 6], sampling), sequence(1, &[7, 8, 9], Sampling::default())];
        let given = results(&decode(vec![sequences[1].clone(), sequences[0].clone()], 14), false, Capture::Never);
        let of = |slot| -> Vec<u32> {
            let pairs = given.iter().flat_map(|result| result.slot.iter().zip(&result.token));
            pairs.filter(|(held, _)| **held == slot).map(|(_, token)| *token).collect()
        };
        let plain = of(0);
        for (drafted, wrong) in [(3, 0), (3, 1), (3, 9), (5, 2), (1, 9)] {
            let tokens = verified(&sequences, &plain, drafted, wrong);
            assert_eq!(tokens[0][..plain.len()], plain, "{drafted} drafted, {wrong} wrong");
            let both = tokens[1].len().min(of(1).len());
            assert_eq!(tokens[1][..both], of(1)[..both], "beside it: {drafted}, {wrong}");
        }
    }
}

#[test]
fn a_draft_must_continue_what_is_known() {
    let plans = decode(vec![sequence(0, &[1, 2], Sampling::default()), sequence(1, &[5, 6], Sampling::default())], 2);
    let (mut model, mut graphs) = (model(), GraphCapture::default());
    let mut engine = engine(&mut *model, &mut graphs);
    let drafted = |start, drafts: Vec<u32>| {
        let mut plan = plan(2, vec![], &[(0, start, 1 + drafts.len(), true)]);
        plan.want[0] = Want::Verify as i32;
        (plan.num_draft, plan.draft) = (vec![drafts.len() as u32], drafts);
        plan
    };
    engine.submit(plans[0].clone()).unwrap();
    let check =
        |engine: &Engine<'_>, plan: &StepPlan| forward_passes(plan, &engine.slots, LOGIT_ROWS, vec![]).map(|_| ());
    assert!(check(&engine, &drafted(2, vec![4])).is_err(), "the token at 2 is under way");
    engine.finish().unwrap();
    assert!(check(&engine, &drafted(2, vec![4])).is_ok());
    assert!(check(&engine, &drafted(1, vec![4])).is_err(), "position 2 is known");
    assert!(check(&engine, &drafted(2, vec![4; LOGIT_ROWS])).is_err(), "more than there are rows of logits");
}
