//! Launches the selective scan: of sequences with few rows row by row (`selective_scan.cu`), of those with one
//! (`selective_scan_step.cu`) or many (`selective_scan_chunks.cu`) in ways of their own, where these can be.

use cudarc::driver::sys::CUdeviceptr;

use super::scan_chunks::{self, LEAST, SpanStates};
use super::scan_steps::{self, Steps};
use super::{Cols, Columns, States, THREADS, Values, state_type};
use crate::jit::layouts::twin;
use crate::options::SelectiveScan;
use crate::runtime::activations::View;
use crate::runtime::batch::Batch;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops;

/// Values of a channel that a lane keeps; and where it remembers many, so that more of them are read at once.
const EACH: usize = 4;
const EACH_OF_MANY: usize = 8;
const MANY: usize = 128;
/// Most lanes of a channel, and values that it remembers.
const LANES: usize = 32;
pub(crate) const STATE_DIM: usize = EACH_OF_MANY * LANES;
/// Rows that are worked on at once, where a sequence has so many.
const ROWS: usize = 4;

/// What a scan reads.
pub(crate) struct ScanInput {
    pub(crate) x: Cols,
    pub(crate) dt: Cols,
    pub(crate) b: Cols,
    pub(crate) c: Cols,
}

/// A scan with its vectors.
pub(crate) struct ScanCall {
    pub(crate) scan: ops::Scan,
    pub(crate) decay: Values,
    pub(crate) skip: Values,
    pub(crate) dt_bias: Option<Values>,
}

/// `struct Scan` of scan.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    state: CUdeviceptr,
    decay: CUdeviceptr,
    skip: CUdeviceptr,
    dt_bias: CUdeviceptr,
    least_dt: f32,
    most_dt: f32,
    pub(super) heads: u32,
    pub(super) head_dim: u32,
    groups: u32,
    pub(super) state_dim: u32,
    pub(super) each_value: u32,
    lanes: u32,
    stepped: u32,
    chunked: u32,
    state_type: u32,
}

twin!(Scan = "Scan" {
    state, decay, skip, dt_bias, least_dt, most_dt, heads, head_dim, groups, state_dim, each_value, lanes, stepped,
    chunked, state_type,
});

/// The sequences of a scan, and where it writes.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) states: &'a States,
    pub(crate) batch: &'a Batch,
    pub(crate) out: View,
}

/// How scans are done, and what they leave for each other.
#[derive(Default)]
pub(crate) struct Scans {
    pub(crate) how: SelectiveScan,
    spans: SpanStates,
}

impl Scans {
    pub(crate) fn new(how: SelectiveScan) -> Self {
        Self { how, ..Self::default() }
    }

    /// See [`ops::Scan`]. How a sequence is scanned depends on its own rows in this step alone.
    pub(crate) fn run(&mut self, device: &mut Device, input: ScanInput, call: ScanCall, places: Places<'_>) {
        let scan = call.scan;
        let mut parameters = Scan::new(call, places);
        let columns = input.columns(scan, places.out);
        let chunks = scan_chunks::of(device, &parameters, &columns, places.out);
        if let Some(chunks) = chunks.filter(|_| self.how == SelectiveScan::Chunked) {
            parameters.chunked = LEAST as u32;
            if !chunks.run(device, &parameters, columns, places, &mut self.spans) {
                parameters.chunked = u32::MAX;
            }
        }
        let steps = scan_steps::of(device, &parameters, &columns, places.out, places.states.dtype);
        if let Some(steps) = steps.filter(|_| self.how == SelectiveScan::Chunked) {
            self.step(device, steps, &mut parameters, columns, places);
        }
        if parameters.walks(places.batch) {
            walk(device, scan, &parameters, columns, places);
        }
    }

