//! Plans of beam searches: how beams take over each other's tokens, and which blocks they share.
//!
//! A beam that goes on in another's record takes over its table, so that both hold the same blocks; only the block that
//! the next row writes to becomes each one's own, by copy (copy-on-write, but for the last holder). A beam that goes on
//! in its own record keeps its table. Nothing else of a search costs memory: the beams' common beginning is there once.
//!
//! A search that gives way keeps its beams' tokens. When there is room for all of them, each computes its own again.

use crate::{
    beam::search::Move,
    plan::{PlanBuilder, RowTokens, start::Start},
    requests::sequence::{Sequence, Status},
    scheduler::{RunningEntry, Scheduler},
};

/// What a beam takes over from another, as it was before anything moved.
struct Taken {
    output: Vec<u32>,
    output_hashes: Vec<block_hash::BlockHash>,
    tables: Vec<crate::blocks::table::Table>,
}

impl Scheduler {
    /// The next rows of the search that a running beam belongs to, once all its candidates were there.
    pub(crate) fn plan_beams(&mut self, index: u32, builder: &mut PlanBuilder) {
        let request = self.sequences[index].request;
        let Some(beams) = &mut self.requests[request].beams else { return };
        let Some(moves) = beams.next.take() else { return };
        self.release_dropped(request, &moves);
        if !self.make_room(request, &moves) {
            self.requests[request].beams.as_mut().expect("a search").next = Some(moves);
            self.preempt_beams(request);
            return;
        }
        self.take_over(request, &moves);
        for one in &moves {
            let index = self.record(request, one.record);
            self.tell_continued(index, one, builder);
            self.copy_before_write(index, builder);
            let end = self.sequences[index].scheduled + 1;
            let allocated = self.allocate(index, end, builder);
            debug_assert!(allocated, "room was made");
            self.push_row(builder, index, RowTokens { known: 1, drafted: 0 });
        }
    }

    /// The sequence of a search's record.
    fn record(&self, request: u32, record: u32) -> u32 {
        self.requests[request].choices[record as usize].expect("choices of a search end together")
    }

    /// Gives back the blocks of beams that nobody continues, and those behind windows.
    fn release_dropped(&mut self, request: u32, moves: &[Move]) {
        for record in 0..self.requests[request].choices.len() as u32 {
            let index = self.record(request, record);
            if moves.iter().any(|one| one.from == record) {
                self.drop_unseen(index);
                continue;
            }
            for table in &mut self.sequences[index].tables {
                while let Some(block) = table.pop() {
                    self.pool.release(block);
                }
                table.begin(0);
            }
        }
    }

    /// Blocks that the beams' next positions take, at the cost of sequences behind them if need be. False: there are
    /// too few.
    fn make_room(&mut self, request: u32, moves: &[Move]) -> bool {
        let needs: u32 = moves.iter().map(|one| self.blocks_to_continue(request, one)).sum();
        while needs > self.pool.available() {
            let Some(last) = self.running.last() else { return false };
            if self.sequences[last.index].request == request {
                return false;
            }
            self.give_way(self.running.len() - 1);
        }
        true
    }

    /// A beam in its own record writes to its own block, a new one to a copy. Where the next position begins a block,
    /// each takes one.
    fn blocks_to_continue(&self, request: u32, one: &Move) -> u32 {
        let from = &self.sequences[self.record(request, one.from)];
        let entry = from.scheduled / self.config.block_size;
        from.tables.iter().filter(|table| !one.stays() || table.len() <= entry).count() as u32
    }

    /// Moves tokens and tables to the records of the next beams. Records that none of them has are put aside.
    fn take_over(&mut self, request: u32, moves: &[Move]) {
        let taken: Vec<Option<Taken>> = moves.iter().map(|one| self.taken(request, one)).collect();
        for (one, taken) in moves.iter().zip(taken) {
            let (index, from) = (self.record(request, one.record), self.record(request, one.from));
            if let Some(Taken { output, output_hashes, tables }) = taken {
                for block in tables.iter().flat_map(|table| table.live()) {
                    self.pool.hold(*block);
                }
                let [sequence, from] = self.sequences.both(index, from);
                (sequence.output, sequence.output_hashes, sequence.tables) = (output, output_hashes, tables);
                follow(sequence, from);
                self.begin_beam(index);
            }
            self.sequences[index].output.push(one.token);
        }
        self.put_aside_dropped(request, moves);
    }

    fn taken(&self, request: u32, one: &Move) -> Option<Taken> {
        let Sequence { output, output_hashes, tables, .. } = &self.sequences[self.record(request, one.from)];
        (!one.stays()).then(|| Taken {
            output: output.clone(),
            output_hashes: output_hashes.clone(),
            tables: tables.clone(),
        })
    }

    /// A beam in a record that was not in use gets one of the search's slots.
    fn begin_beam(&mut self, index: u32) {
        if self.sequences[index].status == Status::Running {
            return;
        }
        let incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        self.deferred -= 1;
        let sequence = &mut self.sequences[index];
        let beams = self.requests[sequence.request].beams.as_mut().expect("a search");
        sequence.slot = beams.spare_slots.pop().expect("a slot for each record");
        sequence.status = Status::Running;
        sequence.incarnation = incarnation;
        let entry = RunningEntry { key: sequence.key, index, incarnation };
        let at = self.running.partition_point(|other| other.key < entry.key);
        self.running.insert(at, entry);
    }

