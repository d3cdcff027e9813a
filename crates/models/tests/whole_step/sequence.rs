//! A sequence that is decoded, a step a token, as the worker does it.

use collectives::Solo;
use kernels::choose::{Choice, ChoiceRow, last_token};
use kernels::ops::{Batch, Sequence as Rows};
use models::Model;

use crate::{BLOCK_SIZE, MAX_ROWS, NUM_BLOCKS};

const SLOT: u32 = 1;

/// A prompt, and where its blocks lie.
pub struct Sequence {
    prompt: Vec<u32>,
    tables: Vec<Vec<u32>>,
}

/// What a step gave.
pub struct Decoded {
    pub token: u32,
    pub logits: Vec<f32>,
    /// The kernels that ran.
    pub ran: Vec<String>,
}

impl Sequence {
    pub fn new(prompt: usize, seed: usize) -> Self {
        let prompt = (0..prompt).map(|i| ((i * i + 7 * i + 13 * seed + 1) % 509) as u32).collect();
        // 37 and 512 have no common factor, so this is a permutation without neighbours.
        let blocks = (0..NUM_BLOCKS).map(|block| ((block + seed) * 37 % NUM_BLOCKS) as u32).collect();
        Self { prompt, tables: vec![blocks] }
    }

    /// The prompt in pieces, then `steps` tokens, each that of the step before or the one that is given.
    pub fn decode(&mut self, model: &mut Model, steps: usize, given: Option<&[u32]>) -> Vec<Decoded> {
        while self.tables.len() < model.cache().groups.len() {
            let next = self.tables[0].iter().map(|block| (block + 1) % NUM_BLOCKS as u32).collect();
            self.tables.push(next);
        }
        let mut done = 0;
        model.set_slot(SLOT, &Choice::default(), &[]);
        while done + MAX_ROWS < self.prompt.len() {
            let piece = self.prompt[done..done + MAX_ROWS].to_vec();
            self.step(model, &piece, done, false);
            done += MAX_ROWS;
        }
        let last = self.prompt[done..].to_vec();
        let mut all = vec![self.step(model, &last, done, true)];
        while let Some(step) = model.next_recording() {
            model.record(step, &mut Solo).expect("a step").expect("a recording");
        }
        for step in 1..steps {
            let token = given.map_or(last_token(SLOT), |tokens| tokens[step - 1]);
            all.push(self.step(model, &[token], self.prompt.len() + step - 1, true));
        }
        all
    }

    fn step(&self, model: &mut Model, tokens: &[u32], start: usize, chooses: bool) -> Decoded {
        let positions: Vec<u32> = (start..start + tokens.len()).map(|position| position as u32).collect();
        let end = start + tokens.len();
        let tables: Vec<Vec<u32>> =
            self.tables.iter().map(|table| table[..end.div_ceil(BLOCK_SIZE)].to_vec()).collect();
        let rows = Rows { first_row: 0, num_rows: tokens.len(), start, tables: &tables, slot: SLOT as usize };
        let batch = Batch { tokens, positions: &positions, sequences: &[rows] };
        let wanted = [tokens.len() as u32 - 1];
        let choice = ChoiceRow { row: 0, slot: SLOT, uniform: 0.0, hold_stops: false };
        let count = usize::from(chooses);
        model.start_profile();
        let ticket = model.submit(batch, &wanted[..count], &[choice][..count], &mut Solo).expect("a step");
        let ran = model.end_profile().into_iter().map(|timing| timing.name).collect();
        let logits = model.logits().expect("logits").data.to_vec();
        let mut chosen = Vec::new();
        model.take(ticket, &mut chosen).expect("tokens");
        Decoded { token: chosen.first().map_or(0, |sampled| sampled.token), logits, ran }
    }
}
