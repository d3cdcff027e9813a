//! A sequence that is decoded, a step a token, as the worker does it.

use collectives::Solo;
use kernels::ops::{Batch, Sequence as Rows};
use kernels::sample::{Logprobs, SampleParams, SampleRow, Sampled, Ticket, last_token};
use models::Runner;
use sampling::{History, SamplingPlan};

use crate::{BLOCK_SIZE, MAX_ROWS, NUM_BLOCKS};

const SLOT: u32 = 1;

/// A prompt, where its blocks lie, and how what follows is chosen.
pub struct Sequence {
    prompt: Vec<u32>,
    tables: Vec<Vec<u32>>,
    plan: Option<SamplingPlan>,
}

/// What a step gave.
pub struct Decoded {
    pub token: u32,
    pub logprobs: Option<Logprobs>,
    pub logits: Vec<f32>,
    /// The kernels that ran.
    pub ran: Vec<String>,
}

impl Sequence {
    pub fn new(prompt: usize, seed: usize) -> Self {
        let prompt = (0..prompt).map(|i| ((i * i + 7 * i + 13 * seed + 1) % 509) as u32).collect();
        // 37 and 512 have no common factor, so this is a permutation without neighbours.
        let blocks = (0..NUM_BLOCKS).map(|block| ((block + seed) * 37 % NUM_BLOCKS) as u32).collect();
        Self { prompt, tables: vec![blocks], plan: None }
    }

    /// Chosen like this instead of greedily.
    pub fn chosen(self, plan: SamplingPlan) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Nothing but the prompt.
    pub fn history(&self, plan: &SamplingPlan) -> History {
        History::new(self.prompt.clone(), self.prompt.len(), plan)
    }

    /// The prompt in pieces, then `steps` tokens, each that of the step before or the one that is given.
    pub fn decode(&mut self, model: &mut dyn Runner, steps: usize, given: Option<&[u32]>) -> Vec<Decoded> {
        let mut all = vec![self.prefill(model)];
        for step in 1..steps {
            let token = given.map_or(last_token(SLOT), |tokens| tokens[step - 1]);
            all.push(self.step(model, &[token], self.prompt.len() + step - 1, Some(step)));
        }
        all
    }

    /// The tokens of as many steps, each submitted before that of the step before is known, as in service.
    pub fn decode_ahead(&mut self, model: &mut dyn Runner, steps: usize) -> Vec<u32> {
        let mut tokens = vec![self.prefill(model).token];
        let mut ahead: Option<Ticket> = None;
        for step in 1..=steps {
            let start = self.prompt.len() + step - 1;
            let next = (step < steps).then(|| self.submit(model, &[last_token(SLOT)], start, Some(step)));
            if let Some(ticket) = std::mem::replace(&mut ahead, next) {
                let mut chosen = Vec::new();
                model.take(ticket, &mut chosen).expect("tokens");
                tokens.extend(chosen.iter().map(|sampled| sampled.token));
            }
        }
        tokens
    }

    /// The prompt in pieces; then what is to be recorded is.
    fn prefill(&mut self, model: &mut dyn Runner) -> Decoded {
        while self.tables.len() < model.cache().groups.len() {
            let next = self.tables[0].iter().map(|block| (block + 1) % NUM_BLOCKS as u32).collect();
            self.tables.push(next);
        }
        let mut done = 0;
        let choice = self
            .plan
            .as_ref()
            .map_or_else(SampleParams::default, |plan| plan.device_params().expect("one for devices"));
        let counts = self.plan.as_ref().map_or_else(Vec::new, |plan| self.history(plan).counts().collect());
        model.set_slot(SLOT, &choice, &counts);
        while done + MAX_ROWS < self.prompt.len() {
            let piece = self.prompt[done..done + MAX_ROWS].to_vec();
            self.step(model, &piece, done, None);
            done += MAX_ROWS;
        }
        let last = self.prompt[done..].to_vec();
        let first = self.step(model, &last, done, Some(0));
        while let Some(step) = model.next_capture() {
            if step.has_run || step.is_ready {
                model.capture(step, &mut Solo).expect("a step").expect("a capture");
            }
            // Kernels that are being compiled are waited for here.
            while model.warm_up() {}
        }
        first
    }

    /// Asks for a step, and for the token at `output`, if there is to be one.
    fn submit(&self, model: &mut dyn Runner, tokens: &[u32], start: usize, output: Option<usize>) -> Ticket {
        let positions: Vec<u32> = (start..start + tokens.len()).map(|position| position as u32).collect();
        let end = start + tokens.len();
        let tables: Vec<Vec<u32>> =
            self.tables.iter().map(|table| table[..end.div_ceil(BLOCK_SIZE)].to_vec()).collect();
        let rows = Rows { first_row: 0, num_rows: tokens.len(), start, tables: &tables, slot: SLOT as usize };
        let batch = Batch { tokens, positions: &positions, sequences: &[rows] };
        let wanted = [tokens.len() as u32 - 1];
        let uniform = self.plan.as_ref().zip(output).map_or(0.0, |(plan, output)| plan.uniform_at(output));
        let choice = SampleRow { row: 0, slot: SLOT, uniform, hold_stops: false };
        let count = usize::from(output.is_some());
        model.submit(batch, &wanted[..count], &[choice][..count], &mut Solo).expect("a step")
    }

    fn step(&self, model: &mut dyn Runner, tokens: &[u32], start: usize, output: Option<usize>) -> Decoded {
        model.start_profile();
        let ticket = self.submit(model, tokens, start, output);
        let ran = model.end_profile().into_iter().map(|timing| timing.name).collect();
        let logits = model.logits().expect("logits").data.to_vec();
        let mut chosen = Vec::new();
        model.take(ticket, &mut chosen).expect("tokens");
        let Sampled { token, logprobs } = chosen.pop().unwrap_or(Sampled { token: 0, logprobs: None });
        Decoded { token, logprobs, logits, ran }
    }
}
