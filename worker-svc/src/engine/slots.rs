//! The state of running sequences between steps, by slot: tokens, block tables, sampling parameters.

use models::pooling::PoolingMethod;
use proto::{NewSequence, StepPlan};
use sampling::{History, SamplingPlan};
use service_kit::trace;
use tracing::{Span, debug, info_span};

use super::pooling::PartialOutput;
use crate::{
    error::StepError,
    guide::{Grammars, Guide},
};

/// One sequence.
pub(crate) struct Slot {
    pub history: History,
    pub sampling: SamplingPlan,
    /// Physical blocks in order of positions, a table for each KV cache group.
    pub tables: Vec<Vec<u32>>,
    /// Log-probabilities wanted for prompt positions.
    pub prompt_logprobs: Option<usize>,
    /// What its tokens are held to.
    pub guide: Option<Box<Guide>>,
    /// Most candidates that a row gives, if the sequence is a beam; else 0.
    pub candidates: usize,
    /// The device's slot of its adapter.
    pub adapter: Option<u32>,
    /// What there is of its output, if it is pooled.
    pub pooled: Option<PartialOutput>,
    /// The device samples its tokens.
    pub on_device: bool,
    /// Tokens that are being sampled, not in the history yet.
    pub pending: usize,
    /// Rows under way whose token came already, with the one before it.
    pub silent: usize,
    /// Distinguishes the sequences that use this slot one after the other.
    pub incarnation: u64,
    /// Open as long as the sequence is in the slot.
    _span: Span,
}

impl Slot {
    /// Tokens of the sequence, with those that are being sampled.
    pub(crate) fn len(&self) -> usize {
        self.history.tokens().len() + self.pending
    }
}

/// The table that plans refer to by slot number.
#[derive(Default)]
pub(crate) struct Slots {
    table: Vec<Option<Slot>>,
    num_blocks: u32,
    /// KV cache groups: block tables of a sequence.
    groups: usize,
    end_tokens: Vec<u32>,
    grammars: Option<Grammars>,
    /// How sequences are pooled, on a worker whose model pools.
    pooling: Option<PoolingMethod>,
    added: u64,
}

impl Slots {
    /// An empty table of a new epoch.
    pub(crate) fn new(max_num_seqs: u32, num_blocks: u32, groups: usize, end_tokens: Vec<u32>) -> Self {
        Self {
            table: (0..max_num_seqs).map(|_| None).collect(),
            num_blocks,
            groups,
            end_tokens,
            grammars: None,
            pooling: None,
            added: 0,
        }
    }

    /// Sequences with a constraint are held to it by these.
    pub(crate) fn guided_by(self, grammars: Grammars) -> Self {
        Self { grammars: Some(grammars), ..self }
    }

    /// Sequences are pooled like this, unless they say otherwise.
    pub(crate) fn pooled_by(self, pooling: Option<PoolingMethod>) -> Self {
        Self { pooling, ..self }
    }

    /// The number of slots.
    pub(crate) fn count(&self) -> usize {
        self.table.len()
    }

    /// The sequence in a slot.
    pub(crate) fn get(&self, slot: u32) -> Option<&Slot> {
        self.table.get(slot as usize)?.as_ref()
    }

