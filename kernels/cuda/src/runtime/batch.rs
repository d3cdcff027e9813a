//! The step's batch on the device: sent by one copy a step, and put to addresses that stay (see
//! kernels/cuda/README.md).

use cudarc::driver::sys::CUdeviceptr;

use crate::jit::layouts::twin;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::shared_prefix::SharedPrefix;
use crate::runtime::upload::Upload;
use kernels::ops::{self, KvShape};

/// Rows a sequence, on average, up to which [`Batch::alone`] pays.
const ALONE: usize = 2;
/// Row of no sequence.
const NOBODY: u32 = u32::MAX;
/// Where `counts` says how many sequences share a prefix and of how many tokens at most, and how many blocks of each
/// table, as far as there is room before the tokens.
const PREFIX: usize = 4;
const SHARED: usize = 8;
const TOKENS: usize = 64;

/// `struct Batch` of kernels/cuda/csrc/include/quire.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pointers {
    pub(crate) counts: CUdeviceptr,
    pub(crate) tokens: CUdeviceptr,
    pub(crate) positions: CUdeviceptr,
    row_sequence: CUdeviceptr,
    first_row: CUdeviceptr,
    num_rows: CUdeviceptr,
    start: CUdeviceptr,
    pub(crate) first_block: CUdeviceptr,
    blocks: CUdeviceptr,
    slots: CUdeviceptr,
    members: CUdeviceptr,
    member: CUdeviceptr,
    shared: CUdeviceptr,
}

twin!(Pointers = "Batch" {
    counts, tokens, positions, row_sequence, first_row, num_rows, start, first_block, blocks, slots,
    members, member, shared,
});

/// Numbers that a list that grows to `need` has room for.
fn room_for(need: usize) -> usize {
    need.next_power_of_two().max(64)
}

impl Pointers {
    /// Of a batch that begins at `base`, with its first tables.
    fn new(base: CUdeviceptr, layout: &Layout) -> Self {
        let at = |offset: usize| base + (offset * size_of::<u32>()) as u64;
        Self {
            counts: base,
            tokens: at(layout.tokens),
            positions: at(layout.positions),
            row_sequence: at(layout.row_sequence),
            first_row: at(layout.first_row),
            num_rows: at(layout.num_rows),
            start: at(layout.start),
            first_block: at(layout.first_block),
            blocks: at(layout.blocks),
            slots: at(layout.slots),
            members: at(layout.members),
            member: at(layout.member),
            shared: at(SHARED),
        }
    }
}

/// How much there is room for.
#[derive(Clone, Copy, Default)]
struct Capacity {
    rows: usize,
    sequences: usize,
    /// Tables of a sequence.
    tables: usize,
    blocks: usize,
}

/// Sequences as attention's kernels are told of them.
#[derive(Clone, Copy)]
pub(crate) struct Sequences {
    pub(crate) pointers: Pointers,
    pub(crate) count: usize,
    /// The kernel before has written this: what reads it may not start early.
    pub(crate) is_new: bool,
}

/// How many rows a sequence has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rows {
    One,
    Several,
}

/// The batch of the step under way.
#[derive(Default)]
pub(crate) struct Batch {
    upload: Upload,
    /// Where the step's batch was sent to, and how many numbers it has.
    sent: CUdeviceptr,
    len: usize,
    /// Where it is put.
    memory: Option<Memory>,
    selection: Upload,
    /// What `selection` holds in this step, and where.
    selected: Vec<u32>,
    selected_at: CUdeviceptr,
    /// Rows of sequences where some are left out, what they are in this step, and where.
    kept_rows: Upload,
    kept: Vec<usize>,
    kept_at: CUdeviceptr,
    /// Rows as sequences of their own, and for how many there is room.
    alone: Option<Memory>,
    alone_rows: usize,
    capacity: Capacity,
    /// Where it is put; `first_block` is the list of the table turned to.
    pub(crate) pointers: Pointers,
    /// Rows of the step, padding included; and without.
    rows: usize,
    own_rows: usize,
    /// Block tables of a sequence, and which of them kernels see.
    tables: usize,
    table: usize,
    /// Tokens of each sequence, and blocks of each of its tables, to check against the cache's block size.
    ends: Vec<usize>,
    blocks: Vec<usize>,
    /// Rows of each sequence; 1 for each of padding.
    lengths: Vec<usize>,
    /// The highest slot of a sequence.
    last_slot: Option<usize>,
    /// Some sequences share a prefix, or those of the steps to be recorded will.
    shares: bool,
}

