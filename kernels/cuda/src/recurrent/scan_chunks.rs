//! Launches `selective_scan_chunks.cu`: where a head has one decay, sequences with many rows a chunk at a time.

use cudarc::driver::sys::CUdeviceptr;

use super::Columns;
use super::selective_scan::{Places, Scan};
use crate::jit::layouts::twin;
use crate::jit::specialization::{LOWEST, Special};
use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::DType;

/// Rows from which a sequence is scanned in chunks, and from which in several spans of them.
pub(crate) const LEAST: usize = 16;
const LEAST_CUT: usize = 2048;
/// Blocks of a multiprocessor that spans are to keep busy, and most spans of a sequence.
const BLOCKS: usize = 2;
const MOST_SPANS: usize = 8;
/// Rows of a chunk.
const CHUNK: usize = 64;
/// Channels of a head that there are kernels for, and the step between numbers of values that there are.
const HEAD_DIMS: [usize; 4] = [16, 32, 64, 128];
const STATE_STEP: usize = 16;
/// Bytes that are copied at once.
const COPIED: usize = 16;

/// The kernels for a type and shape.
#[derive(Clone, Copy)]
pub(crate) struct Chunks {
    dtype: DType,
    head_dim: usize,
    state_dim: usize,
}

/// What a kernel finds out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gives {
    Outputs,
    States,
}

/// `struct Spans` of selective_scan_chunks.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    states: CUdeviceptr,
    left: CUdeviceptr,
    count: u32,
    least: u32,
    below: u32,
}

twin!(Spans = "Spans" { states, left, count, least, below });

/// What spans leave for those behind them.
#[derive(Default)]
pub(crate) struct SpanStates(Option<Memory>);

impl SpanStates {
    /// Room for `bytes` bytes; null after a fault.
    fn reserve(&mut self, device: &mut Device, bytes: usize) -> CUdeviceptr {
        device.reserve(&mut self.0, bytes, "states between spans of a scan")
    }
}

/// None where rows must be walked: exact types, a decay for each value, and shapes that the kernel's tiles do not fit.
pub(super) fn of(device: &Device, scan: &Scan, columns: &[Columns; 4], out: View) -> Option<Chunks> {
    let (head_dim, state_dim) = (scan.head_dim as usize, scan.state_dim as usize);
    let chunks = Chunks { dtype: out.dtype, head_dim, state_dim };
    let [x, _, b, c] = columns;
    let fits = out.dtype.size() == 2 && HEAD_DIMS.contains(&head_dim) && state_dim.is_multiple_of(STATE_STEP);
    let shared = chunks.shared(Gives::Outputs);
    let device_fits = device.context.arch >= LOWEST && shared <= device.context.shared_of_block;
    let copied = [x, b, c].iter().all(|columns| columns.is_aligned(COPIED, out.dtype));
    (scan.each_value == 0 && fits && device_fits && copied).then_some(chunks)
}

/// What images have compiled ahead: the shape that nearly all models have.
pub(crate) fn usual(dtype: DType) -> [Special; 2] {
    let chunks = Chunks { dtype, head_dim: 64, state_dim: 128 };
    [Gives::Outputs, Gives::States].map(|gives| chunks.special(gives))
}

impl Chunks {
    fn special(self, gives: Gives) -> Special {
        let states_only = usize::from(gives == Gives::States);
        let sizes = [("HEAD_DIM", self.head_dim), ("STATE_DIM", self.state_dim), ("STATES_ONLY", states_only)];
        Special::new("selective_scan_chunks", self.dtype, &sizes)
    }

    /// As the kernel has them: for each slice of 16 channels one warp, or two that share many values.
    fn warps(self) -> usize {
        let halved = self.head_dim <= 64 && self.state_dim >= 128 && self.state_dim.is_multiple_of(32);
        self.head_dim / 16 * if halved { 2 } else { 1 }
    }

    /// As the kernel has it, rows padded: two stages of b, x and c, scores (f16 keeps them in 32 bits), and two times
    /// four numbers of decay.
    fn shared(self, gives: Gives) -> usize {
        const STEPS: usize = 4 * size_of::<f32>();
        let (values, channels) = (2 * self.state_dim + 16, 2 * self.head_dim + 16);
        let scores = if self.dtype == DType::F16 { 4 * CHUNK + 32 } else { 2 * CHUNK + 16 };
        let row = match gives {
            Gives::Outputs => 2 * (2 * values + channels) + scores,
            Gives::States => 2 * (values + channels),
        };
        CHUNK * (row + 2 * STEPS)
    }

    /// Queues the scan of the sequences that are long enough; false where it cannot be compiled. Where there are none
    /// yet, it is compiled meanwhile.
    pub(super) fn run(
        self,
        device: &mut Device,
        scan: &Scan,
        columns: [Columns; 4],
        places: Places<'_>,
        room: &mut SpanStates,
    ) -> bool {
        let batch = places.batch;
        let kernels = [Gives::Outputs, Gives::States].map(|gives| (self.special(gives), self.shared(gives)));
        if batch.with_rows(LEAST) == 0 {
            kernels.into_iter().for_each(|(special, shared)| device.wish(special, shared));
            return true;
        }
        // All or none: what one has scanned must not be walked again.
        if !kernels.iter().all(|(special, _)| device.load(*special)) {
            return false;
        }
        let heads = scan.heads as usize;
        let count = (BLOCKS * device.context.multiprocessors / heads).clamp(1, MOST_SPANS);
        let cut = if count > 1 { LEAST_CUT } else { usize::MAX };
        let several = batch.with_rows(cut);
        let whole =
            Spans { states: 0, left: 0, count: 1, least: LEAST as u32, below: u32::try_from(cut).unwrap_or(u32::MAX) };
        let launch = Launch { chunks: self, scan, columns, places };
        launch.queue(device, Gives::Outputs, whole, [heads, batch.with_rows(LEAST) - several]);
        if several == 0 {
            return true;
        }
        let parts = several * heads * count;
        let bytes = size_of::<f32>() * self.head_dim * self.state_dim * parts;
        let states = room.reserve(device, bytes + size_of::<f32>() * parts);
        let (left, count) = (states + bytes as u64, count as u32);
        let spans = Spans { states, left, count, least: LEAST_CUT as u32, below: u32::MAX };
        launch.queue(device, Gives::States, spans, [heads * (count as usize - 1), several]);
        launch.queue(device, Gives::Outputs, spans, [heads * count as usize, several]);
        true
    }
}

/// What all launches of a scan have in common.
struct Launch<'a> {
    chunks: Chunks,
    scan: &'a Scan,
    columns: [Columns; 4],
    places: Places<'a>,
}

impl Launch<'_> {
    fn queue(&self, device: &mut Device, gives: Gives, spans: Spans, grid: [usize; 2]) {
        let Self { chunks, scan, columns, places: Places { batch, out, .. } } = self;
        let shape = Shape { grid, block: 32 * chunks.warps(), shared: chunks.shared(gives) };
        let arguments = args![*columns, **scan, batch.pointers, spans, out.ptr];
        assert!(device.launch_special(chunks.special(gives), shape, arguments), "a kernel that was loaded");
    }
}
