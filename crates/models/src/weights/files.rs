//! Weight files of any format: the tensors in them, by name.

use std::borrow::Cow;
use std::path::Path;

use kernels::ops::DType;

use crate::error::LoadError;

/// Weight files of one format.
pub(super) trait Files {
    /// The tensor that `config.json`'s architecture calls so.
    fn find(&self, name: &str) -> Option<Stored<'_>>;
    /// Names of all tensors, for messages.
    fn names(&self) -> Vec<&str>;
    /// All elements of a tensor that [`find`](Self::find) found, row-major, little-endian; as they are stored where its type cannot be read.
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError>;
}

/// A tensor in a file.
pub(super) struct Stored<'a> {
    pub file: &'a Path,
    pub shape: &'a [usize],
    /// Element type once read, or the name of the one that cannot be.
    pub dtype: Result<DType, String>,
}
