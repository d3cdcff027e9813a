//! Launches `route.cu`: which experts rows choose, and the pairs of row and expert sorted by expert.

use std::ops::RangeInclusive;

use cudarc::driver::sys::CUdeviceptr;

use super::acts::View;
use super::context::Memory;
use super::device::{Device, Name, Shape, args};
use super::experts::tile_rows;
use kernels::ops::{RouterScore, Routing};

/// Warps of a block of the router, and shared memory that it may use.
const WARPS: RangeInclusive<usize> = 4..=32;
const MOST_SHARED: usize = 48 << 10;
/// Experts at most.
const MOST_EXPERTS: usize = 2048;
/// Bytes of `struct Tile` of experts.cuh.
const TILE_BYTES: usize = 16;

/// Which experts rows chose: `[rows][top_k]` numbers and weights, and the same sorted by expert.
pub(crate) struct Choices {
    experts: Option<Memory>,
    weights: Option<Memory>,
    order: Option<Memory>,
    tiles: Option<Memory>,
    counts: Option<Memory>,
    max_rows: usize,
    pub(crate) top_k: usize,
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
    order: CUdeviceptr,
    tiles: CUdeviceptr,
    counts: CUdeviceptr,
    tile_rows: u32,
}

impl Choices {
    pub(crate) fn new(device: &mut Device, max_rows: usize, top_k: usize) -> Self {
        let pairs = max_rows * top_k;
        let mut room = |bytes: usize| device.allocate(bytes, "choices of experts");
        let mut numbers = || room(pairs.next_multiple_of(4) * size_of::<u32>());
        let (experts, weights, order) = (numbers(), numbers(), numbers());
        let (tiles, counts) = (room(pairs * TILE_BYTES), room((2 + MOST_EXPERTS) * size_of::<u32>()));
        if let Some(counts) = &counts {
            device.clear(counts);
        }
        Self { experts, weights, order, tiles, counts, max_rows, top_k, rows: 0, among: 0, tile_rows: 1 }
    }

    pub(crate) fn pairs(&self) -> usize {
        self.rows * self.top_k
    }

    /// At most so many tiles: each expert that was chosen has at most one that is not full.
    pub(crate) fn most_tiles(&self) -> usize {
        let used = self.pairs().min(self.among);
        (self.pairs() + used * (self.tile_rows - 1)) / self.tile_rows
    }

    /// As kernels see it. Pairs of a single row have different experts: nothing is sorted.
    pub(crate) fn chosen(&self) -> Chosen {
        let start = |memory: &Option<Memory>| memory.as_ref().map_or(0, |memory| memory.ptr);
        let order = if self.rows > 1 { start(&self.order) } else { 0 };
        Chosen {
            experts: start(&self.experts),
            weights: start(&self.weights),
            order,
            tiles: start(&self.tiles),
            counts: start(&self.counts),
            tile_rows: self.tile_rows as u32,
        }
    }
}

/// `struct Routing` of route.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Router {
    correction: CUdeviceptr,
    sigmoid: u32,
    groups: u32,
    groups_kept: u32,
    group_best: u32,
    top_k: u32,
    renormalise: u32,
    scale: f32,
}

impl Router {
    /// `correction` is where the corrections are: null for none.
    fn of(routing: Routing, correction: CUdeviceptr) -> Self {
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

fn check(logits: View, routing: Routing, choices: &Choices) {
    let (experts, top_k) = (logits.width, routing.top_k);
    assert_eq!(top_k, choices.top_k, "experts a row, and room for them");
    assert!(logits.rows <= choices.max_rows, "{} rows in choices for {}", logits.rows, choices.max_rows);
    let eligible = routing.groups.map_or(experts, |groups| {
        let (count, best) = (groups.count, groups.best);
        assert!(
            count > 0 && groups.kept <= count && experts.is_multiple_of(count) && best <= experts / count,
            "{groups:?}"
        );
        experts / count * groups.kept
    });
    assert!(top_k <= eligible, "{top_k} experts a row of {eligible}");
    assert!(experts <= MOST_EXPERTS, "{experts} experts");
}

/// `correction` is where the corrections are: null for none. `live`: where the device finds how many rows are no padding.
pub(crate) fn route(
    device: &mut Device,
    logits: View,
    (routing, correction): (Routing, CUdeviceptr),
    live: CUdeviceptr,
    choices: &mut Choices,
) {
    check(logits, routing, choices);
    let (rows, experts) = (logits.rows, logits.width);
    (choices.rows, choices.among) = (rows, experts);
    choices.tile_rows = tile_rows(device.context.arch, rows, routing.top_k, experts);
    let router = Router::of(routing, correction);
    let shared_of_warp = (2 * experts + router.groups as usize) * size_of::<f32>();
    // Few rows are spread over multiprocessors; where there are many, the last block has much to sort.
    let wanted = rows.div_ceil(device.context.multiprocessors).next_power_of_two();
    let warps = wanted.clamp(*WARPS.start(), *WARPS.end()).min(MOST_SHARED / shared_of_warp).max(1);
    let shape = Shape { grid: [rows.div_ceil(warps), 1], block: 32 * warps, shared: warps * shared_of_warp };
    let name = Name::of("route", &[logits.dtype]);
    device.launch_early(name, shape, args![logits.ptr, router, choices.chosen(), rows as u32, experts as u32, live]);
}