impl Batch {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Rows without padding.
    pub(crate) fn own_rows(&self) -> usize {
        self.own_rows
    }

    /// Tables of a sequence that there has been room for.
    pub(crate) fn most_tables(&self) -> usize {
        self.capacity.tables
    }

    /// Those that launches are made for.
    pub(crate) fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Whether some sequences share a prefix.
    pub(crate) fn shares_prefix(&self) -> bool {
        self.shares
    }

    /// All of the step's.
    pub(crate) fn all(&self) -> Sequences {
        Sequences { pointers: self.pointers, count: self.sequences(), is_new: false }
    }

    /// Tokens before each sequence's rows, and how many these are.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (usize, usize)> {
        self.ends.iter().zip(&self.lengths).map(|(end, rows)| (end - rows, *rows))
    }

    /// The sequences with `rows` rows each in place of their own: those without any are left out.
    pub(crate) fn kept(&mut self, device: &mut Device, rows: &[usize]) -> Sequences {
        if self.kept != rows {
            self.kept_rows.reserve(device, room_for(rows.len()));
            self.kept_at = self.kept_rows.send(device, rows.len(), |numbers| {
                numbers.iter_mut().zip(rows).for_each(|(to, rows)| *to = *rows as u32);
            });
            self.kept.clear();
            self.kept.extend_from_slice(rows);
        }
        let pointers = Pointers { num_rows: self.kept_at, ..self.pointers };
        Sequences { pointers, count: rows.len(), is_new: true }
    }

    /// Whether [`Self::alone`] has something to give for rows.
    pub(crate) fn may_be_alone(&self, rows: &[u32]) -> bool {
        self.has(Rows::Several) && !rows.is_empty() && rows.len() <= ALONE * self.sequences()
    }

    /// Some rows, each as a sequence of its own with one row; none where these are hardly fewer, or all are that
    /// already.
    pub(crate) fn alone(&mut self, device: &mut Device, rows: &[u32]) -> Option<Sequences> {
        if !self.may_be_alone(rows) {
            return None;
        }
        let selected = self.select(device, rows);
        self.reserve_alone(device, rows.len());
        let base = self.alone.as_ref()?.ptr;
        let list = |index: usize| base + (index * self.alone_rows * size_of::<u32>()) as u64;
        let [first_row, num_rows, start, first_block] = [0, 1, 2, 3].map(list);
        let pointers = Pointers { first_row, num_rows, start, first_block, ..self.pointers };
        let count = rows.len() as u32;
        device.launch(
            Name::of("rows_alone", &[]),
            Shape::elements(rows.len()),
            args![selected, self.pointers, pointers, count],
        );
        Some(Sequences { pointers, count: rows.len(), is_new: true })
    }

    fn reserve_alone(&mut self, device: &mut Device, rows: usize) {
        const LISTS: usize = 4;
        if self.alone.is_none() || self.alone_rows < rows {
            self.alone_rows = room_for(rows);
            self.alone = None;
            self.alone = device.allocate(LISTS * self.alone_rows * size_of::<u32>(), "rows of a step alone");
        }
    }

    /// Whether some sequence has one row, or several.
    pub(crate) fn has(&self, rows: Rows) -> bool {
        self.lengths.iter().any(|length| match rows {
            Rows::One => *length == 1,
            Rows::Several => *length > 1,
        })
    }

    /// Tiles of `size` (row, query head) pairs of the sequences with several rows, `group` heads a row.
    pub(crate) fn tiles(&self, group: usize, size: usize) -> usize {
        self.lengths.iter().filter(|length| **length > 1).map(|length| (length * group).div_ceil(size)).sum()
    }

    /// The same of all sequences.
    pub(crate) fn all_tiles(&self, group: usize, size: usize) -> usize {
        self.lengths.iter().map(|length| (length * group).div_ceil(size)).sum()
    }

    /// How many sequences have `least` rows or more.
    pub(crate) fn with_rows(&self, least: usize) -> usize {
        self.lengths.iter().filter(|length| **length >= least).count()
    }

    /// Makes room for steps of the usual sizes, so that addresses stay.
    pub(crate) fn prepare(&mut self, device: &mut Device, rows: usize, sequences: usize) {
        /// Blocks of a sequence.
        const BLOCKS: usize = 512;
        self.reserve(device, Capacity { rows, sequences, tables: 1, blocks: sequences * BLOCKS });
        // A row of each sequence has logits.
        self.selection.reserve(device, room_for(sequences));
        self.kept_rows.reserve(device, room_for(sequences));
        self.reserve_alone(device, ALONE * sequences);
    }

    /// Chunks of at most `size` rows of all sequences.
    pub(crate) fn chunks(&self, size: usize) -> usize {
        self.lengths.iter().map(|length| length.div_ceil(size)).sum()
    }

    /// Sequences with at least `least` rows, and chunks of `size` rows of theirs.
    pub(crate) fn long(&self, least: usize) -> usize {
        self.lengths.iter().filter(|length| **length >= least).count()
    }
    pub(crate) fn chunks_of_long(&self, size: usize, least: usize) -> usize {
        self.lengths.iter().filter(|length| **length >= least).map(|length| length.div_ceil(size)).sum()
    }

    /// Fails where a sequence's slot is none of these.
    pub(crate) fn check_slots(&self, slots: usize) {
        assert!(self.last_slot.is_none_or(|last| last < slots), "slot {:?} of {slots}", self.last_slot);
    }

    /// Sends a batch to the device; if `padded`, with rows up to that number at its end that count as sequences of one
    /// row each. `prefix`: what some of its sequences share, if that is to be attended to once. While steps are
    /// recorded, nothing is sent. Kernels find it once it is [placed](Self::place).
    pub(crate) fn set(
        &mut self,
        device: &mut Device,
        batch: ops::Batch<'_>,
        padded: Option<usize>,
        prefix: Option<&SharedPrefix>,
    ) {
        let ops::Batch { tokens, positions, sequences } = batch;
        assert_eq!(tokens.len(), positions.len(), "tokens and positions of a batch");
        let rows = padded.unwrap_or(tokens.len());
        (self.rows, self.own_rows) = (rows, sequences.iter().map(|sequence| sequence.num_rows).sum());
        self.tables = sequences.first().map_or(0, |sequence| sequence.tables.len());
        self.ends.clear();
        self.blocks.clear();
        self.lengths.clear();
        self.selected.clear();
        self.kept.clear();
        for sequence in sequences {
            assert!(sequence.first_row + sequence.num_rows <= self.rows, "rows of {sequence:?} in {}", self.rows);
            self.lengths.push(sequence.num_rows);
            assert_eq!(sequence.tables.len(), self.tables, "tables of {sequence:?}, and of the first");
            self.ends.push(sequence.start + sequence.num_rows);
            self.blocks.extend(sequence.tables.iter().map(Vec::len));
        }
        if padded.is_some() {
            assert!(self.lengths.iter().all(|length| *length == 1), "a padded step has one row a sequence");
            self.lengths.resize(rows, 1);
        }
        self.last_slot = sequences.iter().map(|sequence| sequence.slot).max();
        self.shares = prefix.is_some();
        let (tables, blocks) = (self.tables, self.blocks.iter().sum());
        self.reserve(device, Capacity { rows, sequences: self.lengths.len(), tables, blocks });
        self.turn_to(0);
        let capacity = self.capacity;
        if !device.is_capturing() {
            self.len = capacity.layout().len(blocks);
            self.sent = self.upload.send(device, self.len, |numbers| {
                capacity.fill(batch, rows, numbers);
                capacity.fill_prefix(prefix, numbers);
            });
        }
    }

    /// Puts the batch that was sent where kernels look for it, with the `last` tokens of slots in the place of entries
    /// that name slots.
    pub(crate) fn place(&self, device: &mut Device, last: CUdeviceptr) {
        if device.is_capturing() {
            return;
        }
        let (len, first, rows) = (self.len as u32, self.capacity.layout().tokens as u32, self.rows as u32);
        let arguments = args![self.sent, self.pointers.counts, len, first, rows, last];
        device.launch(Name::of("place", &[]), Shape::elements(self.len), arguments);
    }

    /// The batch where it was sent to, for a kernel that finds the tokens of slots itself.
    pub(crate) fn as_sent(&self) -> Pointers {
        Pointers::new(self.sent, &self.capacity.layout())
    }

    /// From here on, kernels see this block table of each sequence.
    pub(crate) fn turn_to(&mut self, table: u32) {
        let list = |table: usize| (table * self.capacity.sequences * size_of::<u32>()) as u64;
        self.pointers.first_block = self.pointers.first_block - list(self.table) + list(table as usize);
        let shared = (SHARED + table as usize).min(TOKENS - 1);
        self.pointers.shared = self.pointers.counts + (shared * size_of::<u32>()) as u64;
        self.table = table as usize;
    }

    /// The block table of each sequence that kernels see.
    pub(crate) fn table(&self) -> usize {
        self.table
    }

    /// Entries of `first_block` before the list of a table.
    pub(crate) fn first_entry_of(&self, table: u32) -> u64 {
        (table as usize * self.capacity.sequences) as u64
    }

    /// Fails where a sequence is longer than its blocks.
    pub(crate) fn check_blocks(&self, shape: KvShape) {
        for (end, blocks) in self.ends.iter().zip(self.blocks.chunks(self.tables.max(1))) {
            shape.check_blocks(*end, blocks[self.table]);
        }
    }

    /// Sends the rows that `gather` picks; where they are. The same rows are sent once a step: more copies at a time
    /// than [`Upload`] has room for would make the host wait for steps that are under way.
    pub(crate) fn select(&mut self, device: &mut Device, rows: &[u32]) -> CUdeviceptr {
        if self.selected != rows {
            self.selection.reserve(device, room_for(rows.len()));
            self.selected_at = self.selection.send(device, rows.len(), |numbers| numbers.copy_from_slice(rows));
            self.selected.clear();
            self.selected.extend_from_slice(rows);
        }
        self.selected_at
    }

    fn reserve(&mut self, device: &mut Device, need: Capacity) {
        let grow = |has: usize, need: usize| if need <= has { has } else { room_for(need) };
        let capacity = Capacity {
            rows: grow(self.capacity.rows, need.rows),
            sequences: grow(self.capacity.sequences, need.sequences),
            tables: self.capacity.tables.max(need.tables),
            blocks: grow(self.capacity.blocks, need.blocks),
        };
        let layout = capacity.layout();
        let len = layout.len(capacity.blocks);
        if self.upload.reserve(device, len) || self.memory.is_none() {
            self.capacity = capacity;
            self.table = 0;
            self.memory = None;
            self.memory = device.allocate(len * size_of::<u32>(), "a step's batch");
            self.pointers = Pointers::new(self.memory.as_ref().map_or(0, |memory| memory.ptr), &layout);
        }
    }
}

