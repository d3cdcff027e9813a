//! The CUDA backend. Nothing of CUDA is needed to build it: driver, NVRTC and cuBLASLt are found at run time
//! (`runtime`), kernels are compiled for the GPU found (`jit`), and one stream runs all operations in order. See
//! `kernels/cuda/README.md`.
//!
//! What holds of [`ops::Backend`]'s guarantee: with f32 weights, activations and cache a row's bits never depend on the
//! rows beside it. With 16-bit weights how a product is done follows from the number of rows, so a row's last bits may
//! change with its company; and from what was measured on this machine (`autotune`), so they may differ from another
//! machine's. Linear attention of 16-bit types takes a sequence's rows of a step in chunks where they are many, so how
//! a prompt is cut into steps shows in its last bits there. In a process the same rows are always multiplied in the
//! same way once that is measured; a machine that has never measured them may change the way once, between two steps.

mod attention;
mod autotune;
mod comm;
mod error;
mod fusion;
mod gemm;
mod graph;
mod jit;
mod latent;
mod layers;
mod moe;
mod operations;
mod options;
mod recurrent;
mod runtime;
mod sampling;
mod weights;
mod whole_step;

pub use comm::ranks::AllReduce;
pub use error::OpenError;
pub use jit::compile_queue::{Compilation, Compilations};
pub use jit::compiler::{Filled, FirstKernels};
pub use jit::prebuilt::fill_cache;
pub use options::{
    AttentionBackend, CascadeAttention, CudaOptions, GemmTactics, LatentForm, LinearAttention, SelectiveScan,
    WholeSteps,
};
pub use runtime::arch::Arch;
pub use runtime::joined::Joined;
pub use runtime::libraries::{Folders, Surroundings};

use attention::Attention;
use attention::kv::Kv;
use autotune::background::BackgroundTuner;
use autotune::tactics::TacticCache;
use comm::nccl::Nccl;
use comm::ranks::Ranks;
use fusion::op::Op;
use fusion::pass::Pass;
use fusion::split_norm::Squares;
use gemm::cublaslt::Blas;
use gemm::matmul::Matmul;
use graph::captures::Captures;
use jit::specialization::Special;
use kernels::ops::{Act, CaptureOwner, ExpertRouting, MatrixGroup, Vector, check_experts};
use latent::attention_expanded::Room;
use layers::groups::Group;
use moe::experts;
use moe::routing::{Choices, ExpertStorage};
use recurrent::selective_scan::Scans;
use runtime::activations::{ActivationBuffers, View};
use runtime::context::{Context, Memory};
use runtime::device::Device;
use runtime::{batch, context};
use weights::{Staging, Weights, noise};

/// Experts, as operations name them.
struct ExpertWeights {
    w: MatrixGroup,
    bias: Option<Vector>,
    /// Those that read what these give, which nothing else does.
    reader: Option<MatrixGroup>,
}

/// How many GPUs the driver shows this process (`CUDA_VISIBLE_DEVICES`); at least one, or why there is none.
pub fn gpus() -> Result<u32, OpenError> {
    context::count()
}

/// How NVML names the GPU with this number: `GPU-` and its UUID.
pub fn gpu_uuid(ordinal: u32) -> Result<String, OpenError> {
    context::uuid(ordinal)
}

/// One GPU. After a fault ([`ops::Device::fault`]) operations do nothing.
pub struct CudaBackend {
    /// First to be dropped: a kernel that waits for another rank would keep the device from ending.
    ranks: Option<Ranks>,
    device: Device,
    first: FirstKernels,
    acts: ActivationBuffers,
    batch: batch::Batch,
    slots: sampling::Slots,
    matmul: Matmul,
    tuner: BackgroundTuner,
    staging: Staging,
    levels: noise::Levels,
    matrices: Vec<Weights>,
    groups: Vec<Group>,
    /// What their inputs are rounded to.
    rounded_inputs: Option<Memory>,
    /// What experts gave for the product of others as that reads it.
    prepared_inner: Option<(Act, MatrixGroup)>,
    /// Whether any of these are packed, which tiles of rows are made for then.
    experts: ExpertStorage,
    choices: Vec<Choices>,
    tables: Vec<Weights>,
    vectors: Vec<weights::Vector>,
    caches: Vec<Kv>,
    states: Vec<recurrent::States>,
    chunks: recurrent::delta_chunks::ChunkScratch,
    linear_attention: LinearAttention,
    attention: Attention,
    latent_form: LatentForm,
    /// Room for keys and values that latent attention makes anew.
    expanded: Vec<Room>,
    /// Kernels that a first step needs, since they were ordered.
    first_needed: Vec<Special>,
    lora: layers::lora::Adapters,
    /// Operations that may still be fused with what follows.
    pass: Pass,
    squares: Squares,
    captures: Captures,
    /// Where the step under capture leaves its logits.
    captured_logits: Option<View>,
    /// Whose step is under way, if it was begun padded.
    padded_for: Option<CaptureOwner>,
    whole_steps: WholeSteps,
    scans: Scans,
}

