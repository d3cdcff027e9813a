//! How a backend is opened.

use std::path::PathBuf;

use crate::comm::ranks::RankOptions;
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
    pub ranks: Option<RankOptions>,
    /// How products of many rows of 16 bits are done.
    pub products: Products,
    /// When a decode step of one row is one kernel.
    pub whole_steps: WholeSteps,
}

/// Who does products of many rows of 16 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Products {
    /// Whatever is the fastest on this machine: measured when nothing else is to be done
    /// ([`kernels::ops::Device::warm_up`]), at the latest by the second step that needs it, and remembered beside
    /// compiled kernels. What is not measured yet is cuBLASLt's, as it chooses itself.
    #[default]
    Fastest,
    /// The same, measured while the first product of a kind waits for it. For comparisons, and for tests.
    FastestAtOnce,
    /// cuBLASLt, as it chooses itself. For comparisons.
    Library,
    /// This crate's own kernel for any number of rows, wherever it can. For tests of it.
    Own,
    /// The one for 17 to 128 rows, wherever it can. For tests of it.
    Parts,
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
