//! How a waiting sequence starts: what it shares with siblings or finds in the prefix cache, and what it takes.
//!
//! In a group with a window, a cached prefix is usable when the blocks that the next position looks at are there; older
//! ones are not missed. The prefix that is taken is the longest that is usable in every group.

use crate::{
    plan::scratch::Scratch,
    plan::{CopiedBlock, PlanBuilder},
    requests::{
        request::Task,
        sequence::{Sequence, Status},
    },
    scheduler::{RunningEntry, Scheduler},
};
use block_hash::BlockHash;
use ids::BlockId;
use prost::Message;
use proto::NewSequence;

/// Bytes of a number in a message, at most.
const NUMBER_BYTES: usize = 5;
/// More numbers than a new request has beside its lists, tags and lengths among them.
const FEW_NUMBERS: usize = 32;

/// How a waiting sequence would start.
pub(crate) struct Start {
    /// Positions that need not be computed; their blocks are `Scratch::shared`.
    pub computed: u32,
    /// Most of the available blocks that it takes, now and as its prompt goes on: fresh ones, and shared ones that
    /// nobody else holds.
    pub needs: u32,
    /// Shares a sibling's blocks, the last of which it will write to.
    pub fork: bool,
}

impl Scheduler {
    /// Finds what a waiting sequence can share; fills `Scratch::shared`.
    pub(crate) fn find_start(&mut self, index: u32) -> Start {
        self.scratch.shared.resize_with(self.groups.count(), Default::default);
        let sequence = &self.sequences[index];
        let request = &self.requests[sequence.request];
        let wants_logprobs = sequence.wants_prompt_logprobs(&request.sampling);
        let reuses = self.config.enable_prefix_caching && !wants_logprobs && !request.task.needs_whole_prompt();
        if request.n > 1
            && sequence.output.is_empty()
            && !wants_logprobs
            && !self.config.recurrent
            && self.find_fork(index)
        {
            let prompt_len = self.sequences[index].prompt_len;
            return Start { computed: prompt_len - 1, needs: self.groups.count() as u32, fork: true };
        }
        let (known, block_size) = (self.sequences[index].known_len(), self.config.block_size);
        let hits = if reuses { self.find_cached(index) } else { 0 };
        self.share_cached(index, hits);
        let missing = known.div_ceil(block_size) - hits;
        let needs = self.scratch.shared.iter().enumerate().map(|(group, shared)| {
            let reclaimed = shared.live().iter().filter(|block| self.pool.is_unreferenced(**block)).count() as u32;
            // What a window leaves behind is there for what it comes to.
            (missing + reclaimed).min(self.groups.most_held(group, known))
        });
        Start { computed: hits * block_size, needs: needs.sum(), fork: false }
    }

    /// Shares the prompt's blocks of a sibling, if one has computed it and still has them.
    fn find_fork(&mut self, index: u32) -> bool {
        let (step, block_size) = (self.next_step.0, self.config.block_size);
        let sequence = &self.sequences[index];
        let prompt_len = sequence.prompt_len;
        let groups = &self.groups;
        let has_all = |sibling: &Sequence| {
            // Only prompts that an earlier plan completed: copies of a plan run before its rows.
            let complete = sibling.prompt_done_in != 0 && sibling.prompt_done_in < step;
            let tables = sibling.tables.iter().enumerate();
            complete
                && tables.into_iter().all(|(group, table)| table.dropped() <= groups.first_seen(group, prompt_len - 1))
        };
        let siblings =
            self.requests[sequence.request].choices.iter().flatten().map(|sibling| &self.sequences[*sibling]);
        let Some(source) = siblings.into_iter().find(|sibling| has_all(sibling)) else { return false };
        for (group, shared) in self.scratch.shared.iter_mut().enumerate() {
            let first = groups.first_seen(group, prompt_len - 1);
            shared.begin(first);
            for entry in first..prompt_len.div_ceil(block_size) {
                shared.push(source.tables[group].get(entry).expect("a sibling has its whole prompt"));
            }
        }
        true
    }

