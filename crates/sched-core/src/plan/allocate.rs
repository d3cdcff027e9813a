//! Room for the positions that rows compute: blocks taken as sequences grow, and given back behind windows.
//!
//! Groups without a window have all blocks of a prompt from its start on. Groups with one take theirs chunk by chunk, so that a long
//! prompt never holds more than its windows and a chunk or two. Whoever finds no block takes from the sequence of the worst rank: a
//! decode from anybody behind it, a chunk from anybody behind it that has no row in this plan yet. The best-ranked sequence can so take
//! everything, which admission made sure is enough.

use crate::{
    plan::PlanBuilder,
    scheduler::{RunningEntry, Scheduler},
};

impl Scheduler {
    /// Room for one more position of a decode, at the cost of worse-ranked sequences if need be. False: it was preempted itself.
    pub(crate) fn allocate_decode(&mut self, index: u32, builder: &mut PlanBuilder) -> bool {
        let end = self.sequences[index].computed + 1;
        self.drop_unseen(index);
        while !self.allocate(index, end, builder) {
            let Some(victim) = self.running.pop() else { return false };
            self.preempt(victim.index);
            if victim.index == index {
                return false;
            }
        }
        true
    }

    /// Room for a chunk that ends before `end`. False: not in this plan.
    pub(crate) fn allocate_chunk(&mut self, index: u32, end: u32, builder: &mut PlanBuilder) -> bool {
        if end <= self.sequences[index].allocated {
            return true;
        }
        self.drop_unseen(index);
        while !self.allocate(index, end, builder) {
            let Some(at) = self.worst_without_row(index) else { return false };
            let victim = self.running.remove(at);
            self.preempt(victim.index);
        }
        true
    }

    /// The place of the worst-ranked running sequence behind `index` that this plan has no row for.
    fn worst_without_row(&self, index: u32) -> Option<usize> {
        let behind = self.running.iter().rposition(|entry| entry.index == index)? + 1;
        let idle = |entry: &RunningEntry| self.sequences[entry.index].row_in != self.next_step.0;
        self.running[behind..].iter().rposition(idle).map(|at| behind + at)
    }

    /// Takes the blocks that positions below `end` still need, all or none.
    fn allocate(&mut self, index: u32, end: u32, builder: &mut PlanBuilder) -> bool {
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

    /// Gives back the blocks that no coming row of the sequence looks at. Those that the prefix cache is to know stay until it does.
    fn drop_unseen(&mut self, index: u32) {
        let sequence = &mut self.sequences[index];
        let hashed = (self.config.enable_prefix_caching && sequence.cacheable).then_some(sequence.hashed);
        for (group, table) in sequence.tables.iter_mut().enumerate().filter(|(group, _)| self.groups.has_window(*group))
        {
            let first = self.groups.first_seen(group, sequence.computed);
            let first = hashed.map_or(first, |hashed| first.min(hashed)).min(table.len());
            while table.dropped() < first {
                self.pool.release(table.drop_oldest());
            }
        }
    }
}
