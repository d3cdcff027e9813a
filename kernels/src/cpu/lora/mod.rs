//! Adapters: what their slots hold, and the deltas of a step's rows.

mod deltas;
mod rows;
mod saved;

use crate::cpu::moe::route::Choices;
use crate::cpu::runtime::activations::{Columns, View};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::{Reserve, Shared};
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::vectorize;
use crate::ops::{DType, Entries, LoraShape, LoraWeights, check_experts};
use deltas::{Expand, Shrink};
use rows::{AdapterRows, GROUP, RowGroup, RowGroups};
use saved::SavedMatrices;

/// Outputs of a task, at most.
const OUTPUTS: usize = 512;
/// Lanes of a vector, about.
const LANES: usize = 8;

/// The adapters of all layers, and which rows use which.
#[derive(Default)]
pub(crate) struct Adapters {
    sites: Vec<Site>,
    pub(crate) rows: AdapterRows,
    pub(crate) saved: SavedMatrices,
    /// Shrunk rows, `[rows][parts][max_rank]`.
    shrunk: Reserve,
}

/// One layer's.
struct Site {
    inputs: usize,
    outputs: Vec<usize>,
    max_rank: usize,
    /// What adapters come in; they are kept as f32.
    dtype: DType,
    experts: Option<usize>,
    /// By slot: an adapter for each projection, expert after expert.
    slots: Vec<Vec<Option<Weights>>>,
}

struct Weights {
    rank: usize,
    /// `[rank, inputs]`.
    a: Vec<f32>,
    /// `[rank, outputs]`.
    b: Vec<f32>,
}

impl Weights {
    fn new(LoraWeights { rank, a, b }: LoraWeights<'_>) -> Self {
        let b = b.widened();
        let outputs = b.len() / rank;
        let mut turned = vec![0.0; b.len()];
        for (output, row) in b.chunks_exact(rank).enumerate() {
            row.iter().enumerate().for_each(|(j, value)| turned[j * outputs + output] = *value);
        }
        Self { rank, a: a.widened(), b: turned }
    }
}

impl Site {
    /// The adapter of a slot, or of an expert in one, for a projection.
    fn part(&self, member: usize, part: usize) -> Option<&Weights> {
        let experts = self.experts.unwrap_or(1);
        let (slot, expert) = (member / experts, member % experts);
        self.slots[slot].get(expert * self.outputs.len() + part)?.as_ref()
    }

    /// The outputs of all projections, in blocks.
    fn blocks(&self) -> impl Iterator<Item = Block> {
        let ends = self.outputs.iter().scan(0, |end, outputs| {
            *end += outputs;
            Some(*end)
        });
        let of_part = |(part, (outputs, end)): (usize, (&usize, usize))| {
            let (outputs, begin) = (*outputs, end - outputs);
            let block = move |first| Block { part, first, column: begin + first, count: OUTPUTS.min(outputs - first) };
            (0..outputs).step_by(OUTPUTS).map(block)
        };
        self.outputs.iter().zip(ends).enumerate().flat_map(of_part)
    }
}

/// The tokens of a step's rows, and which entries they are.
#[derive(Clone, Copy)]
pub(crate) struct Tokens<'a> {
    pub(crate) rows: &'a [u32],
    pub(crate) entries: Entries,
}

impl Tokens<'_> {
    /// The entry of a row's token, among `count`.
    fn entry(&self, row: u32, count: usize) -> Option<usize> {
        let entry = self.rows[row as usize].checked_sub(self.entries.first)? as usize;
        Some(entry).filter(|entry| *entry < count)
    }
}

/// Pairs of row and expert that deltas are added to.
#[derive(Clone, Copy)]
pub(crate) struct ExpertRows<'a> {
    pub(crate) site: u32,
    pub(crate) choices: &'a Choices,
    /// A row for each row that chose, or for each pair.
    pub(crate) x: View,
    pub(crate) out: View,
}