    /// Leading blocks of a sequence that are usable from the prefix cache.
    fn find_cached(&self, index: u32) -> u32 {
        let sequence = &self.sequences[index];
        let hashes = Hashes { prompt: &self.requests[sequence.request].prompt_hashes, output: &sequence.output_hashes };
        // At least the last token is computed: its logits are what the next token is sampled from.
        let mut hits = ((sequence.known_len() - 1) / self.config.block_size).min(hashes.len());
        for group in (0..self.groups.count()).filter(|group| !self.groups.has_window(*group)) {
            hits = (0..hits).take_while(|entry| self.cached(hashes, *entry, group).is_some()).count() as u32;
        }
        let windows: Vec<usize> = (0..self.groups.count()).filter(|group| self.groups.has_window(*group)).collect();
        loop {
            let usable = windows.iter().fold(hits, |hits, group| self.usable(hashes, *group, hits));
            if usable == hits {
                return hits;
            }
            hits = usable;
        }
    }

    /// The longest prefix of at most `most` blocks whose end a group with a window has.
    fn usable(&self, hashes: Hashes<'_>, group: usize, most: u32) -> u32 {
        let block_size = self.config.block_size;
        let mut hits = most;
        let mut entry = most;
        while entry > self.groups.first_seen(group, hits * block_size) {
            entry -= 1;
            if self.cached(hashes, entry, group).is_none() {
                hits = entry;
            }
        }
        hits
    }

    fn cached(&self, hashes: Hashes<'_>, entry: u32, group: usize) -> Option<BlockId> {
        self.pool.find(&hashes.get(entry).in_group(group))
    }

    /// Fills `Scratch::shared` with a prefix that is usable.
    fn share_cached(&mut self, index: u32, hits: u32) {
        let mut shared = std::mem::take(&mut self.scratch.shared);
        let sequence = &self.sequences[index];
        let hashes = Hashes { prompt: &self.requests[sequence.request].prompt_hashes, output: &sequence.output_hashes };
        for (group, table) in shared.iter_mut().enumerate() {
            let first = self.groups.first_seen(group, hits * self.config.block_size).min(hits);
            table.begin(first);
            for entry in first..hits {
                table.push(self.cached(hashes, entry, group).expect("it was just found"));
            }
        }
        self.scratch.shared = shared;
    }

