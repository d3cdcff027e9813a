//! How a backend is opened.

use std::path::PathBuf;

use crate::comm::ranks::AllReduce;
use crate::runtime::libraries::Folders;

/// How to open a [`crate::CudaBackend`].
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which GPU, as the driver counts those it shows.
    pub ordinal: u32,
    /// Where CUDA's libraries may be, beside the system's places.
    pub folders: Folders,
    /// Folder of compiled kernels; absent: they are compiled at each start.
    pub kernel_cache: Option<PathBuf>,
    /// The device is to meet those of other ranks; that takes NCCL.
    pub ranks: Option<AllReduce>,
    /// Which tactics GEMMs of many rows of 16 bits may have.
    pub gemms: GemmTactics,
    /// When a decode step of one row is one kernel.
    pub whole_steps: WholeSteps,
    /// Which attention kernels serve.
    pub attention: AttentionBackend,
    /// When keys and values that sequences share are read once for all of them.
    pub cascade: CascadeAttention,
    /// How Mamba 2's scan is done.
    pub scans: SelectiveScan,
    /// How linear attention takes prompts of 16-bit types.
    pub linear_attention: LinearAttention,
    /// In which form latent attention takes prompts.
    pub latent_form: LatentForm,
}

/// Which tactics GEMMs of many rows of 16 bits may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GemmTactics {
    /// The fastest on this machine: measured when nothing else is to be done ([`kernels::ops::Device::warm_up`]), at
    /// the latest by the second step that needs it, and remembered beside compiled kernels. A GEMM that is not measured
    /// yet is cuBLASLt's, with its own first choice.
    #[default]
    Autotuned,
    /// The same, measured while the first GEMM of a kind waits for it. For comparisons, and for tests.
    AutotunedAtOnce,
    /// cuBLASLt with its own first choice. For comparisons.
    Library,
    /// `matmul_wgmma`, wherever it fits. For tests of it.
    Wgmma,
    /// `matmul_split_k`, wherever it fits. For tests of it.
    SplitK,
}

/// Which attention kernels serve, as `--attention-backend` names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttentionBackend {
    /// The best that is for a layer's shape and types on this device.
    #[default]
    Auto,
    /// Prompts by `attention_prefill_hopper`, single rows by `attention_decode`.
    Hopper,
    /// Prompts by `attention_prefill`, single rows by `attention_decode`.
    Mma,
    /// `attention`: one head of one row at a time, for any shape and type.
    Plain,
}

impl AttentionBackend {
    /// Whether the kernel for Hopper may serve.
    pub(crate) fn may_be_hopper(self) -> bool {
        matches!(self, Self::Auto | Self::Hopper)
    }

    /// As the flag spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Hopper => "hopper",
            Self::Mma => "mma",
            Self::Plain => "plain",
        }
    }
}

/// When decode attention reads the blocks that sequences share once for all of them (cascade attention).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CascadeAttention {
    /// Nowhere.
    Never,
    /// Where that saves more than it costs, once its kernels are compiled.
    #[default]
    Paying,
    /// Wherever two sequences share a block. For comparisons, and for tests.
    Always,
}

/// How linear attention takes prompts of 16-bit types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinearAttention {
    /// In chunks on tensor cores, where a sequence has enough rows in a step.
    #[default]
    Chunks,
    /// Row by row, as f32. For comparisons.
    Rows,
}

/// In which form latent attention takes prompts, on Hopper and of 16-bit types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LatentForm {
    /// Sequence by sequence that which takes fewer operations.
    #[default]
    Cheaper,
    /// Queries attend in the latent space, as single rows do. For comparisons.
    Absorbed,
    /// Keys and values of each head are made anew, wherever a sequence has several rows. For comparisons, and for
    /// tests.
    Expanded,
}

/// When a decode step of one row is one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WholeSteps {
    /// Nowhere.
    #[default]
    Never,
    /// Where that is faster, by some runs of both.
    Faster,
    /// Wherever it can be.
    Always,
}

/// How Mamba 2's scan is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SelectiveScan {
    /// Prompts in chunks on tensor cores and single rows with the copy engine, where type, shape and device are for
    /// that.
    #[default]
    Chunked,
    /// Row by row, as in exact types. For comparisons.
    RowByRow,
}