// SAFETY: handles of the driver and of cuBLASLt may be used by any thread, one at a time; `&mut self` sees to that. The
// context is made current wherever a step or a load begins.
unsafe impl Send for CudaBackend {}

impl CudaBackend {
    /// Opens a GPU, or says in one line why it cannot be used.
    pub fn open(options: &CudaOptions) -> Result<Self, OpenError> {
        let cache = options.kernel_cache.as_deref();
        let nccl = options.ranks.map(|ranks| Nccl::open(&options.folders).map(|nccl| (nccl, ranks)));
        let nccl = nccl.transpose().map_err(OpenError::Library)?;
        let context = Context::open(options.ordinal)?;
        let blas = Blas::start(&options.folders, &context)?;
        let (mut device, first) = Device::open(context, &options.folders, cache)?;
        let blas = blas.open(&mut device)?;
        let matmul = Matmul::new(blas, TacticCache::new(&device.context, cache, options.gemms));
        let attention = Attention::new(options.attention, options.cascade);
        let captures = Captures::new(attention.cascades());
        Ok(Self {
            ranks: nccl.map(|(nccl, options)| Ranks::new(nccl, options)),
            device,
            first,
            acts: ActivationBuffers::default(),
            batch: batch::Batch::default(),
            slots: sampling::Slots::default(),
            matmul,
            tuner: BackgroundTuner::default(),
            staging: Staging::default(),
            levels: noise::Levels::default(),
            matrices: Vec::new(),
            groups: Vec::new(),
            rounded_inputs: None,
            prepared_inner: None,
            experts: ExpertStorage::Numbers,
            choices: Vec::new(),
            tables: Vec::new(),
            vectors: Vec::new(),
            caches: Vec::new(),
            states: Vec::new(),
            chunks: recurrent::delta_chunks::ChunkScratch::default(),
            linear_attention: options.linear_attention,
            attention,
            latent_form: options.latent_form,
            expanded: Vec::new(),
            first_needed: Vec::new(),
            lora: layers::lora::Adapters::default(),
            pass: Pass::default(),
            squares: Squares::default(),
            captures,
            captured_logits: None,
            padded_for: None,
            whole_steps: options.whole_steps,
            scans: Scans::new(options.scans),
        })
    }

    /// Tells other threads whether kernels are being compiled.
    pub fn compilations(&self) -> Compilations {
        self.device.compilations()
    }

    /// What it takes to have its first kernels, as it was when it was opened.
    pub fn first_kernels(&self) -> &FirstKernels {
        &self.first
    }

    /// Queues products with experts; false, and nothing happens, where they cannot be gated at once.
    fn multiply_experts(
        &mut self,
        x: Act,
        ExpertWeights { w, bias, reader }: ExpertWeights,
        choice: ExpertRouting,
        keep: experts::Keep,
        out: Act,
    ) -> bool {
        assert_ne!(x, out, "a product cannot overwrite its input");
        self.append(Op::Opaque("expert_matmul"));
        let given = self.prepared_inner.take();
        let is_prepared = given.is_some_and(|prepared| prepared == (x, w));
        let (x, group, choices) = (self.acts.view(x), &self.groups[w.0 as usize], &self.choices[choice.0 as usize]);
        let pairs = choices.pairs();
        let biases = bias.map(|vector| self.vectors[vector.0 as usize].len);
        let shape = [group.count, group.n, group.k];
        check_experts([x.rows, x.width], shape, biases, [choices.rows, choices.top_k]);
        assert_eq!(group.count, choices.among, "experts, and what rows chose among");
        let (out, inner) = (self.acts.target(out, pairs, group.n / keep.columns()), out);
        let bias = self.vector(bias);
        let mut call = experts::Call { x, is_prepared, group, bias, choices, keep, out, prepares: false, room: 0 };
        if let Some(reader) = reader
            && call.may_prepare(&mut self.device, &self.groups[reader.0 as usize])
        {
            call.prepares = true;
            self.prepared_inner = Some((inner, reader));
        }
        let bytes = call.room_bytes(&self.device);
        call.room = self.device.reserve(&mut self.rounded_inputs, bytes, "rounded inputs of experts");
        experts::expert_matmul(&mut self.device, &call)
    }
}
