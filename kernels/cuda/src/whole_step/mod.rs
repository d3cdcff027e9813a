//! A decode step of one row as one kernel (kernels/cuda/csrc/whole_step/whole_step.cu), which takes the place of a
//! captured step's graph where it is faster.

mod phase;
mod plan;
pub(crate) mod tactic;

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::fusion::op::Op;
use crate::jit::layouts::twin;
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::arch::Arch;
use crate::runtime::batch::Pointers;
use crate::runtime::context::{Context, Memory};
use crate::runtime::device::{Device, Shape, args};
use crate::weights::Staging;
use kernels::ops::{DType, ExpectedAttention, Heads};
use phase::{Input, Phase, Weights};
use plan::Plan;

/// Threads of a block, and its warps.
const THREADS: usize = 512;
const WARPS: usize = THREADS / 32;
/// Bytes of a stage of a warp's ring, and how many stages it has at most and at least.
const STAGE: usize = 2048;
const MOST_STAGES: usize = 6;
const LEAST_STAGES: usize = 2;
/// Shared memory that the kernel has beside what it asks for, at most.
const FIXED: usize = 9 << 10;
/// Bytes of the numbers of blocks at a barrier, and of those that are done, and of the best logit's key.
const ARRIVALS: usize = 256;

/// `struct Step` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    batch: Pointers,
    rest: Rest,
    to: BestTo,
}

twin!(Step = "Step" { batch, rest: "last", to: "best" });

/// Where the token of the best logit goes: the slot's last, and the host's. Zeros where tokens are chosen otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BestTo {
    pub(crate) last: CUdeviceptr,
    pub(crate) result: CUdeviceptr,
}

twin!(BestTo = "BestTo" { last: "best", result });

/// What does not change from step to step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    last: CUdeviceptr,
    parts: CUdeviceptr,
    scales: CUdeviceptr,
    arrivals: CUdeviceptr,
    joined: CUdeviceptr,
}

twin!(Rest = "Rest" { last, parts, scales, arrivals, joined });

/// A step ready to be launched any number of times. It names memory by address: see [`WholeStep::is_current`].
#[derive(Debug)]
pub(crate) struct WholeStep {
    context: Arc<Context>,
    /// What [`Context::frees`] was.
    frees: u64,
    special: Special,
    shape: Shape,
    phases: Memory,
    weights: Memory,
    /// What [`Rest`] points into; never read by the host.
    _scratch: Memory,
    counts: [u32; 3],
    rest: Rest,
}

/// A step that one kernel can do, and that kernel.
pub(crate) struct Planned {
    plan: Plan,
    pub(crate) special: Special,
}

impl Planned {
    /// Of a step's operations; or why one kernel cannot do them.
    pub(crate) fn new(context: &Context, ops: &[Op]) -> Result<Self, String> {
        if context.arch < HOPPER {
            return Err("it takes compute capability 9.0".to_owned());
        }
        let plan = plan::plan(ops, context.multiprocessors)?;
        Ok(Self { special: plan.shape.special(plan.times()), plan })
    }
}

impl WholeStep {
    /// A step ready to be launched, or why it cannot be. `last`: each slot's last token.
    pub(crate) fn new(
        device: &mut Device,
        staging: &mut Staging,
        Planned { plan, special }: Planned,
        last: CUdeviceptr,
    ) -> Result<Self, String> {
        let blocks = device.context.multiprocessors;
        let (stages, shared) = plan.ring(device.context.shared_of_block)?;
        let shape = Shape { grid: [blocks, 1], block: THREADS, shared };
        if device.blocks_at_once(special, shape).is_none_or(|most| most == 0) {
            return Err("its kernel cannot be compiled, or does not fit".to_owned());
        }
        let (mut phases, mut weights) = (Vec::new(), Vec::new());
        plan.phases.iter().for_each(|phase| phase.write(&mut phases));
        plan.weights.iter().for_each(|matrix| matrix.write(&mut weights));
        let counts = [plan.phases.len(), plan.weights.len(), stages].map(|count| count as u32);
        // As many (split, key head) pairs as there are blocks at most.
        let heads = blocks * plan.shape.group;
        let sizes =
            [ARRIVALS, blocks * 4, heads * 8, heads * plan.shape.v_dim * 4].map(|bytes| bytes.next_multiple_of(256));
        let gone = || "the device's memory does not suffice".to_owned();
        let scratch = device.allocate(sizes.iter().sum(), "a whole step").ok_or_else(gone)?;
        device.clear(&scratch);
        let mut at = scratch.ptr;
        let [arrivals, joined, scales, parts] = sizes.map(|bytes| {
            let place = at;
            at += bytes as u64;
            place
        });
        Ok(Self {
            phases: staging.load(device, &phases).ok_or_else(gone)?,
            weights: staging.load(device, &weights).ok_or_else(gone)?,
            frees: device.context.frees(),
            context: device.context.clone(),
            special,
            shape,
            counts,
            rest: Rest { last, parts, scales, arrivals, joined },
            _scratch: scratch,
        })
    }