/// Some outputs of a projection.
struct Block {
    part: usize,
    /// The first of them in the projection, and in the layer.
    first: usize,
    column: usize,
    count: usize,
}

impl Adapters {
    /// A layer with empty slots.
    pub(crate) fn add_site(&mut self, shape: LoraShape<'_>) -> u32 {
        let LoraShape { slots, max_rank, inputs, outputs, dtype, experts } = shape;
        let empty = (0..slots).map(|_| Vec::new()).collect();
        self.sites.push(Site { inputs, outputs: outputs.to_vec(), max_rank, dtype, experts, slots: empty });
        u32::try_from(self.sites.len() - 1).expect("far fewer layers")
    }

    pub(crate) fn write(&mut self, site: u32, slot: u32, parts: &[Option<LoraWeights<'_>>]) {
        let site = &mut self.sites[site as usize];
        let Site { inputs, ref outputs, max_rank, dtype, experts, .. } = *site;
        LoraShape { slots: site.slots.len(), max_rank, inputs, outputs, dtype, experts }.check(slot as usize, parts);
        site.slots[slot as usize] = parts.iter().map(|part| part.map(Weights::new)).collect();
    }

    /// Adds the deltas of a linear layer to all rows.
    pub(crate) fn add_deltas(&mut self, isa: Isa, pool: &mut Pool, x: View, site: u32, out: View) {
        let Some(call) = self.call(isa, site, out) else { return };
        assert_eq!((x.rows, x.width), (out.rows, call.site.inputs), "shape of an adapter's input");
        call.shrink(pool, x, 1);
        call.expand(pool, out);
    }

    /// Adds the deltas of a layer of experts to all pairs of row and expert.
    pub(crate) fn add_expert_deltas(
        &mut self,
        isa: Isa,
        pool: &mut Pool,
        ExpertRows { site, choices, x, out }: ExpertRows<'_>,
    ) {
        if self.rows.is_empty() {
            return;
        }
        let (site, groups) = (&self.sites[site as usize], self.rows.pairs(choices));
        let experts = choices.experts();
        assert_eq!(site.experts, Some(experts), "experts with adapters, and what rows chose among");
        check_experts([x.rows, x.width], [experts, out.width, site.inputs], None, [choices.rows, choices.top_k]);
        let call = Call::new(isa, site, groups, &mut self.shrunk, out);
        call.shrink(pool, x, out.rows / x.rows.max(1));
        call.expand(pool, out);
    }

    /// Adds the deltas of an embedding to all rows.
    pub(crate) fn add_entries(&mut self, isa: Isa, pool: &mut Pool, site: u32, tokens: Tokens<'_>, out: View) {
        let Some(call) = self.call(isa, site, out) else { return };
        call.pick(tokens);
        call.expand(pool, out);
    }

    /// An operation of rows some of which have an adapter; absent: none has.
    fn call(&mut self, isa: Isa, site: u32, out: View) -> Option<Call<'_>> {
        if self.rows.is_empty() {
            return None;
        }
        let (site, groups) = (&self.sites[site as usize], self.rows.groups(out.rows));
        assert!(site.experts.is_none(), "adapters of experts, for rows that chose none");
        Some(Call::new(isa, site, groups, &mut self.shrunk, out))
    }
}

/// An operation of one layer. `shrunk` has, for each projection, a row for each row with an adapter, in the order of
/// the groups.
struct Call<'a> {
    isa: Isa,
    site: &'a Site,
    groups: &'a RowGroups,
    shrunk: Shared<f32>,
}

impl<'a> Call<'a> {
    fn new(isa: Isa, site: &'a Site, groups: &'a RowGroups, shrunk: &mut Reserve, out: View) -> Self {
        assert_eq!(out.width, site.outputs.iter().sum::<usize>(), "width of what deltas are added to");
        let shrunk = shrunk.reserve(groups.rows() * site.outputs.len() * site.max_rank * size_of::<f32>());
        Self { isa, site, groups, shrunk: Shared::new(shrunk.cast()) }
    }

