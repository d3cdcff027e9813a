//! Launches `route.cu`: which experts rows choose, and a list of the rows that chose it for each expert.

use cudarc::driver::sys::CUdeviceptr;

use crate::jit::layouts::twin;
use crate::jit::specialization::HOPPER;
use crate::runtime::activations::View;
use crate::runtime::arch::Arch;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{RouterScore, Routing};

/// Shared memory that a block of the router may ask for, beside less than 1 KiB of its own; warps that it has at most,
/// and rows.
const MOST_SHARED: usize = 47 << 10;
const MOST_WARPS: usize = 32;
const MOST_ROWS: usize = 64;
/// Rows that one block chooses for, if it has a warp for each: it waits for no other.
const ROWS_ALONE: usize = 32;
/// Rows of a block where there are several, at least.
const LEAST_ROWS: usize = 4;
/// Experts at most, and those that a row chooses: so that a row's numbers fit a block's shared memory.
pub(crate) const MOST_EXPERTS: usize = 2048;
pub(crate) const MOST_TOP_K: usize = 1024;
/// Bytes of `struct Tile` of experts.cuh.
const TILE_BYTES: usize = 16;

/// How the experts of a device's models are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExpertStorage {
    Numbers,
    /// In 4 or 8 bits.
    Packed,
}

/// Rows of a tile: about as many as an expert has, where that can be. Tiles of other rows than here are nobody's.
pub(crate) fn tile_rows(arch: Arch, stored: ExpertStorage, rows: usize, top_k: usize, experts: usize) -> usize {
    let tile = match (rows * top_k / experts.max(1), stored) {
        _ if rows <= 1 => 1,
        (0..=4, _) => 8,
        (5..=10, _) => 16,
        (11..=24, _) => 32,
        (25..=40, _) => 64,
        (41..=56, ExpertStorage::Packed) => 64,
        (41..=140, ExpertStorage::Packed) => 128,
        (41..=140, ExpertStorage::Numbers) => 160,
        (_, ExpertStorage::Packed) => 256,
        (_, ExpertStorage::Numbers) => 320,
    };
    if arch == HOPPER { tile } else { tile.min(32) }
}

/// Which experts rows chose: `[rows][top_k]` numbers and weights, and for each expert a list of those pairs of row and
/// expert.
pub(crate) struct Choices {
    experts: Option<Memory>,
    weights: Option<Memory>,
    /// `[experts][max_rows]`: made when the number of experts is known.
    lists: Option<Memory>,
    tiles: Option<Memory>,
    counts: Option<Memory>,
    max_rows: usize,
    pub(crate) top_k: usize,
    /// Of the experts that are chosen among: tiles are made for their kernels.
    pub(crate) stored: ExpertStorage,
    /// Rows of the newest choice, the experts it was made among, and rows of its tiles.
    pub(crate) rows: usize,
    pub(crate) among: usize,
    pub(crate) tile_rows: usize,
}

/// `struct Choices` of experts.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    experts: CUdeviceptr,
    pub(crate) weights: CUdeviceptr,
    lists: CUdeviceptr,
    tiles: CUdeviceptr,
    counts: CUdeviceptr,
    room: u32,
    tile_rows: u32,
}

twin!(Chosen = "Choices" { experts, weights, lists, tiles, counts, room, tile_rows });

impl Choices {
    pub(crate) fn new(device: &mut Device, max_rows: usize, top_k: usize) -> Self {
        let pairs = max_rows * top_k;
        let mut room = |bytes: usize| device.allocate(bytes, "choices of experts");
        let (experts, weights) = (room(pairs * size_of::<u32>()), room(pairs * size_of::<f32>()));
        let (tiles, counts) = (room(pairs * TILE_BYTES), room((2 + MOST_EXPERTS) * size_of::<u32>()));
        if let Some(counts) = &counts {
            device.clear(counts);
        }
        let stored = ExpertStorage::Numbers;
        Self { experts, weights, lists: None, tiles, counts, max_rows, top_k, stored, rows: 0, among: 0, tile_rows: 1 }
    }

    /// The choice of `experts` experts by `rows` rows begins.
    fn begin(&mut self, device: &mut Device, rows: usize, experts: usize) {
        let bytes = experts * self.max_rows * size_of::<u32>();
        if self.lists.as_ref().is_none_or(|lists| lists.bytes < bytes) {
            self.lists = None;
            self.lists = device.allocate(bytes, "lists of experts");
        }
        (self.rows, self.among) = (rows, experts);
        self.tile_rows = tile_rows(device.context.arch, self.stored, rows, self.top_k, experts);
    }

    pub(crate) fn pairs(&self) -> usize {
        self.rows * self.top_k
    }

    /// The most tiles there can be: each expert that was chosen has at most one that is not full.
    pub(crate) fn most_tiles(&self) -> usize {
        let used = self.pairs().min(self.among);
        (self.pairs() + used * (self.tile_rows - 1)) / self.tile_rows
    }