    /// The sequence in a slot, to append to.
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        self.table.get_mut(slot as usize)?.as_mut()
    }

    /// Applies what a plan changes before its rows run: removed, added, continued, new blocks. Copies and replacements
    /// follow (see [`Self::replace`]).
    pub(crate) fn apply(&mut self, plan: &mut StepPlan) -> Result<(), StepError> {
        let step = plan.step;
        for slot in &plan.removed {
            let place = self.table.get_mut(*slot as usize).ok_or_else(|| no_slot(step, *slot))?;
            *place = None;
        }
        for sequence in std::mem::take(&mut plan.added) {
            self.add(step, sequence)?;
        }
        if !plan.continued.is_empty() {
            self.continue_beams(plan)?;
        }
        if plan.new_block.len() != plan.new_block_slot.len() {
            return Err(malformed(step, "new_block and new_block_slot differ in length"));
        }
        self.check_groups(step, &plan.new_block_group, plan.new_block.len())?;
        for (at, (slot, block)) in plan.new_block_slot.iter().zip(&plan.new_block).enumerate() {
            self.check_blocks(step, &[*block])?;
            let held = self.get_mut(*slot).ok_or_else(|| no_slot(step, *slot))?;
            held.tables[group(&plan.new_block_group, at)].push(*block);
        }
        self.check_blocks(step, &plan.copy_from)?;
        self.check_blocks(step, &plan.copy_to)?;
        if plan.copy_from.len() != plan.copy_to.len() {
            return Err(malformed(step, "copy_from and copy_to differ in length"));
        }
        Ok(())
    }

    /// Replaces block-table entries, after the copies.
    pub(crate) fn replace(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let step = plan.step;
        if plan.replace_slot.len() != plan.replace_index.len() || plan.replace_slot.len() != plan.replace_block.len() {
            return Err(malformed(step, "replace_* differ in length"));
        }
        self.check_blocks(step, &plan.replace_block)?;
        self.check_groups(step, &plan.replace_group, plan.replace_block.len())?;
        for (at, (slot, block)) in plan.replace_slot.iter().zip(&plan.replace_block).enumerate() {
            let held = self.get_mut(*slot).ok_or_else(|| no_slot(step, *slot))?;
            let entry = held.tables[group(&plan.replace_group, at)].get_mut(plan.replace_index[at] as usize);
            *entry.ok_or_else(|| malformed(step, "replace_index is outside the block table"))? = *block;
        }
        Ok(())
    }

    /// Appends what the last stage sampled, in a stage that does not sample. Plans do not tell beams' tokens so.
    pub(crate) fn append_told(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        if plan.told_slot.len() != plan.told_token.len() {
            return Err(malformed(plan.step, "told_slot and told_token differ in length"));
        }
        for (slot, token) in plan.told_slot.iter().zip(&plan.told_token) {
            let held = self.get_mut(*slot).ok_or_else(|| no_slot(plan.step, *slot))?;
            held.history.push(*token);
        }
        Ok(())
    }

    /// Beams take over what others had before the plan, and a token each.
    fn continue_beams(&mut self, plan: &StepPlan) -> Result<(), StepError> {
        let step = plan.step;
        if (plan.continued_from.len(), plan.continued_token.len()) != (plan.continued.len(), plan.continued.len()) {
            return Err(malformed(step, "continued, continued_from and continued_token differ in length"));
        }
        let mut taken = Vec::new();
        for (to, from) in plan.continued.iter().zip(&plan.continued_from).filter(|(to, from)| to != from) {
            let from = self.get(*from).ok_or_else(|| no_slot(step, *from))?;
            taken.push((*to, from.history.clone(), from.tables.clone()));
        }
        for (to, history, tables) in taken {
            let slot = self.get_mut(to).ok_or_else(|| no_slot(step, to))?;
            (slot.history, slot.tables) = (history, tables);
        }
        for (to, token) in plan.continued.iter().zip(&plan.continued_token) {
            let slot = self.get_mut(*to).ok_or_else(|| no_slot(step, *to))?;
            if slot.candidates == 0 || slot.pending > 0 {
                return Err(malformed(step, &format!("slot {to} is no beam that could go on")));
            }
            slot.history.push(*token);
        }
        Ok(())
    }

    fn add(&mut self, step: u64, new: NewSequence) -> Result<(), StepError> {
        let pooled = match (&new.pooling, self.pooling) {
            (None, None) => None,
            (Some(asked), Some(method)) => Some(PartialOutput::new(method, asked)),
            (Some(_), None) => return Err(malformed(step, "this worker cannot pool a sequence")),
            (None, Some(_)) => return Err(malformed(step, "this worker's model cannot continue a sequence")),
        };
        let tables = self.tables(step, &new)?;
        let span = info_span!("sequence", request_id = new.request_id, slot = new.slot);
        trace::set_parent(&span, &new.traceparent);
        debug!(request_id = new.request_id, slot = new.slot, tokens = new.tokens.len(), "sequence added");
        let mut wanted = new.sampling.unwrap_or_default();
        let output = new.tokens.get(new.num_prompt_tokens as usize..).unwrap_or_default();
        let guide = self.grammars.as_ref().and_then(|grammars| grammars.guide(&mut wanted, output));
        let guide = guide.map(|guide| Box::new(if new.jump_forward { guide.jumping() } else { guide }));
        let prompt_logprobs = wanted.prompt_logprobs.map(|top| usize::try_from(top).unwrap_or(usize::MAX));
        let sampling = SamplingPlan::compile(&wanted, new.seed, &self.end_tokens);
        let history = History::new(new.tokens, new.num_prompt_tokens as usize, &sampling);
        let place = self.table.get_mut(new.slot as usize).ok_or_else(|| no_slot(step, new.slot))?;
        if place.is_some() {
            return Err(malformed(step, &format!("slot {} is taken", new.slot)));
        }
        self.added += 1;
        *place = Some(Slot {
            history,
            sampling,
            tables,
            prompt_logprobs,
            guide,
            candidates: new.candidates as usize,
            adapter: new.adapter,
            pooled,
            on_device: false,
            pending: 0,
            silent: 0,
            incarnation: self.added,
            _span: span,
        });
        Ok(())
    }

    /// A new sequence's block tables, one a group.
    fn tables(&self, step: u64, new: &NewSequence) -> Result<Vec<Vec<u32>>, StepError> {
        self.check_blocks(step, &new.blocks)?;
        if self.groups == 1 && new.group_len.is_empty() && new.group_first.is_empty() {
            return Ok(vec![new.blocks.clone()]);
        }
        let total: u64 = new.group_len.iter().map(|len| u64::from(*len)).sum();
        let most_first = new.group_first.iter().max().copied().unwrap_or(0);
        if (new.group_len.len(), new.group_first.len()) != (self.groups, self.groups)
            || total != new.blocks.len() as u64
            || most_first > new.tokens.len() as u32
        {
            return Err(malformed(step, "blocks, group_len and group_first do not make a table for each group"));
        }
        let mut left = new.blocks.as_slice();
        let tables = new.group_len.iter().zip(&new.group_first).map(|(len, first)| {
            let (own, others) = left.split_at(*len as usize);
            left = others;
            // Attention never reads behind its window, so any block id will do there.
            std::iter::repeat_n(0, *first as usize).chain(own.iter().copied()).collect()
        });
        Ok(tables.collect())
    }

    /// A list of groups has an entry for each of `count` blocks; with a single group it may be empty.
    fn check_groups(&self, step: u64, named: &[u32], count: usize) -> Result<(), StepError> {
        let absent = named.is_empty() && self.groups == 1;
        let whole = named.len() == count && named.iter().all(|group| (*group as usize) < self.groups);
        if absent || whole { Ok(()) } else { Err(malformed(step, "blocks of groups that the model does not have")) }
    }

    fn check_blocks(&self, step: u64, blocks: &[u32]) -> Result<(), StepError> {
        match blocks.iter().find(|block| **block >= self.num_blocks) {
            None => Ok(()),
            Some(block) => Err(malformed(step, &format!("block {block} of {}", self.num_blocks))),
        }
    }
}

/// The cache group of a plan's block; plans leave it out where there is a single group.
fn group(named: &[u32], at: usize) -> usize {
    named.get(at).map_or(0, |group| *group as usize)
}

pub(crate) fn malformed(step: u64, reason: &str) -> StepError {
    StepError::Malformed { step, reason: reason.into() }
}

pub(crate) fn no_slot(step: u64, slot: u32) -> StepError {
    malformed(step, &format!("there is no sequence in slot {slot}"))
}
