//! A worker that executes plans to the letter of the protocol and keeps real block contents, so that a wrong share,
//! copy or eviction shows at once: every row checks all keys and values that attention would read.

use super::oracle::{self, Context};
use proto::{
    AdapterLoad, Candidates, NewSequence, Pooled, Pooling, Sampling, StepPlan, StepResult, TokenLogprobs, Want,
    pooling::Tokens,
};
use std::collections::HashSet;

/// Separates a request's number from its context in the request id, so that the worker knows the context.
pub const CONTEXT_MARK: char = '@';
/// What a slot holds that an adapter is on its way to.
const COMING: &str = "parts of some adapters";

#[derive(Debug)]
struct Slot {
    tokens: Vec<u32>,
    num_prompt_tokens: usize,
    /// Tokens that a stage knows which does not sample.
    told: Vec<u32>,
    /// By group.
    tables: Vec<Vec<u32>>,
    /// Positions that are computed, or cached.
    computed: usize,
    sampling: Sampling,
    seed: u64,
    request_id: String,
    context: Context,
    /// The slot of its adapter.
    adapter: Option<u32>,
    pooling: Option<Tokens>,
    /// Candidates that its rows give, if it is a beam.
    candidates: usize,
    /// Forced tokens may come with the one before them.
    jumps: bool,
    /// Tokens below the forced ones that came last: a row under way may end there.
    jumped_from: Option<usize>,
    /// What the last layer gave for the positions that this slot's rows computed.
    hidden: Vec<u64>,
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
    stages: u32,
    /// Keys and values, by block and offset.
    blocks: Vec<Vec<Option<u64>>>,
    slots: Vec<Option<Slot>>,
    /// Adapters of the slots that the device has for them.
    adapters: Vec<String>,
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
            stages: config.stages,
            blocks: vec![vec![None; block_size]; num_blocks as usize],
            slots: (0..config.max_num_seqs).map(|_| None).collect(),
            adapters: vec![String::new(); config.adapter_slots as usize],
            backwards: false,
        }
    }

    /// An adapter has come to its slot.
    pub fn place_adapter(&mut self, AdapterLoad { slot, adapter }: AdapterLoad) {
        assert_eq!(self.adapters[slot as usize], COMING);
        self.adapters[slot as usize] = adapter;
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
        // Nobody may use the slot until it holds what comes.
        for load in &plan.adapters {
            assert_ne!(self.adapters[load.slot as usize], COMING, "slot {}", load.slot);
            self.adapters[load.slot as usize] = COMING.to_owned();
        }
        plan.added.iter().for_each(|added| self.add(added));
        self.continue_beams(plan);
        self.tell(plan);
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
        let sampling = added.sampling.as_ref().expect("sampling");
        let may_jump = sampling.constraint.is_some() && sampling.logprobs.is_none() && self.stages == 1;
        assert!(may_jump || !added.jump_forward, "a sequence that must not jump");
        let context = added.request_id.split_once(CONTEXT_MARK).map_or("", |(_, context)| context);
        *place = Some(Slot {
            tokens: added.tokens.clone(),
            told: added.tokens.clone(),
            num_prompt_tokens: added.num_prompt_tokens as usize,
            tables,
            computed: 0,
            sampling: added.sampling.clone().expect("sampling"),
            seed: added.seed,
            request_id: added.request_id.clone(),
            context: Context::read(context),
            adapter: added.adapter,
            pooling: added.pooling.as_ref().map(Pooling::tokens),
            candidates: added.candidates as usize,
            jumps: added.jump_forward,
            jumped_from: None,
            hidden: Vec::new(),
        });
    }

    /// Beams take over what others had before the plan.
    fn continue_beams(&mut self, plan: &StepPlan) {
        let moves = plan.continued.iter().zip(&plan.continued_from);
        let get = |slot: &u32| self.slots[*slot as usize].as_ref().expect("a beam");
        let before: Vec<_> = moves
            .clone()
            .map(|(to, from)| {
                assert_eq!(get(to).request_id, get(from).request_id);
                (get(from).tokens.clone(), get(from).tables.clone(), get(from).computed)
            })
            .collect();
        assert!(plan.continued.len() == before.len() && plan.continued_token.len() == before.len());
        for ((to, before), token) in plan.continued.iter().zip(before).zip(&plan.continued_token) {
            let slot = self.slots[*to as usize].as_mut().expect("a beam");
            (slot.tokens, slot.tables, slot.computed) = before;
            slot.tokens.push(*token);
            slot.told.clone_from(&slot.tokens);
        }
    }

    /// A stage that does not sample learns what the last one did.
    fn tell(&mut self, plan: &StepPlan) {
        assert_eq!(plan.told_slot.len(), plan.told_token.len());
        assert!(self.stages > 1 || plan.told_slot.is_empty(), "a single stage samples");
        for (slot, token) in plan.told_slot.iter().zip(&plan.told_token) {
            let slot = self.slots[*slot as usize].as_mut().expect("a token for an empty slot");
            slot.told.push(*token);
            assert_eq!(slot.told, slot.tokens[..slot.told.len()], "{}: another token", slot.request_id);
        }
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
        let rows = rows(plan);
        assert!(rows.len() + plan.removed.len() + plan.adapters.len() > 0, "an empty plan");
        assert!(plan.num_tokens.iter().sum::<u32>() <= self.budget, "over budget");
        let distinct: HashSet<_> = plan.slot.iter().collect();
        assert_eq!(distinct.len(), rows.len(), "a slot has two rows");
        // Rows run at the same time on real hardware: what one reads must be there before any writes, and still after.
        rows.iter().for_each(|row| self.check_reads(row));
        rows.iter().for_each(|row| self.write(row));
        rows.iter().for_each(|row| self.check_reads(row));
        rows.iter().for_each(|row| self.advance(row));
        let mut result = StepResult { epoch: plan.epoch, step: plan.step, ..StepResult::default() };
        for row in &rows {
            self.prompt_logprobs(row, &mut result);
            self.give(row, &mut result);
        }
        // Counts may be left out where every row gives one token.
        if self.backwards && result.count.iter().all(|count| *count == 1) {
            result.count.clear();
        }
        result
    }

    fn slot(&self, row: &Row<'_>) -> &Slot {
        self.slots[row.slot as usize].as_ref().expect("a row of an empty slot")
    }

    fn slot_mut(&mut self, row: &Row<'_>) -> &mut Slot {
        self.slots[row.slot as usize].as_mut().expect("a row of an empty slot")
    }

    fn check_reads(&self, row: &Row<'_>) {
        let slot = self.slot(row);
        let adapter = slot.adapter.map_or("", |slot| &self.adapters[slot as usize]);
        assert_eq!(adapter, slot.context.adapter, "{}: an adapter of others", slot.request_id);
        let known = slot.tokens.len();
        assert!(row.start < row.known_end && row.known_end <= known, "a row up to {} of {known} tokens", row.known_end);
        assert!(
            self.stages == 1 || row.known_end <= slot.told.len(),
            "{}: the first stage lacks tokens",
            slot.request_id
        );
        // A state is carried from row to row: it begins at position 0 and goes on where it stopped.
        assert!(
            !self.recurrent || row.start == slot.computed,
            "{}: a state of {} at {}",
            slot.request_id,
            slot.computed,
            row.start
        );
        for (group, table) in slot.tables.iter().enumerate() {
            let seen = self.first_seen(group, row.start) * self.block_size;
            let chain = oracle::kv_chain(&slot.context, &slot.tokens[..row.start]);
            for (position, kv) in chain.into_iter().enumerate().skip(seen) {
                let block = table[position / self.block_size];
                let found = self.blocks[block as usize][position % self.block_size];
                assert_eq!(found, Some(kv ^ group as u64), "{}: position {position} in block {block}", slot.request_id);
            }
        }
    }

    fn write(&mut self, row: &Row<'_>) {
        let slot = self.slot(row);
        let is_last = row.known_end == slot.tokens.len();
        let wanted = match (is_last, slot.pooling, row.draft.is_empty()) {
            (false, None, true) if is_silent(row, slot) => Want::Sample,
            (false, _, true) => Want::None,
            (true, None, true) if slot.candidates > 0 => Want::Candidates,
            (true, Some(_), true) => Want::Pool,
            (true, None, true) => Want::Sample,
            (true, None, false) => Want::Verify,
            _ => panic!("a draft that continues nothing"),
        };
        assert_eq!(row.want, wanted);
        let chain = oracle::kv_chain(&slot.context, &[&slot.tokens[..row.known_end], row.draft].concat());
        for (group, table) in slot.tables.clone().iter().enumerate() {
            for (position, kv) in chain.iter().enumerate().skip(row.start) {
                let block = table[position / self.block_size];
                let holders = self.slots.iter().flatten().map(|slot| self.holds(slot, block)).sum::<usize>();
                assert_eq!(holders, 1, "write to block {block}, which {holders} tables lead to");
                self.blocks[block as usize][position % self.block_size] = Some(kv ^ group as u64);
            }
        }
    }

    /// The row's known positions are computed.
    fn advance(&mut self, row: &Row<'_>) {
        let slot = self.slot_mut(row);
        slot.computed = row.known_end;
        let chain = oracle::kv_chain(&slot.context, &slot.tokens[..row.known_end]);
        slot.hidden.extend(&chain[row.start..]);
    }

    /// How many entries of a sequence that coming rows may look at name the block.
    fn holds(&self, slot: &Slot, block: u32) -> usize {
        let live = |(group, table): (usize, &Vec<u32>)| {
            let first = self.first_seen(group, slot.computed).min(table.len());
            table[first..].iter().filter(|other| **other == block).count()
        };
        slot.tables.iter().enumerate().map(live).sum()
    }

    fn prompt_logprobs(&self, row: &Row<'_>, result: &mut StepResult) {
        let slot = self.slot(row);
        if slot.sampling.prompt_logprobs.is_none() {
            return;
        }
        for position in row.start + 1..(row.known_end + 1).min(slot.num_prompt_tokens) {
            result.prompt_logprobs.push(TokenLogprobs {
                index: position as u32,
                token: slot.tokens[position],
                prompt_of_sequence: Some(row.slot.into()),
                ..TokenLogprobs::default()
            });
        }
    }

    /// What the row wants, into the result and the slot.
    fn give(&mut self, row: &Row<'_>, result: &mut StepResult) {
        if row.want == Want::None {
            return;
        }
        result.slot.push(row.slot);
        let slot = self.slot(row);
        if let Some(tokens) = slot.pooling {
            result.count.push(0);
            result.pooled.push(Pooled {
                sequence: row.slot.into(),
                values: oracle::pooled(&slot.hidden, tokens),
                more: false,
            });
            return;
        }
        if slot.candidates > 0 {
            result.count.push(0);
            result.candidates.push(self.candidates(row));
            return;
        }
        if is_silent(row, slot) {
            result.count.push(0);
            return;
        }
        let before = result.token.len();
        for offset in 0..=row.draft.len() {
            let token = self.sample(row, row.known_end + offset, result);
            if row.draft.get(offset) != Some(&token) {
                break;
            }
        }
        let mut given = result.token[before..].to_vec();
        let (jumps, known_end) = (self.slot(row).jumps && !self.backwards, row.known_end);
        let slot = self.slot_mut(row);
        slot.computed = known_end + given.len() - 1;
        slot.jumped_from = None;
        if jumps && row.draft.is_empty() {
            let first = given[0];
            let forced = std::iter::successors(Some(first), |token| oracle::forced(*token, &slot.sampling)).skip(1);
            given.extend(forced);
            result.token.extend(&given[1..]);
            slot.jumped_from = (given.len() > 1).then_some(known_end + 1);
        }
        slot.tokens.extend(&given);
        result.count.push(given.len() as u32);
    }

    /// What may follow the row.
    fn candidates(&self, row: &Row<'_>) -> Candidates {
        let slot = self.slot(row);
        let (kv, position) = (self.kv_before(row, row.known_end), row.known_end - slot.num_prompt_tokens);
        let found = oracle::candidates(kv, position as u32, &slot.sampling, slot.candidates);
        let (token, logprob) = found.into_iter().unzip();
        Candidates { slot: row.slot, token, logprob }
    }

    /// Keys and values of the position before `end`.
    fn kv_before(&self, row: &Row<'_>, end: usize) -> u64 {
        let block = self.slot(row).tables[0][(end - 1) / self.block_size];
        self.blocks[block as usize][(end - 1) % self.block_size].expect("just written")
    }

    /// The token at position `end`, after those below it.
    fn sample(&self, row: &Row<'_>, end: usize, result: &mut StepResult) -> u32 {
        let slot = self.slot(row);
        let kv = self.kv_before(row, end);
        let before = [&slot.tokens[..row.known_end], row.draft].concat()[end - 1];
        let token = oracle::sample(kv, slot.seed, (end - slot.num_prompt_tokens) as u32, &slot.sampling, before);
        if slot.sampling.logprobs.is_some() {
            let index = result.token.len() as u32;
            result.logprobs.push(TokenLogprobs { index, token, ..TokenLogprobs::default() });
        }
        result.token.push(token);
        token
    }
}