    /// Takes records without a beam off the workers; their slots stay with the search.
    fn put_aside_dropped(&mut self, request: u32, moves: &[Move]) {
        for record in 0..self.requests[request].choices.len() as u32 {
            let index = self.record(request, record);
            let goes_on = moves.iter().any(|one| one.record == record);
            if goes_on || self.sequences[index].status != Status::Running {
                continue;
            }
            let sequence = &mut self.sequences[index];
            let slot = sequence.slot;
            sequence.forget_workers();
            sequence.output.clear();
            sequence.output_hashes.clear();
            self.removed.push(slot.0);
            self.requests[request].beams.as_mut().expect("a search").spare_slots.push(slot);
            self.running.retain(|entry| entry.index != index);
            self.defer(index);
        }
    }

    /// Tells the workers of a beam: a new one with all it has, others by what they take over.
    fn tell_continued(&mut self, index: u32, one: &Move, builder: &mut PlanBuilder) {
        let sequence = &self.sequences[index];
        if sequence.row_in == 0 {
            let added = self.new_sequence(index);
            builder.plan.added.push(added);
            return;
        }
        let from = self.record(sequence.request, one.from);
        builder.plan.continued.push(sequence.slot.0);
        builder.plan.continued_from.push(self.sequences[from].slot.0);
        builder.plan.continued_token.push(one.token);
    }

    /// Takes the running sequence at `at` back to the queue, with all beams of its search.
    pub(crate) fn give_way(&mut self, at: usize) {
        let index = self.running[at].index;
        if self.is_beam(index) {
            self.preempt_beams(self.sequences[index].request);
        } else {
            self.running.remove(at);
            self.preempt(index);
        }
    }

    /// All beams of a search go back to the queue. None may have a row in the plan that is being made.
    fn preempt_beams(&mut self, request: u32) {
        let beams = self.requests[request].beams.as_mut().expect("a search");
        beams.forget_arrived();
        self.free_slots.append(&mut beams.spare_slots);
        let moves = beams.next.take();
        let sequences = &self.sequences;
        self.running.retain(|entry| sequences[entry.index].request != request);
        let outputs: Vec<_> = moves.iter().flatten().map(|one| self.taken(request, one)).collect();
        for record in 0..self.requests[request].choices.len() as u32 {
            let index = self.record(request, record);
            if self.sequences[index].status == Status::Running {
                self.free_worker_state(index);
                self.sequences[index].times.preemptions += 1;
                self.defer(index);
            }
        }
        for (one, taken) in moves.iter().flatten().zip(outputs) {
            let index = self.record(request, one.record);
            if let Some(Taken { output, output_hashes, .. }) = taken {
                let [sequence, from] = self.sequences.both(index, self.record(request, one.from));
                (sequence.output, sequence.output_hashes) = (output, output_hashes);
                sequence.times = from.times;
            }
            self.sequences[index].output.push(one.token);
        }
        self.totals.preemptions += 1;
        let records: Vec<u32> = self.requests[request].beams.iter().flat_map(|beams| beams.search.records()).collect();
        for record in records {
            self.enqueue(self.record(request, record));
        }
    }

    /// Starts all beams of a search that waits, if there is room for all of them: with a row, or (one that the step has
    /// no tokens left for) to compute its first chunk in a later step.
    pub(crate) fn try_start_beams(&mut self, request: u32, builder: &mut PlanBuilder) -> bool {
        let beams = self.requests[request].beams.as_ref().expect("a search");
        let (width, records) = (beams.search.rules().width, beams.search.records().collect::<Vec<u32>>());
        if self.free_slots.len() < width as usize {
            return false;
        }
        let indices: Vec<u32> = records.into_iter().map(|record| self.record(request, record)).collect();
        let bytes: usize = indices.iter().map(|index| self.new_request_bytes(*index)).sum();
        if bytes > builder.new_request_bytes && !builder.plan.added.is_empty() {
            return false;
        }
        let starts: Vec<Start> = indices.iter().map(|index| self.find_start(*index)).collect();
        let needs: u32 = starts.iter().map(|start| start.needs).sum();
        let reserve = if self.running.is_empty() { 0 } else { self.watermark_blocks() };
        if needs + reserve > self.pool.available() {
            return false;
        }
        if self.chunk(self.sequences[indices[0]].known_len() - starts[0].computed, builder) == 0 {
            return false;
        }
        for index in &indices {
            // Blocks that the one before took may have been cached ones; what is found is found anew.
            let start = self.find_start(*index);
            let chunk = self.chunk(self.sequences[*index].known_len() - start.computed, builder);
            self.start(*index, &start, start.computed + chunk, builder);
            if chunk > 0 {
                self.push_row(builder, *index, RowTokens { known: chunk, drafted: 0 });
            }
        }
        let spare = self.free_slots.split_off(self.free_slots.len() - (width as usize - indices.len()));
        self.requests[request].beams.as_mut().expect("a search").spare_slots = spare;
        builder.new_request_bytes = builder.new_request_bytes.saturating_sub(bytes);
        true
    }

    /// Whether no beam of the search has a row in the plan that is being made.
    pub(crate) fn beams_are_idle(&self, request: u32) -> bool {
        let records = self.requests[request].choices.iter().flatten();
        records.into_iter().all(|index| self.sequences[*index].row_in != self.next_step.0)
    }
}

/// What is computed of a beam that takes over another's tables.
fn follow(sequence: &mut Sequence, from: &Sequence) {
    sequence.computed = from.computed;
    sequence.scheduled = from.scheduled;
    sequence.allocated = from.allocated;
    sequence.hashed = from.hashed;
    sequence.cacheable = from.cacheable;
    sequence.prompt_done_in = from.prompt_done_in;
    if sequence.times.scheduled_us.is_none() {
        sequence.times = from.times;
    }
}
