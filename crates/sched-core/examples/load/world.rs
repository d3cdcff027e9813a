//! Requests come, the scheduler plans, steps take their time, clients send their next request.

use std::collections::{BTreeMap, HashMap, VecDeque};

use ids::Epoch;
use proto::{RequestKey, Sampling, StepResult, TokenBatch, Want, prompt::Kind};
use sched_core::{Config, Scheduler};

use crate::costs::Costs;

/// Microseconds from a step's end to what a client sends next.
const ROUND_TRIP_US: u64 = 500;
/// KV blocks, of 16 tokens.
const BLOCKS: u32 = 52_000;

/// A request to come: tokens in and out.
#[derive(Clone, Copy)]
pub struct Asked {
    pub input: u32,
    pub output: u32,
}

/// What became of one.
#[derive(Clone, Default)]
struct Seen {
    sent_us: u64,
    tokens_us: Vec<u64>,
}

/// A scheduler, a worker that takes its time, and clients.
pub struct World {
    core: Scheduler,
    costs: &'static Costs,
    now_us: u64,
    /// What arrives when.
    arrivals: BTreeMap<(u64, u64), Asked>,
    /// What clients send once they have their answer.
    pub to_come: VecDeque<Asked>,
    /// Ends and answers of steps under way.
    flights: VecDeque<(u64, StepResult)>,
    free_at_us: u64,
    seen: Vec<Seen>,
    numbers: HashMap<u64, usize>,
    steps: Vec<Step>,
    trace: bool,
}

struct Step {
    decodes: u32,
    prompt_tokens: u32,
    us: f64,
}

impl World {
    /// With requests of nobody; `trace` prints every step.
    pub fn new(costs: &'static Costs, config: Config, trace: bool) -> Self {
        let mut core = Scheduler::new(config).expect("a possible configuration");
        core.group_formed(Epoch(1), BLOCKS, 0);
        Self {
            core,
            costs,
            now_us: 0,
            arrivals: BTreeMap::new(),
            to_come: VecDeque::new(),
            flights: VecDeque::new(),
            free_at_us: 0,
            seen: Vec::new(),
            numbers: HashMap::new(),
            steps: Vec::new(),
            trace,
        }
    }

    /// A request comes at this time.
    pub fn arrive(&mut self, at_us: u64, asked: Asked) {
        let number = self.arrivals.len() as u64 + self.seen.len() as u64;
        self.arrivals.insert((at_us, number), asked);
    }

    /// Until the last answer is there.
    pub fn run(&mut self) {
        loop {
            let arrival = self.arrivals.keys().next().map(|(at, _)| *at);
            let end = self.flights.front().map(|(at, _)| *at);
            match (arrival, end) {
                (Some(at), end) if end.is_none_or(|end| at <= end) => self.admit(),
                (_, Some(_)) => self.complete(),
                _ => return,
            }
            self.plan();
        }
    }

    fn admit(&mut self) {
        let Some(((at, _), asked)) = self.arrivals.pop_first() else { return };
        self.now_us = at;
        let number = self.seen.len() as u64;
        let ids = (0..asked.input).map(|at| (at * 31 + number as u32 * 17) % 32_000).collect();
        let request = proto::Request {
            key: Some(RequestKey { gateway: 1, number }),
            prompt: Some(proto::Prompt { kind: Some(Kind::Ids(proto::TokenIds { ids })), ..Default::default() }),
            sampling: Some(Sampling { ignore_eos: true, ..Default::default() }),
            n: 1,
            max_tokens: Some(asked.output),
            ..Default::default()
        };
        self.core.admit(request, at).expect("admitted");
        self.seen.push(Seen { sent_us: at, tokens_us: Vec::new() });
    }

    fn plan(&mut self) {
        while let Some(plan) = self.core.plan(self.now_us) {
            let us = if plan.slot.is_empty() { 0.0 } else { self.costs.of(&plan) };
            let begin = self.now_us.max(self.free_at_us);
            self.free_at_us = begin + us as u64;
            let decodes = plan.num_tokens.iter().filter(|tokens| **tokens == 1).count() as u32;
            let step = Step { decodes, prompt_tokens: plan.num_tokens.iter().sum::<u32>() - decodes, us };
            if self.trace {
                println!("{begin:>10} {:>4} + {:>5} {us:>9.0}", step.decodes, step.prompt_tokens);
            }
            self.steps.push(step);
            let slot: Vec<u32> = plan
                .slot
                .iter()
                .zip(plan.want())
                .filter(|(_, want)| *want == Want::Sample)
                .map(|(slot, _)| *slot)
                .collect();
            let token = vec![100; slot.len()];
            let result = StepResult {
                epoch: plan.epoch,
                step: plan.step,
                slot,
                token,
                compute_us: us as u32,
                ..Default::default()
            };
            self.flights.push_back((self.free_at_us, result));
        }
        self.take();
    }

    fn complete(&mut self) {
        let Some((at, result)) = self.flights.pop_front() else { return };
        self.now_us = at;
        self.core.complete(result, at).expect("the planned rows");
    }

    fn take(&mut self) {
        let mut batch = TokenBatch::default();
        self.core.take_output(&mut batch);
        for started in batch.started {
            self.numbers.insert(started.first_sequence, started.key.expect("a key").number as usize);
        }
        for sequence in batch.sequence {
            self.seen[self.numbers[&sequence]].tokens_us.push(self.now_us);
        }
        for _ in batch.finished {
            if let Some(asked) = self.to_come.pop_front() {
                self.arrive(self.now_us + ROUND_TRIP_US, asked);
            }
        }
    }

    /// Prints what clients saw.
    pub fn report(&self, name: &str) {
        let percentile = |mut values: Vec<u64>, share: f64| {
            values.sort_unstable();
            values.get(((values.len().max(1) - 1) as f64 * share) as usize).map_or(0.0, |us| *us as f64 / 1000.0)
        };
        let ttft: Vec<u64> = self.seen.iter().map(|seen| seen.tokens_us[0] - seen.sent_us).collect();
        let gaps: Vec<u64> =
            self.seen.iter().flat_map(|seen| seen.tokens_us.windows(2).map(|pair| pair[1] - pair[0])).collect();
        let tokens: usize = self.seen.iter().map(|seen| seen.tokens_us.len()).sum();
        let last = self.seen.iter().filter_map(|seen| seen.tokens_us.last()).max().copied().unwrap_or(1);
        let of = |mixed: bool| {
            let some: Vec<&Step> = self.steps.iter().filter(|step| (step.prompt_tokens > 0) == mixed).collect();
            (some.len(), some.iter().map(|step| step.us).sum::<f64>() / 1e6)
        };
        let ((with, with_s), (without, without_s)) = (of(true), of(false));
        println!(
            "{name}: {:.0} out tok/s, TTFT p50 {:.1} p99 {:.1} ms, ITL p50 {:.2} p99 {:.1} ms; \
             {with} steps with prompts {with_s:.2} s, {without} without {without_s:.2} s, in all {:.2} s",
            tokens as f64 / (last as f64 / 1e6),
            percentile(ttft.clone(), 0.5),
            percentile(ttft.clone(), 0.99),
            percentile(gaps.clone(), 0.5),
            percentile(gaps, 0.99),
            last as f64 / 1e6,
        );
        if let Some(long) = self.seen.iter().position(|seen| seen.tokens_us.len() == 16) {
            println!("  the long prompt: TTFT {:.1} ms", ttft[long] as f64 / 1000.0);
        }
    }
}
