//! Kernels that are compiled for one element type and shape, when a model first needs them: each is a function, alone
//! in its module, named like its file.

use crate::runtime::arch::Arch;
use kernels::ops::DType;

/// From here on the hardware has what these kernels use: matrix products of 16-bit types and asynchronous copies.
pub(crate) const LOWEST: Arch = Arch::new(8, 0);
/// The architecture of the files that speak of it.
pub(crate) const HOPPER: Arch = Arch::new(9, 0);

/// Most sizes that a kernel is compiled for.
const SIZES: usize = 8;

/// A file and the macros it is compiled with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Special {
    pub(crate) file: &'static str,
    /// `TYPE`.
    dtype: DType,
    /// Further macros.
    sizes: [(&'static str, usize); SIZES],
    /// See [`Self::with_cache`].
    pub(crate) with_cache: bool,
}

impl Special {
    /// At most [`SIZES`] sizes.
    pub(crate) fn new(file: &'static str, dtype: DType, sizes: &[(&'static str, usize)]) -> Self {
        let mut all = [("", 0); SIZES];
        all[..sizes.len()].copy_from_slice(sizes);
        Self { file, dtype, sizes: all, with_cache: false }
    }

    /// The same code, whose blocks begin where most of a multiprocessor's memory is cache. An empty multiprocessor is
    /// divided anew; with early launch few ever are, and what one kernel had as shared memory its successors lack as
    /// cache, and so as room for what they are reading, unless they wait until it is empty, as these do.
    pub(crate) fn with_cache(self) -> Self {
        Self { with_cache: true, ..self }
    }

    /// The same with one more macro.
    pub(crate) fn with(mut self, name: &'static str, value: usize) -> Self {
        let free = self.sizes.iter_mut().find(|(name, _)| name.is_empty());
        *free.expect("fewer macros than there is room for") = (name, value);
        self
    }

    /// The compiler's options.
    pub(crate) fn options(&self) -> Vec<String> {
        let sizes = self.sizes.iter().filter(|(name, _)| !name.is_empty());
        std::iter::once(format!("-DTYPE={}", self.dtype.name()))
            .chain(sizes.map(|(name, value)| format!("-D{name}={value}")))
            .collect()
    }
}
