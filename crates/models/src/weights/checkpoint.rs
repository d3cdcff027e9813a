//! A model's weight files, whatever their format: finding their tensors and cutting slices out of them.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use kernels::ops::DType;
use model_files::{Format, WeightFiles};
use model_spec::nearest;

use super::gguf::GgufFiles;
use super::safetensors::SafetensorsFiles;
use super::torch::TorchFiles;
use super::{Chunk, Slice, Weights};
use crate::error::LoadError;

/// The weight files of a model.
pub(crate) struct Checkpoint {
    model: PathBuf,
    files: Box<dyn Files>,
}

/// Weight files of one format.
pub(super) trait Files {
    /// The tensor that `config.json`'s architecture calls so.
    fn find(&self, name: &str) -> Option<Stored<'_>>;
    /// Names of all tensors, for messages.
    fn names(&self) -> Vec<&str>;
    /// All elements of a tensor that [`find`](Self::find) found and has an element type, row-major, little-endian.
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError>;
}

/// A tensor in a file.
pub(super) struct Stored<'a> {
    pub file: &'a Path,
    pub shape: &'a [usize],
    /// Element type once read, or the name of the one that cannot be.
    pub dtype: Result<DType, String>,
}

impl Checkpoint {
    /// Opens the weight files of a model, a folder or a `.gguf` file, and reads their headers.
    pub(crate) fn open(model: &Path) -> Result<Self, LoadError> {
        let WeightFiles { format, files } = WeightFiles::find(model)?;
        let files: Box<dyn Files> = match format {
            Format::Safetensors => Box::new(SafetensorsFiles::open(&files)?),
            Format::Torch => Box::new(TorchFiles::open(&files)?),
            Format::Gguf => Box::new(GgufFiles::open(&files)?),
        };
        Ok(Self { model: model.to_owned(), files })
    }

    fn stored(&self, name: &str) -> Result<Stored<'_>, LoadError> {
        self.files.find(name).ok_or_else(|| LoadError::MissingTensor {
            dir: self.model.clone(),
            tensor: name.to_owned(),
            nearest: nearest(name, self.files.names()).map(str::to_owned),
        })
    }
}

impl Weights for Checkpoint {
    fn check(&self, slice: &Slice) -> Result<DType, LoadError> {
        let name = &slice.tensor;
        let Stored { file, shape, dtype } = self.stored(name)?;
        let (file, tensor) = (file.to_owned(), name.clone());
        if shape != slice.shape {
            return Err(LoadError::Shape { file, tensor, expected: slice.shape.clone(), found: shape.to_vec() });
        }
        dtype.map_err(|found| LoadError::ElementType { file, tensor, found })
    }

    fn fetch(&self, slice: &Slice) -> Result<Chunk<'_>, LoadError> {
        let dtype = self.check(slice)?;
        let bytes = match self.files.bytes(&slice.tensor)? {
            Cow::Borrowed(tensor) => cut(tensor, dtype.size(), slice),
            Cow::Owned(tensor) if tensor.len() == slice.elements() * dtype.size() => Cow::Owned(tensor),
            Cow::Owned(tensor) => Cow::Owned(cut(&tensor, dtype.size(), slice).into_owned()),
        };
        Ok(Chunk { dtype, bytes })
    }
}

/// The slice's bytes of a tensor: borrowed where they lie in one piece.
fn cut<'a>(tensor: &'a [u8], element: usize, slice: &Slice) -> Cow<'a, [u8]> {
    let width = slice.width() * element;
    if slice.cols.len() == slice.width() {
        return Cow::Borrowed(&tensor[slice.rows.start * width..slice.rows.end * width]);
    }
    let mut bytes = Vec::with_capacity(slice.elements() * element);
    for row in slice.rows.clone() {
        let start = row * width;
        bytes.extend_from_slice(&tensor[start + slice.cols.start * element..start + slice.cols.end * element]);
    }
    Cow::Owned(bytes)
}
