//! Tokens that follow whole steps, of settings of all kinds and in a long context: those that the reference chooses
//! from the same logits.

use models::LoadFormat;
use proto::Sampling;
use sampling::{SamplingPlan, Scratch, sample};

use crate::sequence::Sequence;
use crate::{QWEN3, WholeSteps, load, with_shape};

const PROMPT: usize = 4090;
const STEPS: usize = 20;

fn settings() -> Vec<Sampling> {
    let drawn = Sampling { temperature: 0.9, ..Sampling::default() };
    vec![
        Sampling { logprobs: Some(5), ..Sampling::default() },
        drawn.clone(),
        Sampling { min_p: 0.05, ..drawn.clone() },
        Sampling { logprobs: Some(20), ..drawn.clone() },
        Sampling { top_k: 40, top_p: 0.9, ..drawn.clone() },
        Sampling { repetition_penalty: 1.2, frequency_penalty: 0.3, ..drawn },
    ]
}

#[test]
fn draws_and_log_probabilities_are_those_of_the_logits() {
    with_shape(QWEN3, |dir| {
        let mut model = load(dir, LoadFormat::Dummy, WholeSteps::Always);
        for (seed, sampling) in (7..).zip(settings()) {
            let compiled = || SamplingPlan::compile(&sampling, seed, &[]);
            let (plan, mut sequence) = (compiled(), Sequence::new(PROMPT, 5).chosen(compiled()));
            let got = sequence.decode(&mut *model, STEPS, None);
            let mut history = sequence.history(&plan);
            for (step, got) in got.iter().enumerate() {
                let what = format!("{sampling:?}, step {step}");
                let want = sample(&mut got.logits.clone(), &plan, &history, &mut Scratch::default());
                history.push(want.token);
                assert_eq!(got.token, want.token, "{what}");
                assert_eq!(got.logprobs.is_some(), want.logprobs.is_some(), "{what}");
                for (got, want) in got.logprobs.iter().zip(&want.logprobs) {
                    assert_eq!(got.rank, want.rank, "{what}");
                    assert!(
                        (got.logprob - want.logprob).abs() <= 2e-5 * (1.0 + want.logprob.abs()),
                        "{what}: {got:?}, {want:?}"
                    );
                    let ids = |top: &[(u32, f32)]| top.iter().map(|best| best.0).collect::<Vec<_>>();
                    assert_eq!(ids(&got.top), ids(&want.top), "{what}");
                }
                let whole = got.ran.iter().any(|name| name.contains("whole_step"));
                assert!(step == 0 || whole, "{what}: {:?}", got.ran);
            }
            let tokens: Vec<u32> = got.iter().map(|step| step.token).collect();
            assert_eq!(sequence.decode_ahead(&mut *model, STEPS), tokens, "{sampling:?}, submitted ahead");
        }
    });
}