    /// Multiplications of vectors, where the rank meets so many features.
    fn work(&self, features: usize) -> usize {
        self.groups.rows() * self.site.max_rank * features / LANES
    }

    /// A group's shrunk rows for a projection.
    ///
    /// # Safety
    /// Nobody else uses them meanwhile.
    #[allow(clippy::mut_from_ref, reason = "tasks own disjoint rows of shared memory")]
    unsafe fn shrunk(&self, group: RowGroup<'_>, part: usize) -> &mut [f32] {
        let rank = self.site.max_rank;
        let at = (part * self.groups.rows() + group.first) * rank;
        // SAFETY: the memory has `max_rank` numbers for each projection and row; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.shrunk.at(at), group.rows.len() * rank) }
    }

    /// Shrinks rows of `x`, each for so many of the groups' rows: a task for each group and projection.
    fn shrink(&self, pool: &mut Pool, x: View, times: usize) {
        let parts = self.site.outputs.len();
        pool.run_sized(self.groups.len() * parts, self.work(self.site.inputs * parts), &|task, _| {
            let (group, part) = (self.groups.get(task / parts), task % parts);
            let Some(Weights { rank, a, .. }) = self.site.part(group.member, part) else { return };
            let mut rows: [&[f32]; GROUP] = [&[]; GROUP];
            for (slice, row) in rows.iter_mut().zip(group.rows) {
                // SAFETY: nobody writes inputs meanwhile.
                *slice = unsafe { x.row(*row as usize / times) };
            }
            // SAFETY: these rows are this task's.
            let shrunk = unsafe { self.shrunk(group, part) };
            let x = &rows[..group.rows.len()];
            vectorize(self.isa, Shrink { x, a, rank: *rank, stride: self.site.max_rank, shrunk });
        });
    }

    /// What a shrunk row of one-hot inputs is: the column of the row's token.
    fn pick(&self, tokens: Tokens<'_>) {
        for group in (0..self.groups.len()).map(|index| self.groups.get(index)) {
            let Some(Weights { rank, a, .. }) = self.site.part(group.member, 0) else { continue };
            // SAFETY: only this thread is here.
            let shrunk = unsafe { self.shrunk(group, 0) };
            for (shrunk, row) in shrunk.chunks_exact_mut(self.site.max_rank).zip(group.rows) {
                let (entry, scale) = (tokens.entry(*row, self.site.inputs), tokens.entries.scale);
                let column = |j: usize| entry.map_or(0.0, |entry| a[j * self.site.inputs + entry] * scale);
                shrunk[..*rank].iter_mut().enumerate().for_each(|(j, to)| *to = column(j));
            }
        }
    }

    /// Expands shrunk rows, and adds them to `out`: a task for each group and some outputs.
    fn expand(&self, pool: &mut Pool, out: View) {
        let blocks: Vec<Block> = self.site.blocks().collect();
        let work = self.work(out.width);
        pool.run_sized(self.groups.len() * blocks.len(), work, &|task, _| {
            let (group, block) = (self.groups.get(task / blocks.len()), &blocks[task % blocks.len()]);
            let Some(Weights { rank, b, .. }) = self.site.part(group.member, block.part) else { return };
            let out = Columns { view: out, first: block.column };
            out.check(out.view.rows, block.count);
            // SAFETY: nobody writes shrunk rows meanwhile.
            let shrunk = unsafe { &*self.shrunk(group, block.part) };
            let (stride, outputs) = (self.site.max_rank, self.site.outputs[block.part]);
            let b = &b[block.first..];
            let count = block.count;
            vectorize(self.isa, Expand { shrunk, stride, rank: *rank, b, outputs, count, rows: group.rows, out });
        });
    }
}