    /// Queues the sequences with one row, if the kernel for these can be compiled. Where there are none yet, it is
    /// compiled meanwhile.
    fn step(
        &self,
        device: &mut Device,
        steps: Steps,
        parameters: &mut Scan,
        columns: [Columns; 4],
        places: Places<'_>,
    ) {
        if places.batch.sequences() == places.batch.with_rows(2) {
            steps.wish(device);
        } else if steps.is_ready(device) {
            parameters.stepped = 1;
            steps.queue(device, parameters, columns, places);
        }
    }
}

/// Row by row, those that are not scanned in chunks.
fn walk(device: &mut Device, scan: ops::Scan, parameters: &Scan, columns: [Columns; 4], places: Places<'_>) {
    let Places { batch, out, .. } = places;
    let blocks = (scan.heads * scan.head_dim * parameters.lanes as usize).div_ceil(THREADS);
    let shape = Shape { grid: [blocks, batch.sequences()], block: THREADS, shared: 0 };
    let name = Name::in_file("selective_scan", function(scan, &columns, places, parameters.chunked), &[out.dtype]);
    device.launch(name, shape, args![columns, *parameters, batch.pointers, out.ptr]);
}

/// Values of a lane.
fn each(state_dim: usize) -> usize {
    if state_dim < MANY { EACH } else { EACH_OF_MANY }
}

/// Which walk: sequences of few rows want few registers a thread.
fn function(scan: ops::Scan, columns: &[Columns; 4], places: Places<'_>, chunked: u32) -> &'static str {
    let (Places { batch, out, .. }, [_, _, b, c]) = (places, columns);
    let (each, bytes) = (each(scan.state_dim), EACH * out.dtype.size());
    let fours = [b, c].iter().all(|columns| columns.is_aligned(bytes, out.dtype));
    let several = batch.with_rows(ROWS) > batch.with_rows(chunked as usize);
    match (each, fours && scan.state_dim.is_multiple_of(each)) {
        (EACH, false) => "selective_scan",
        (EACH, true) if several => "selective_scan_groups",
        (EACH, true) => "selective_scan_fours",
        (_, false) => "selective_scan_wide",
        (_, true) => "selective_scan_wide_fours",
    }
}

impl ScanInput {
    /// `struct Inputs` of scan.cuh.
    fn columns(&self, scan: ops::Scan, out: View) -> [Columns; 4] {
        let ops::Scan { heads, head_dim, groups, state_dim, .. } = scan;
        [
            self.x.columns(heads * head_dim, out),
            self.dt.columns(heads, out),
            self.b.columns(groups * state_dim, out),
            self.c.columns(groups * state_dim, out),
        ]
    }
}

impl Scan {
    /// Whether sequences are left to be walked: none, or those with one row, are stepped.
    fn walks(&self, batch: &Batch) -> bool {
        batch.with_rows(2 * self.stepped as usize) > batch.with_rows(self.chunked as usize)
    }

    /// Row by row, whatever a sequence has.
    fn new(ScanCall { scan, decay, skip, dt_bias }: ScanCall, Places { states, batch, .. }: Places<'_>) -> Self {
        let ops::Scan { heads, head_dim, groups, state_dim, dt_limit, .. } = scan;
        scan.check([decay.len, skip.len], dt_bias.map(|bias| bias.len), states.len);
        assert!(state_dim <= STATE_DIM, "{state_dim} values a channel");
        let lanes = state_dim.div_ceil(each(state_dim)).next_power_of_two().min(LANES);
        Self {
            state: states.ptr(batch),
            decay: decay.ptr,
            skip: skip.ptr,
            dt_bias: dt_bias.map_or(0, |bias| bias.ptr),
            least_dt: dt_limit.0,
            most_dt: dt_limit.1,
            heads: heads as u32,
            head_dim: head_dim as u32,
            groups: groups as u32,
            state_dim: state_dim as u32,
            each_value: u32::from(decay.len != heads),
            lanes: lanes as u32,
            stepped: 0,
            chunked: u32::MAX,
            state_type: state_type(states.dtype),
        }
    }
}
