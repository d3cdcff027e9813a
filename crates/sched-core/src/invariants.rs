//! What must hold between any two events.

use crate::{
    blocks::table::Table,
    error::Broken,
    flight::Want,
    requests::sequence::{Sequence, Status},
    scheduler::Scheduler,
};

impl Scheduler {
    /// Blocks without a holder that are not free, or held more often than they are counted. Always 0; cheap
    /// enough for a metric.
    pub fn lost_blocks(&self) -> u64 {
        let live = self.running.iter().filter_map(|entry| self.sequences.get(entry.index));
        let held = live.flat_map(|sequence| &sequence.tables).map(|table| table.live().len() as u64);
        let held: u64 = held.sum();
        self.pool.references().abs_diff(held)
    }

    /// Checks everything that must hold between events. Slow (it visits every block); for tests and diagnosis.
    pub fn check_invariants(&self) -> Result<(), Broken> {
        self.check_blocks()?;
        self.check_sequences()?;
        self.check_flights()?;
        self.check_slots()?;
        self.check_adapters()?;
        self.check_counts()
    }

    fn check_blocks(&self) -> Result<(), Broken> {
        let mut held = vec![0u32; self.pool.num_blocks() as usize];
        for (_, sequence) in self.sequences.iter() {
            for block in sequence.tables.iter().flat_map(Table::live) {
                held[block.index()] += 1;
            }
        }
        self.pool.check(&held).map_err(Broken)?;
        ensure(self.lost_blocks() == 0, || format!("{} blocks lost", self.lost_blocks()))
    }

    fn check_sequences(&self) -> Result<(), Broken> {
        for (index, sequence) in self.sequences.iter() {
            let id = sequence.id;
            let running = sequence.status == Status::Running;
            ensure(running == (sequence.incarnation != 0), || format!("sequence {id}: {:?}", sequence.status))?;
            ensure(running || sequence.tables.iter().all(|table| table.len() == 0), || {
                format!("sequence {id} waits and holds blocks")
            })?;
            ensure(sequence.computed <= sequence.scheduled, || format!("sequence {id} confirms more than is planned"))?;
            ensure(sequence.scheduled <= sequence.planned_len(), || format!("sequence {id} computes ahead of itself"))?;
            let hashed = sequence.hashed * self.config.block_size;
            ensure(hashed <= sequence.computed, || format!("sequence {id} hashed {hashed} positions, not confirmed"))?;
            ensure(sequence.planned_len() <= sequence.limit, || format!("sequence {id} is planned past its limit"))?;
            self.check_tables(sequence)?;
            let request = self.requests.get(sequence.request);
            let listed = request.and_then(|request| request.choices.get(sequence.choice as usize).copied().flatten());
            ensure(listed == Some(index), || format!("sequence {id} is not among its request's choices"))?;
        }
        Ok(())
    }

    /// What rows in flight will give is what their sequences expect; without any, all that is planned is confirmed.
    fn check_flights(&self) -> Result<(), Broken> {
        for (index, sequence) in self.sequences.iter().filter(|(_, sequence)| sequence.status == Status::Running) {
            let rows = self.flights.iter().flat_map(|flight| &flight.rows);
            let own = rows.filter(|row| row.index == index && row.incarnation == sequence.incarnation);
            let (mut rows, mut wanting, mut expected) = (0, 0, 0);
            for row in own {
                rows += 1;
                wanting += u32::from(row.want != Want::None);
                expected += row.want.most();
            }
            let id = sequence.id;
            ensure(expected == sequence.in_flight + sequence.silent, || {
                format!("sequence {id} expects {} tokens", sequence.in_flight)
            })?;
            ensure(rows > 0 || sequence.computed == sequence.scheduled, || format!("sequence {id} waits for no row"))?;
            ensure(wanting <= 1 || !sequence.in_order, || format!("sequence {id} is not in order"))?;
        }
        Ok(())
    }

    fn check_tables(&self, sequence: &Sequence) -> Result<(), Broken> {
        let (id, block_size) = (sequence.id, self.config.block_size);
        let entries = sequence.tables.iter().map(Table::len).min().unwrap_or(0);
        ensure(sequence.allocated == entries * block_size, || {
            format!("sequence {id} has room for {}", sequence.allocated)
        })?;
        ensure(sequence.scheduled <= sequence.allocated, || format!("sequence {id} writes past its blocks"))?;
        let written = sequence.scheduled / block_size;
        for (group, table) in sequence.tables.iter().enumerate() {
            ensure(table.get(written).is_none_or(|block| !self.pool.is_shared(block)), || {
                format!("sequence {id} is about to write to a shared block")
            })?;
            let first = self.groups.first_seen(group, sequence.scheduled);
            ensure(table.dropped() <= first, || format!("sequence {id} dropped what group {group} looks at"))?;
            let most = self.groups.most_held(group, sequence.limit.max(sequence.scheduled));
            let held = table.live().len();
            ensure(held as u32 <= most, || format!("sequence {id} holds {held} blocks in group {group}, not {most}"))?;
        }
        Ok(())
    }

    fn check_slots(&self) -> Result<(), Broken> {
        let mut taken: Vec<u32> = self.free_slots.iter().map(|slot| slot.0).collect();
        let running = self.sequences.iter().filter(|(_, sequence)| sequence.status == Status::Running);
        taken.extend(running.map(|(_, sequence)| sequence.slot.0));
        taken.extend(self.spare_slots());
        taken.sort_unstable();
        let expected = if self.epoch.is_some() { self.config.max_num_seqs } else { 0 };
        ensure(taken.iter().copied().eq(0..expected), || format!("slots {taken:?} instead of {expected}"))
    }

    /// What runs with an adapter has it on the workers.
    fn check_adapters(&self) -> Result<(), Broken> {
        for (index, sequence) in self.sequences.iter().filter(|(_, sequence)| sequence.status == Status::Running) {
            let named = !self.requests[sequence.request].adapter.is_empty();
            let has_slot = self.adapter_slot(index).is_some() && self.is_adapter_placed(index);
            ensure(named == has_slot, || format!("sequence {} runs without its adapter", sequence.id))?;
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), Broken> {
        let count = |place| self.sequences.iter().filter(|(_, sequence)| sequence.status == place).count() as u32;
        let stats = self.stats();
        let counted = (stats.running, stats.waiting_for_capacity, stats.waiting_deferred);
        let real = (count(Status::Running), count(Status::Waiting), count(Status::Deferred));
        ensure(counted == real, || format!("counted {counted:?}, there are {real:?}"))?;
        let in_order = self.running.windows(2).all(|pair| pair[0].key < pair[1].key);
        ensure(in_order, || "running is out of order".into())?;
        let queued: Vec<_> = self.requests.iter().filter(|(_, request)| !request.started).collect();
        let tokens: u64 = queued.iter().map(|(_, request)| request.prompt.len() as u64).sum();
        let counted = (stats.queued_requests, stats.queued_tokens);
        ensure(counted == (queued.len() as u32, tokens), || format!("queue counts {counted:?} instead of {tokens}"))
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(Broken(message())) }
}
