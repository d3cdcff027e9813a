//! A worker that executes plans to the letter of the protocol and keeps real block contents, so that a wrong share,
//! copy or eviction shows at once: every row checks all keys and values that attention would read.

use super::oracle;
use proto::{NewSequence, Sampling, StepPlan, StepResult, TokenLogprobs, Want};
use std::collections::HashSet;

/// Separates a request's number from its tenant in the request id, so that the worker knows the tenant.
pub const SALT_MARK: char = '@';

#[derive(Debug)]
struct Slot {
    tokens: Vec<u32>,
    num_prompt_tokens: usize,
    /// By group.
    tables: Vec<Vec<u32>>,
    /// Positions that are computed, or cached.
    computed: usize,
    sampling: Sampling,
    seed: u64,
    request_id: String,
    salt: String,
}

/// All ranks of a group at once.
#[derive(Debug)]
pub struct Worker {
    epoch: u64,
    next_step: u64,
    block_size: usize,
    windows: Vec<Option<u32>>,
    recurrent: bool,
    budget: u32,
    /// Keys and values, by block and offset.
    blocks: Vec<Vec<Option<u64>>>,
    slots: Vec<Option<Slot>>,
    /// Copies are executed in order or backwards; no plan may depend on it.
    backwards: bool,
}

impl Worker {
    pub fn new(epoch: u64, num_blocks: u32, config: &sched_core::Config) -> Self {
        let block_size = config.block_size as usize;
        Self {
            epoch,
            next_step: 1,
            block_size,
            windows: config.windows.clone(),
            recurrent: config.recurrent,
            budget: config.max_num_batched_tokens,
            blocks: vec![vec![None; block_size]; num_blocks as usize],
            slots: (0..config.max_num_seqs).map(|_| None).collect(),
            backwards: false,
        }
    }

    /// Ids of the requests that the plan has rows for, once its changes are applied.
    pub fn request_id(&self, slot: u32) -> &str {
        &self.slots[slot as usize].as_ref().expect("a row of an empty slot").request_id
    }

    /// Executes a plan.
    pub fn execute(&mut self, plan: &StepPlan) -> StepResult {
        self.apply_changes(plan);
        self.run_rows(plan)
    }

    /// All but the rows.
    pub fn apply_changes(&mut self, plan: &StepPlan) {
        assert_eq!((plan.epoch, plan.step), (self.epoch, self.next_step), "plans come in order");
        self.next_step += 1;
        for slot in &plan.removed {
            assert!(self.slots[*slot as usize].take().is_some(), "slot {slot} was empty");
        }
        plan.added.iter().for_each(|added| self.add(added));
        assert_eq!(plan.new_block_slot.len(), plan.new_block.len());
        let new_groups = self.groups(&plan.new_block_group, plan.new_block.len());
        for ((slot, block), group) in plan.new_block_slot.iter().zip(&plan.new_block).zip(new_groups) {
            self.slots[*slot as usize].as_mut().expect("a block for an empty slot").tables[group].push(*block);
        }
        self.copy(plan);
        let groups = self.groups(&plan.replace_group, plan.replace_block.len());
        let places = plan.replace_slot.iter().zip(&plan.replace_index).zip(groups);
        for (((slot, index), group), block) in places.zip(&plan.replace_block) {
            self.slots[*slot as usize].as_mut().expect("slot").tables[group][*index as usize] = *block;
        }
    }

    /// The groups that a plan names; it may leave them out where there is one.
    fn groups(&self, named: &[u32], count: usize) -> Vec<usize> {
        if self.windows.len() == 1 && named.is_empty() {
            return vec![0; count];
        }
        assert_eq!(named.len(), count);
        named.iter().map(|group| *group as usize).collect()
    }

    /// The first entry that a row from `start` on may look at.
    fn first_seen(&self, group: usize, start: usize) -> usize {
        self.windows[group].map_or(0, |window| (start + 1).saturating_sub(window as usize) / self.block_size)
    }

    fn add(&mut self, added: &NewSequence) {
        let place = &mut self.slots[added.slot as usize];
        assert!(place.is_none(), "slot {} is taken", added.slot);
        assert!(added.num_prompt_tokens > 0 && added.num_prompt_tokens as usize <= added.tokens.len());
        let mut blocks = added.blocks.iter().copied();
        let tables: Vec<Vec<u32>> = match added.group_len.is_empty() {
            true => vec![blocks.by_ref().collect()],
            // What lies behind a window may be anything.
            false => (added.group_len.iter().zip(&added.group_first))
                .map(|(len, first)| (0..*first).map(|_| u32::MAX).chain(blocks.by_ref().take(*len as usize)).collect())
                .collect(),
        };
        assert!(blocks.next().is_none() && tables.len() == self.windows.len());
        let salt = added.request_id.split_once(SALT_MARK).map_or("", |(_, salt)| salt);
        *place = Some(Slot {
            tokens: added.tokens.clone(),
            num_prompt_tokens: added.num_prompt_tokens as usize,
            tables,
            computed: 0,
            sampling: added.sampling.clone().expect("sampling"),
            seed: added.seed,
            request_id: added.request_id.clone(),
            salt: salt.into(),
        });
    }