    /// Whether no memory was freed since this was made: else it may name some that is another's by now.
    pub(crate) fn is_current(&self) -> bool {
        self.frees == self.context.frees()
    }

    /// Queues all of it, for a batch that is there by then; and the choice of the best token, if there is somewhere for
    /// it to go.
    pub(crate) fn launch(&self, device: &mut Device, batch: Pointers, to: Option<BestTo>) {
        let [phases, matrices, stages] = self.counts;
        let step = Step { batch, rest: self.rest, to: to.unwrap_or_default() };
        let arguments = args![self.phases.ptr, phases, self.weights.ptr, matrices, stages, step];
        device.launch_at_once(self.special, self.shape, arguments);
    }
}

impl Plan {
    /// Float4s of a normed row that a thread has, at most.
    fn times(&self) -> usize {
        let normed = self.phases.iter().filter(|phase| phase.input == Input::Normed);
        normed.map(|phase| times(phase.width as usize)).max().unwrap_or(1)
    }

    /// Stages of each warp's ring, and a block's shared memory.
    fn ring(&self, most_shared: usize) -> Result<(usize, usize), String> {
        // A row, behind which a norm's weights lie.
        let bytes = |phase: &Phase| phase.width as usize * if phase.input == Input::Normed { 6 } else { 2 };
        let row = self.phases.iter().map(bytes).max().unwrap_or(0);
        let fixed = (self.weights.len() * Weights::BYTES).next_multiple_of(128) + row.max(self.shape.heads_bytes());
        let left = most_shared.saturating_sub(fixed + FIXED);
        let stages = (left / (WARPS * STAGE)).min(MOST_STAGES);
        if stages < LEAST_STAGES {
            return Err(format!("{fixed} bytes of shared memory beside its weights'"));
        }
        Ok((stages, stages * WARPS * STAGE + fixed))
    }
}

/// The same for rows of `width` columns.
fn times(width: usize) -> usize {
    width.div_ceil(4 * THREADS)
}

impl plan::Shape {
    fn special(&self, times: usize) -> Special {
        let Self { dtype, dim, v_dim, group, .. } = *self;
        Special::new("whole_step", dtype, &[("DIM", dim), ("V_DIM", v_dim), ("GROUP", group), ("TIMES", times)])
    }

    /// `struct Heads` of the kernel.
    fn heads_bytes(&self) -> usize {
        let Self { dim, v_dim, group, .. } = *self;
        let rows = 2 * (group * (dim + 32) + dim + v_dim) + 2 * 4 * (group + 1) * dim;
        let addends = [16, 16, 16, 8, 8].get(group).copied().unwrap_or(4);
        (rows + 4 * addends * group * (v_dim + 4) + 4 * (3 * WARPS * 8 + 2 * 8)).next_multiple_of(128)
    }
}

/// The kernel for steps with such attention, if the rest of them is what one kernel can do.
pub(crate) fn special(
    arch: Arch,
    ExpectedAttention { heads, hidden, compute, cache, .. }: ExpectedAttention,
) -> Option<Special> {
    let Heads { q, kv, dim, v_dim } = heads;
    let shape = plan::Shape { dtype: compute, dim, v_dim, group: q / kv, kv_heads: kv };
    (arch >= HOPPER && cache == compute && shape.fits()).then(|| shape.special(times(hidden)))
}

/// The usual shapes, to be compiled ahead: heads of 64 and 128 in rows of up to 4,096.
pub(crate) fn usual(arch: Arch) -> Vec<Special> {
    let shapes = [(128, 1, 2), (128, 2, 1), (128, 2, 2), (128, 4, 2), (128, 6, 1), (128, 7, 2), (64, 4, 1), (64, 7, 1)];
    let special =
        |(dim, group, times)| plan::Shape { dtype: DType::Bf16, dim, v_dim: dim, group, kv_heads: 1 }.special(times);
    if arch < HOPPER { Vec::new() } else { shapes.map(special).to_vec() }
}
