//! Why a GPU cannot be used.

/// Why a GPU cannot be opened, in one line that says what to do where something can be done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no driver.
    #[error("no NVIDIA driver (libcuda.so.1) on this machine")]
    NoDriver,
    /// The driver knows an older CUDA than is needed.
    #[error("the NVIDIA driver is too old: it knows CUDA up to {known}, and {needed} is needed")]
    DriverTooOld {
        /// Newest CUDA that it knows.
        known: String,
        /// Oldest that suffices.
        needed: String,
    },
    /// The driver shows this process no GPU (`CUDA_VISIBLE_DEVICES`).
    #[error("the NVIDIA driver finds no GPU")]
    NoGpu,
    /// The driver shows fewer GPUs.
    #[error("there is no GPU {ordinal}: the NVIDIA driver shows {count}")]
    NoSuchGpu {
        /// Which was asked for.
        ordinal: u32,
        /// How many it shows.
        count: u32,
    },
    /// The GPU is older than what kernels are written for.
    #[error("GPU {ordinal} ({name}) has compute capability {has}; {needed} is the lowest that is supported")]
    GpuTooOld {
        /// Which.
        ordinal: u32,
        /// Its name.
        name: String,
        /// Its compute capability.
        has: String,
        /// The lowest that suffices.
        needed: String,
    },
    /// The driver failed.
    #[error("{doing}: {reason}")]
    Driver {
        /// At what.
        doing: String,
        /// In its words.
        reason: String,
    },
    /// A library of CUDA's is absent, too old, or does not start; the text says how to get it.
    #[error("{0}")]
    Library(String),
    /// A kernel cannot be compiled or loaded; the text says which, and why.
    #[error("{0}")]
    Kernel(String),
    /// The device failed while it was opened; the text is its fault.
    #[error("{0}")]
    Device(String),
}