    /// Gives a waiting sequence its slot, and blocks for the positions below `end`, and tells the workers.
    pub(crate) fn start(&mut self, index: u32, start: &Start, end: u32, builder: &mut PlanBuilder) {
        self.count_start(index, start, builder.now_us);
        let (block_size, known) = (self.config.block_size, self.sequences[index].known_len());
        let Scratch { shared, .. } = &self.scratch;
        let sequence = &mut self.sequences[index];
        self.waiting.remove(sequence.key);
        sequence.status = Status::Running;
        sequence.slot = self.free_slots.pop().expect("a free slot was seen");
        sequence.incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        sequence.cacheable = true;
        (sequence.computed, sequence.scheduled) = (start.computed, start.computed);
        sequence.hashed = if start.fork { 0 } else { start.computed / block_size };
        // All that is shared before anything is taken, lest it be evicted.
        for (table, shared) in sequence.tables.iter_mut().zip(shared) {
            shared.live().iter().for_each(|block| self.pool.hold(*block));
            table.copy_from(shared);
        }
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let positions = if self.groups.has_window(group) { end } else { known };
            while table.len() < positions.div_ceil(block_size) {
                table.push(self.pool.take().expect("availability was checked"));
            }
        }
        sequence.count_allocated(block_size);
        let entry = RunningEntry { key: sequence.key, index, incarnation: sequence.incarnation };
        let at = self.running.partition_point(|other| other.key < entry.key);
        self.running.insert(at, entry);
        self.sequences[index].told = known;
        self.take_adapter_slot(index);
        let added = self.new_sequence(index);
        builder.plan.added.push(added);
        if start.fork {
            self.copy_before_write(index, builder);
        }
    }

    /// First start only: timestamps, cache counters, and `Started` for the request.
    fn count_start(&mut self, index: u32, start: &Start, now_us: u64) {
        let sequence = &mut self.sequences[index];
        if sequence.times.scheduled_us.is_some() {
            return;
        }
        sequence.times.scheduled_us = Some(now_us);
        let request = sequence.request;
        if self.config.enable_prefix_caching && !start.fork {
            self.totals.prefix_cache_queries += u64::from(sequence.prompt_len);
            self.totals.prefix_cache_hits += u64::from(start.computed);
        }
        self.report_started(request, start.computed);
    }

    /// Most bytes that a new request's [`NewSequence`] takes in a plan.
    pub(crate) fn new_request_bytes(&self, index: u32) -> usize {
        let (sequence, groups) = (&self.sequences[index], self.groups.count());
        let request = &self.requests[sequence.request];
        let known = sequence.known_len() as usize;
        let blocks = groups * (known.div_ceil(self.config.block_size as usize) + 1);
        let numbers = known + blocks + 2 * groups + FEW_NUMBERS;
        numbers * NUMBER_BYTES + request.sampling.encoded_len() + request.request_id.len() + request.traceparent.len()
    }

    pub(crate) fn new_sequence(&self, index: u32) -> NewSequence {
        let sequence = &self.sequences[index];
        let request = &self.requests[sequence.request];
        let mut tokens = Vec::with_capacity(sequence.known_len() as usize);
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(&sequence.output);
        let mut sampling = request.sampling.clone();
        if !sequence.wants_prompt_logprobs(&request.sampling) {
            sampling.prompt_logprobs = None;
        }
        let tables = &sequence.tables;
        // One group that begins at position 0 needs no more words.
        let plain = tables.len() == 1 && tables[0].dropped() == 0;
        let (group_len, group_first) = match plain {
            true => Default::default(),
            false => tables.iter().map(|table| (table.live().len() as u32, table.dropped())).unzip(),
        };
        NewSequence {
            slot: sequence.slot.0,
            tokens,
            num_prompt_tokens: sequence.prompt_len,
            blocks: tables.iter().flat_map(|table| table.live()).map(|block| block.0).collect(),
            group_len,
            group_first,
            sampling: Some(sampling),
            seed: sequence.seed,
            request_id: request.request_id.clone(),
            traceparent: request.traceparent.clone(),
            pooling: match request.task {
                Task::Generate => None,
                Task::Pool(pooling) => Some(pooling),
            },
            candidates: request.beams.as_ref().map_or(0, |beams| beams.candidates()),
            adapter: self.adapter_slot(index),
            jump_forward: self.may_jump(&request.sampling),
        }
    }

    /// Copy-on-write: the blocks that the next row writes to become the sequence's own. Only forks and beams need it;
    /// cache hits are whole blocks before the first position that a row writes. Where that position begins a block,
    /// there is none to copy.
    pub(crate) fn copy_before_write(&mut self, index: u32, builder: &mut PlanBuilder) {
        let sequence = &mut self.sequences[index];
        let at = sequence.computed / self.config.block_size;
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let Some(shared) = table.get(at).filter(|block| self.pool.is_shared(*block)) else { continue };
            let own = self.pool.take().expect("availability was checked");
            // The source stays intact until the copy ran: its other holder keeps it, and rows run after copies.
            self.pool.release(shared);
            table.replace(at, own);
            builder.replace(sequence.slot, group as u32, at, CopiedBlock { from: shared, to: own });
        }
    }
}

/// Hashes of a sequence's full blocks.
#[derive(Clone, Copy)]
struct Hashes<'a> {
    prompt: &'a [BlockHash],
    output: &'a [BlockHash],
}

impl Hashes<'_> {
    fn len(self) -> u32 {
        (self.prompt.len() + self.output.len()) as u32
    }

    fn get(self, entry: u32) -> BlockHash {
        let entry = entry as usize;
        self.prompt.get(entry).copied().unwrap_or_else(|| self.output[entry - self.prompt.len()])
    }
}
