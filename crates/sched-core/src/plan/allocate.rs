//! KV allocation: blocks taken as sequences grow, and given back behind windows.
//!
//! Groups without a window have all blocks of a prompt from its start on. Groups with one take theirs chunk by chunk,
//! so that a long prompt never holds more than its windows and a chunk or two. A sequence that finds no block preempts
//! the one that is last in the queue's order: a decode any sequence behind it, a chunk any behind it that has no row in
//! this plan yet. So the first sequence can take everything, which admission made sure is enough. A draft takes free
//! blocks only.

use crate::{
    plan::PlanBuilder,
    scheduler::{RunningEntry, Scheduler},
};

impl Scheduler {
    /// A block for the next position of a decode, at the cost of sequences behind it if need be. False: it was
    /// preempted itself.
    pub(crate) fn allocate_decode(&mut self, index: u32, builder: &mut PlanBuilder) -> bool {
        let end = self.sequences[index].scheduled + 1;
        self.drop_unseen(index);
        while !self.allocate(index, end, builder) {
            let Some(last) = self.running.last() else { return false };
            let is_own = last.index == index;
            self.give_way(self.running.len() - 1);
            if is_own {
                return false;
            }
        }
        true
    }

    /// Blocks for a decode's next position and the `drafted` ones behind it, where they are free. False: they are not.
    pub(crate) fn allocate_draft(&mut self, index: u32, drafted: u32, builder: &mut PlanBuilder) -> bool {
        let end = self.sequences[index].scheduled + 1 + drafted;
        if end <= self.sequences[index].allocated {
            return true;
        }
        self.drop_unseen(index);
        self.allocate(index, end, builder)
    }

    /// Blocks for a chunk that ends before `end`. False: not in this plan.
    pub(crate) fn allocate_chunk(&mut self, index: u32, end: u32, builder: &mut PlanBuilder) -> bool {
        if end <= self.sequences[index].allocated {
            return true;
        }
        self.drop_unseen(index);
        while !self.allocate(index, end, builder) {
            let Some(at) = self.last_without_row(index) else { return false };
            self.give_way(at);
        }
        true
    }

    /// Where the last running sequence behind `index` is that this plan has no row for.
    fn last_without_row(&self, index: u32) -> Option<usize> {
        let behind = self.running.iter().rposition(|entry| entry.index == index)? + 1;
        let own = self.sequences[index].request;
        let idle = |entry: &RunningEntry| match self.sequences[entry.index].request {
            // A search gives way as a whole, and not to one of its own beams.
            request if self.is_beam(entry.index) => request != own && self.beams_are_idle(request),
            _ => self.sequences[entry.index].row_in != self.next_step.0,
        };
        self.running[behind..].iter().rposition(idle).map(|at| behind + at)
    }

    /// Takes the blocks that positions below `end` still need, all or none.
    pub(crate) fn allocate(&mut self, index: u32, end: u32, builder: &mut PlanBuilder) -> bool {
        let block_size = self.config.block_size;
        let entries = end.div_ceil(block_size);
        let sequence = &mut self.sequences[index];
        let missing: u32 = sequence.tables.iter().map(|table| entries.saturating_sub(table.len())).sum();
        if missing > self.pool.available() {
            return false;
        }
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            while table.len() < entries {
                let block = self.pool.take().expect("availability was checked");
                table.push(block);
                builder.new_block(sequence.slot, group as u32, block);
            }
        }
        sequence.count_allocated(block_size);
        true
    }

    /// Gives back the blocks that no coming row of the sequence looks at. Those that the prefix cache is to know stay
    /// until it does.
    pub(crate) fn drop_unseen(&mut self, index: u32) {
        let sequence = &mut self.sequences[index];
        let hashed = (self.config.enable_prefix_caching && sequence.cacheable).then_some(sequence.hashed);
        for (group, table) in sequence.tables.iter_mut().enumerate().filter(|(group, _)| self.groups.has_window(*group))
        {
            let first = self.groups.first_seen(group, sequence.scheduled);
            let first = hashed.map_or(first, |hashed| first.min(hashed)).min(table.len());
            while table.dropped() < first {
                self.pool.release(table.drop_oldest());
            }
        }
    }
}