/// Where each list begins, in numbers.
struct Layout {
    tokens: usize,
    positions: usize,
    row_sequence: usize,
    first_row: usize,
    num_rows: usize,
    start: usize,
    first_block: usize,
    slots: usize,
    members: usize,
    member: usize,
    blocks: usize,
}

impl Layout {
    fn len(&self, blocks: usize) -> usize {
        self.blocks + blocks
    }
}

impl Capacity {
    /// Lists start at multiples of 64 numbers (capacities are such multiples, or powers of two above).
    fn layout(&self) -> Layout {
        let (tokens, rows, sequences) = (TOKENS, self.rows, self.sequences);
        let positions = tokens + rows;
        let row_sequence = positions + rows;
        let first_row = row_sequence + rows;
        let num_rows = first_row + sequences;
        let start = num_rows + sequences;
        let first_block = start + sequences;
        // A list for each table.
        let slots = first_block + self.tables * sequences;
        let members = slots + sequences;
        let member = members + sequences;
        let blocks = member + sequences;
        Layout {
            tokens,
            positions,
            row_sequence,
            first_row,
            num_rows,
            start,
            first_block,
            slots,
            members,
            member,
            blocks,
        }
    }

    /// `rows`: padding included.
    fn fill(&self, batch: ops::Batch<'_>, rows: usize, numbers: &mut [u32]) {
        let ops::Batch { tokens, positions, sequences } = batch;
        let layout = self.layout();
        let padding = tokens.len()..rows;
        let rows = tokens.len();
        let longest = sequences.iter().map(|sequence| sequence.start + sequence.num_rows).max().unwrap_or(0);
        let chunk = sequences.iter().map(|sequence| sequence.num_rows).max().unwrap_or(0);
        let counts = [rows, sequences.len(), longest, chunk].map(|count| count as u32);
        numbers[..counts.len()].copy_from_slice(&counts);
        numbers[layout.tokens..][..rows].copy_from_slice(tokens);
        numbers[layout.positions..][..rows].copy_from_slice(positions);
        // Any token will do, but must be one.
        numbers[layout.tokens..][padding.clone()].fill(0);
        numbers[layout.positions..][padding].fill(0);
        numbers[layout.row_sequence..][..self.rows].fill(NOBODY);
        numbers[layout.num_rows..][..self.sequences].fill(0);
        let mut first_block = 0;
        for (index, sequence) in sequences.iter().enumerate() {
            numbers[layout.row_sequence + sequence.first_row..][..sequence.num_rows].fill(index as u32);
            numbers[layout.first_row + index] = sequence.first_row as u32;
            numbers[layout.num_rows + index] = sequence.num_rows as u32;
            numbers[layout.start + index] = sequence.start as u32;
            numbers[layout.slots + index] = sequence.slot as u32;
            for (table, blocks) in sequence.tables.iter().enumerate() {
                numbers[layout.first_block + table * self.sequences + index] = first_block as u32;
                numbers[layout.blocks + first_block..][..blocks.len()].copy_from_slice(blocks);
                first_block += blocks.len();
            }
        }
    }
}