    fn copy(&mut self, plan: &StepPlan) {
        assert_eq!(plan.copy_from.len(), plan.copy_to.len());
        let mut pairs: Vec<_> = plan.copy_from.iter().zip(&plan.copy_to).collect();
        self.backwards = !self.backwards;
        if self.backwards {
            pairs.reverse();
        }
        for (from, to) in pairs {
            self.blocks[*to as usize] = self.blocks[*from as usize].clone();
        }
    }

    fn run_rows(&mut self, plan: &StepPlan) -> StepResult {
        let rows = plan.slot.len();
        assert!(rows > 0 || !plan.removed.is_empty(), "an empty plan");
        assert!(plan.start.len() == rows && plan.num_tokens.len() == rows && plan.want.len() == rows);
        assert!(plan.num_tokens.iter().sum::<u32>() <= self.budget, "over budget");
        let distinct: HashSet<_> = plan.slot.iter().collect();
        assert_eq!(distinct.len(), rows, "a slot has two rows");
        // Rows run at the same time on real hardware: what one reads must be there before any writes, and still after.
        (0..rows).for_each(|row| self.check_reads(plan, row));
        (0..rows).for_each(|row| self.write(plan, row));
        (0..rows).for_each(|row| self.check_reads(plan, row));
        for (slot, (start, len)) in plan.slot.iter().zip(plan.start.iter().zip(&plan.num_tokens)) {
            self.slots[*slot as usize].as_mut().expect("slot").computed = (start + len) as usize;
        }
        let mut result = StepResult { epoch: plan.epoch, step: plan.step, ..StepResult::default() };
        for row in 0..rows {
            self.prompt_logprobs(plan, row, &mut result);
            if plan.want[row] == Want::Sample as i32 {
                self.sample(plan, row, &mut result);
            }
        }
        result
    }

    fn row(&self, plan: &StepPlan, row: usize) -> (&Slot, usize, usize) {
        let slot = self.slots[plan.slot[row] as usize].as_ref().expect("a row of an empty slot");
        let start = plan.start[row] as usize;
        let end = start + plan.num_tokens[row] as usize;
        assert!(start < end && end <= slot.tokens.len(), "row {start}..{end} of {} tokens", slot.tokens.len());
        (slot, start, end)
    }

    fn check_reads(&self, plan: &StepPlan, row: usize) {
        let (slot, start, _) = self.row(plan, row);
        // A state is carried from row to row: it begins at position 0 and goes on where it stopped.
        assert!(
            !self.recurrent || start == slot.computed,
            "{}: a state of {} at {start}",
            slot.request_id,
            slot.computed
        );
        for (group, table) in slot.tables.iter().enumerate() {
            let seen = self.first_seen(group, start) * self.block_size;
            for (position, kv) in oracle::kv_chain(&slot.salt, &slot.tokens[..start]).into_iter().enumerate().skip(seen)
            {
                let block = table[position / self.block_size];
                let found = self.blocks[block as usize][position % self.block_size];
                assert_eq!(found, Some(kv ^ group as u64), "{}: position {position} in block {block}", slot.request_id);
            }
        }
    }

    fn write(&mut self, plan: &StepPlan, row: usize) {
        let (slot, start, end) = self.row(plan, row);
        assert_eq!(plan.want[row] == Want::Sample as i32, end == slot.tokens.len(), "only the last position samples");
        let chain = oracle::kv_chain(&slot.salt, &slot.tokens[..end]);
        for (group, table) in slot.tables.clone().iter().enumerate() {
            for position in start..end {
                let block = table[position / self.block_size];
                let holders = self.slots.iter().flatten().map(|slot| self.holds(slot, block)).sum::<usize>();
                assert_eq!(holders, 1, "write to block {block}, which {holders} tables lead to");
                self.blocks[block as usize][position % self.block_size] = Some(chain[position] ^ group as u64);
            }
        }
    }

    /// How many entries of a sequence that coming rows may look at name the block.
    fn holds(&self, slot: &Slot, block: u32) -> usize {
        let live = |(group, table): (usize, &Vec<u32>)| {
            let first = self.first_seen(group, slot.computed).min(table.len());
            table[first..].iter().filter(|other| **other == block).count()
        };
        slot.tables.iter().enumerate().map(live).sum()
    }

    fn prompt_logprobs(&self, plan: &StepPlan, row: usize, result: &mut StepResult) {
        let (slot, start, end) = self.row(plan, row);
        if slot.sampling.prompt_logprobs.is_none() {
            return;
        }
        for position in start + 1..(end + 1).min(slot.num_prompt_tokens) {
            result.prompt_logprobs.push(TokenLogprobs {
                index: position as u32,
                token: slot.tokens[position],
                prompt_of_sequence: Some(plan.slot[row].into()),
                ..TokenLogprobs::default()
            });
        }
    }

    fn sample(&mut self, plan: &StepPlan, row: usize, result: &mut StepResult) {
        let (slot, _, end) = self.row(plan, row);
        let block = slot.tables[0][(end - 1) / self.block_size];
        let kv = self.blocks[block as usize][(end - 1) % self.block_size].expect("just written");
        let position = (end - slot.num_prompt_tokens) as u32;
        let token = oracle::sample(kv, slot.seed, position, &slot.sampling);
        if slot.sampling.logprobs.is_some() {
            let index = result.token.len() as u32;
            result.logprobs.push(TokenLogprobs { index, token, ..TokenLogprobs::default() });
        }
        result.slot.push(plan.slot[row]);
        result.token.push(token);
        self.slots[plan.slot[row] as usize].as_mut().expect("slot").tokens.push(token);
    }
}
