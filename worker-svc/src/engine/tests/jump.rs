//! Tokens that a grammar forces come at once, and are those that would be sampled.

use super::*;

/// How a sequence is run to its end.
#[derive(Clone, Copy)]
struct Way {
    jumps: bool,
    in_flight: usize,
}

/// A run: the tokens, and the plans that they took.
#[derive(Debug, PartialEq)]
struct Run {
    tokens: Vec<u32>,
    plans: u64,
    silent: usize,
}

/// Runs one sequence for at least `tokens` tokens, as the scheduler does.
fn run(way: Way, new: NewSequence, tokens: usize) -> Run {
    let (mut model, mut graphs) = (model(), GraphCapture::new(true));
    let mut engine = engine(&mut *model, &mut graphs);
    let prompt = new.tokens.len();
    let mut added = vec![NewSequence { jump_forward: way.jumps, ..new }];
    let mut run = Run { tokens: Vec::new(), plans: 0, silent: 0 };
    let (mut scheduled, mut in_flight, mut silent) = (0, 0, 0);
    while run.tokens.len() < tokens {
        while in_flight + silent < way.in_flight {
            if engine.can_mask() {
                engine.mask_and_sample().unwrap();
            }
            assert!(engine.has_room());
            let end = prompt + run.tokens.len() + in_flight;
            run.plans += 1;
            let row = (0, scheduled, end - scheduled, true);
            engine.submit(plan(run.plans, std::mem::take(&mut added), &[row])).unwrap();
            (scheduled, in_flight) = (end, in_flight + 1);
        }
        let result = engine.finish().unwrap().unwrap();
        assert_eq!((result.slot, result.failed.len()), (vec![0], 0));
        let count = result.count.first().copied().unwrap_or(1);
        assert_eq!((count as usize, count == 0), (result.token.len(), silent > 0));
        match count {
            0 => silent -= 1,
            1 => in_flight -= 1,
            _ => (silent, in_flight) = (in_flight - 1, 0),
        }
        run.silent += usize::from(count == 0);
        run.tokens.extend(result.token);
    }
    run.tokens.truncate(tokens);
    run
}

#[test]
fn forced_tokens_are_those_that_would_be_sampled() {
    let seeded = Sampling { temperature: 1.5, top_k: 40, ..Sampling::default() };
    let on_host = Sampling { bad_token_ids: vec![TokenIds { ids: vec![2, 2] }], ..Sampling::default() };
    let regex = "[a-f]{2,5}(, and the next one of these words is [a-f]{2,5}){9}";
    for sampling in [Sampling::default(), seeded, on_host] {
        let new = guided(0, regex, sampling);
        let plain = run(Way { jumps: false, in_flight: 2 }, new.clone(), 40);
        for in_flight in [1, 2] {
            let jumped = run(Way { jumps: true, in_flight }, new.clone(), 40);
            assert_eq!(jumped.tokens, plain.tokens, "{in_flight} in flight, {:?}", new.sampling);
            assert_eq!(jumped.silent > 0, in_flight > 1);
            assert!(jumped.plans + 10 < plain.plans, "{} plans, {} without jumps", jumped.plans, plain.plans);
        }
    }
}