impl Capacity {
    /// What cascade attention is told; without a prefix, that there is none.
    fn fill_prefix(&self, prefix: Option<&SharedPrefix>, numbers: &mut [u32]) {
        let layout = self.layout();
        numbers[layout.member..][..self.sequences].fill(NOBODY);
        numbers[PREFIX..TOKENS].fill(0);
        let Some(SharedPrefix { members, blocks, tokens }) = prefix else { return };
        numbers[PREFIX..][..2].copy_from_slice(&[members.len() as u32, *tokens as u32]);
        let shared = blocks.iter().map(|&blocks| blocks as u32);
        // The last place is that of all tables there is no room for: nothing is shared there.
        numbers[SHARED..TOKENS - 1].iter_mut().zip(shared).for_each(|(to, blocks)| *to = blocks);
        for (member, &sequence) in members.iter().enumerate() {
            numbers[layout.members + member] = sequence as u32;
            numbers[layout.member + sequence] = member as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::Sequence;

    #[test]
    fn a_batch_lies_as_kernels_expect_it() {
        let capacity = Capacity { rows: 64, sequences: 64, tables: 2, blocks: 64 };
        let layout = capacity.layout();
        let sequences = [
            Sequence { first_row: 0, num_rows: 2, start: 5, tables: &[vec![9, 8], vec![6, 5]], slot: 0 },
            Sequence { first_row: 2, num_rows: 1, start: 0, tables: &[vec![7], vec![4]], slot: 1 },
        ];
        let batch = ops::Batch { tokens: &[1, 2, 3, 4], positions: &[5, 6, 0, 0], sequences: &sequences };
        let mut numbers = vec![77; layout.len(6)];
        capacity.fill(batch, 6, &mut numbers);
        assert_eq!(numbers[..4], [4, 2, 7, 2]);
        assert_eq!(numbers[layout.tokens..][..7], [1, 2, 3, 4, 0, 0, 77]);
        assert_eq!(numbers[layout.positions..][..7], [5, 6, 0, 0, 0, 0, 77]);
        assert_eq!(numbers[layout.row_sequence..][..5], [0, 0, 1, NOBODY, NOBODY]);
        assert_eq!(numbers[layout.num_rows..][..3], [2, 1, 0]);
        assert_eq!(numbers[layout.slots..][..2], [0, 1]);
        assert_eq!(numbers[layout.first_block..][..2], [0, 4]);
        assert_eq!(numbers[layout.first_block + 64..][..2], [2, 5]);
        assert_eq!(numbers[layout.blocks..], [9, 8, 6, 5, 7, 4]);
    }

    #[test]
    fn a_prefix_lies_as_kernels_expect_it_and_is_gone_when_there_is_none() {
        let capacity = Capacity { rows: 64, sequences: 64, tables: 2, blocks: 64 };
        let layout = capacity.layout();
        let mut numbers = vec![77; layout.len(0)];
        let prefix = SharedPrefix { members: vec![1, 4, 5], blocks: vec![0, 9], tokens: 150 };
        capacity.fill_prefix(Some(&prefix), &mut numbers);
        assert_eq!(numbers[4..6], [3, 150]);
        assert_eq!(numbers[SHARED..][..3], [0, 9, 0]);
        assert_eq!(numbers[layout.members..][..3], [1, 4, 5]);
        assert_eq!(numbers[layout.member..][..7], [NOBODY, 0, NOBODY, NOBODY, 1, 2, NOBODY]);
        // More tables than there is room for.
        let prefix = SharedPrefix { blocks: vec![3; 100], ..prefix };
        capacity.fill_prefix(Some(&prefix), &mut numbers);
        assert_eq!((numbers[62], numbers[63], numbers[64]), (3, 0, 77));
        capacity.fill_prefix(None, &mut numbers);
        assert_eq!(numbers[4..64], [0; 60]);
        assert!(numbers[layout.member..][..64].iter().all(|member| *member == NOBODY));
    }
}