/// Whether a row was planned before the forced tokens were known that came with the token in its position.
fn is_silent(row: &Row<'_>, slot: &Slot) -> bool {
    row.want == Want::Sample && slot.jumped_from == Some(row.known_end)
}

/// A row of a plan.
struct Row<'p> {
    slot: u32,
    start: usize,
    /// Where its known tokens end, and its drafted ones begin.
    known_end: usize,
    want: Want,
    draft: &'p [u32],
}

fn rows(plan: &StepPlan) -> Vec<Row<'_>> {
    let count = plan.slot.len();
    assert!(plan.start.len() == count && plan.num_tokens.len() == count && plan.want.len() == count);
    let (mut drafts, mut lens) = (plan.draft.as_slice(), plan.num_draft.iter());
    let rows = (0..count).map(|row| {
        let want = Want::try_from(plan.want[row]).expect("a want");
        let len = if want == Want::Verify { *lens.next().expect("a draft for each row that verifies") } else { 0 };
        assert_eq!(want == Want::Verify, len > 0, "a draft has tokens");
        let (draft, rest) = drafts.split_at(len as usize);
        drafts = rest;
        let start = plan.start[row] as usize;
        Row { slot: plan.slot[row], start, known_end: start + (plan.num_tokens[row] - len) as usize, want, draft }
    });
    let rows = rows.collect();
    assert!(drafts.is_empty() && lens.next().is_none(), "drafts without rows");
    rows
}