    /// As kernels see it. Pairs of a single row have different experts: there are no lists.
    pub(crate) fn chosen(&self) -> Chosen {
        let start = |memory: &Option<Memory>| memory.as_ref().map_or(0, |memory| memory.ptr);
        let lists = if self.rows > 1 { start(&self.lists) } else { 0 };
        Chosen {
            experts: start(&self.experts),
            weights: start(&self.weights),
            lists,
            tiles: start(&self.tiles),
            counts: start(&self.counts),
            room: self.max_rows as u32,
            tile_rows: self.tile_rows as u32,
        }
    }
}

/// `struct Routing` of route.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Router {
    correction: CUdeviceptr,
    sigmoid: u32,
    groups: u32,
    groups_kept: u32,
    group_best: u32,
    top_k: u32,
    renormalise: u32,
    scale: f32,
}

twin!(Router = "Routing" { correction, sigmoid, groups, groups_kept, group_best, top_k, renormalise, scale });

impl Router {
    /// `correction` is where the corrections are: null for none.
    pub(crate) fn of(routing: Routing, correction: CUdeviceptr) -> Self {
        let groups = routing.groups.map_or([0; 3], |groups| [groups.count, groups.kept, groups.best]);
        let [groups, groups_kept, group_best] = groups.map(|number| number as u32);
        Self {
            correction,
            sigmoid: u32::from(routing.score == RouterScore::Sigmoid),
            groups,
            groups_kept,
            group_best,
            top_k: routing.top_k as u32,
            renormalise: u32::from(routing.renormalise),
            scale: routing.scale,
        }
    }
}

/// The routing is checked. `live`: where the device finds how
/// many rows are no padding.
pub(crate) fn route(device: &mut Device, logits: View, router: Router, live: CUdeviceptr, choices: &mut Choices) {
    let (rows, experts) = (logits.rows, logits.width);
    assert!(rows <= choices.max_rows, "{rows} rows in choices for {}", choices.max_rows);
    assert!(experts <= MOST_EXPERTS, "{experts} experts");
    choices.begin(device, rows, experts);
    let (each, shape) = blocks(rows, experts, router, device.context.multiprocessors);
    let name = Name::of("route", &[logits.dtype]);
    let [rows, each, experts] = [rows, each, experts].map(|number| number as u32);
    device.launch_early(name, shape, args![logits.ptr, router, choices.chosen(), rows, each, experts, live]);
}

/// Rows of a block, and the blocks, whose warps choose for a row each.
fn blocks(rows: usize, experts: usize, router: Router, multiprocessors: usize) -> (usize, Shape) {
    // Of a row the experts chosen; of a block places in lists; of a warp scores, merits, worths of groups and weights:
    // 4 bytes each.
    let (top_k, groups) = (router.top_k as usize, router.groups as usize);
    let (of_row, of_block, of_warp) = (4 * top_k, 4 * experts, 4 * (2 * experts + groups + top_k));
    let at_once = MOST_SHARED.saturating_sub(of_block) / (of_row + of_warp);
    let each = match rows {
        ..=ROWS_ALONE if rows <= at_once.max(1) => rows.max(1),
        _ => rows.div_ceil(multiprocessors).clamp(LEAST_ROWS, MOST_ROWS),
    };
    let each = each.min(MOST_SHARED.saturating_sub(of_block + of_warp) / of_row.max(1)).max(1);
    let fixed = each * of_row + of_block;
    let warps = each.min(MOST_WARPS).min(MOST_SHARED.saturating_sub(fixed) / of_warp).max(1);
    (each, Shape { grid: [rows.div_ceil(each), 1], block: 32 * warps, shared: fixed + warps * of_warp })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routing(top_k: usize) -> Routing {
        let score = RouterScore::Softmax;
        Routing { score, correction: None, groups: None, top_k, renormalise: false, scale: 1.0 }
    }

    #[test]
    fn blocks_of_every_shape_that_is_loaded_have_the_memory_they_ask_for() {
        for experts in [1, 8, 60, 128, 256, 512, 1024, MOST_EXPERTS] {
            for top_k in [1, 8, 90, 512, MOST_TOP_K].into_iter().filter(|top_k| *top_k <= experts) {
                for groups in [0, experts] {
                    let router = Router { groups: groups as u32, ..Router::of(routing(top_k), 0) };
                    for rows in [1, 2, 31, 32, 33, 500, 8192] {
                        let (each, Shape { grid, block, shared }) = blocks(rows, experts, router, 132);
                        let words = format!("{top_k} of {experts} experts in {groups} groups, {rows} rows");
                        assert!(shared <= MOST_SHARED, "{words}: {shared} bytes");
                        assert!(each * grid[0] >= rows && (32..=32 * MOST_WARPS).contains(&block), "{words}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_usual_shapes_have_a_warp_for_each_row_of_a_block() {
        for (top_k, experts) in [(8, 128), (2, 8), (4, 32), (6, 64)] {
            let router = Router::of(routing(top_k), 0);
            let launched = |rows| {
                let (each, shape) = blocks(rows, experts, router, 132);
                (each, shape.grid[0], shape.block / 32)
            };
            assert_eq!([1, 32, 100, 2048].map(launched), [(1, 1, 1), (32, 1, 32), (4, 25, 4), (16, 128, 16)]);
        }
    }
}
