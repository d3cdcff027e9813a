//! A model's weight files, whatever their format: finding their tensors and cutting slices out of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kernels::ops::DType;
use model_files::{Format, WeightFiles};
use model_spec::nearest;

use super::cast::widen;
use super::files::{Files, Stored};
use super::gguf::GgufFiles;
use super::safetensors::SafetensorsFiles;
use super::torch::TorchFiles;
use super::{Chunk, Slice, Weights, mxfp4};
use crate::error::LoadError;

/// The weight files of a model.
pub(crate) struct Checkpoint {
    model: PathBuf,
    files: Box<dyn Files>,
    /// How many unpack what is quantised, and put together what lies in pieces.
    threads: usize,
}

impl Checkpoint {
    /// Opens the weight files of a model, a folder or a `.gguf` file, and reads their headers. They must be in the format `only`, if given.
    /// So many threads unpack what is quantised.
    pub(crate) fn open(model: &Path, only: Option<Format>, threads: usize) -> Result<Self, LoadError> {
        let WeightFiles { format, files } = WeightFiles::find(model)?;
        if let Some(only) = only
            && only != format
        {
            return Err(LoadError::Format { model: model.to_owned(), found: format.name(), asked: only.name() });
        }
        let files: Box<dyn Files> = match format {
            Format::Safetensors => Box::new(SafetensorsFiles::open(&files)?),
            Format::Torch => Box::new(TorchFiles::open(&files)?),
            Format::Gguf => Box::new(GgufFiles::open(&files, threads)?),
        };
        Ok(Self { model: model.to_owned(), files, threads })
    }

    /// The name in the files, and what is there. Files saved from a model without its head lack the first word: `h.0.ln_1` stands for
    /// `transformer.h.0.ln_1`.
    fn stored<'a>(&'a self, name: &'a str) -> Result<(&'a str, Stored<'a>), LoadError> {
        let named = |name: &'a str| Some((name, self.files.find(name)?));
        let inner = || named(name.split_once('.')?.1);
        named(name).or_else(inner).ok_or_else(|| LoadError::MissingTensor {
            dir: self.model.clone(),
            tensor: name.to_owned(),
            nearest: nearest(name, self.files.names()).map(str::to_owned),
        })
    }

    /// The name in the files and the element type of a slice that is there and has the right shape.
    fn checked<'a>(&'a self, slice: &'a Slice) -> Result<(&'a str, DType), LoadError> {
        let (name, Stored { file, shape, dtype }) = self.stored(&slice.location.tensor)?;
        let (file, tensor) = (file.to_owned(), name.to_owned());
        if !slice.fits(shape) {
            return Err(LoadError::Shape { file, tensor, expected: slice.stored_shape(), found: shape.to_vec() });
        }
        let dtype = dtype.map_err(|found| LoadError::ElementType { file, tensor, found })?;
        Ok((name, dtype))
    }
}

/// Two tensors that stand for one.
struct Packed {
    blocks: String,
    scales: String,
}

impl Checkpoint {
    /// The tensors that stand for the slice's, where that is not there itself; checks that they fit it.
    fn packed(&self, slice: &Slice) -> Result<Option<Packed>, LoadError> {
        let name = &slice.location.tensor;
        let (blocks, scales) = mxfp4::names(name);
        let (None, Some(stored), Some(factors)) =
            (self.files.find(name), self.files.find(&blocks), self.files.find(&scales))
        else {
            return Ok(None);
        };
        let whole = mxfp4::shape(stored.shape, factors.shape);
        if !whole.is_some_and(|shape| slice.fits(&shape)) {
            let (file, found) = (stored.file.to_owned(), stored.shape.to_vec());
            return Err(LoadError::Shape { file, tensor: blocks, expected: slice.stored_shape(), found });
        }
        for (tensor, dtype) in [(&blocks, &stored.dtype), (&scales, &factors.dtype)] {
            match dtype {
                Err(name) if name == "U8" => {}
                other => {
                    let (file, tensor) = (stored.file.to_owned(), tensor.clone());
                    let found = other.as_ref().map_or_else(String::clone, |dtype| format!("{dtype:?}"));
                    return Err(LoadError::ElementType { file, tensor, found });
                }
            }
        }
        Ok(Some(Packed { blocks, scales }))
    }

    /// Unpacks what the slice needs: its own blocks, or where it cuts through some, its matrix.
    fn unpack(&self, slice: &Slice, packed: &Packed) -> Result<Chunk<'_>, LoadError> {
        let (blocks, scales) = (self.files.bytes(&packed.blocks)?, self.files.bytes(&packed.scales)?);
        if let Some(whole) = slice.in_blocks(mxfp4::BLOCK) {
            let (blocks, scales) =
                (whole.cut(&blocks, mxfp4::BLOCK_BYTES, self.threads), whole.cut(&scales, 1, self.threads));
            return Ok(Chunk { dtype: DType::Bf16, bytes: Cow::Owned(mxfp4::decode(&blocks, &scales, self.threads)) });
        }
        let (index, count) = slice.location.stack.map_or((0, 1), |stack| (stack.index, stack.count));
        let mine = |bytes: &Cow<'_, [u8]>| index * bytes.len() / count..(index + 1) * bytes.len() / count;
        let bytes = mxfp4::decode(&blocks[mine(&blocks)], &scales[mine(&scales)], self.threads);
        let mut alone = slice.clone();
        alone.location.stack = None;
        Ok(Chunk {
            dtype: DType::Bf16,
            bytes: Cow::Owned(alone.cut(&bytes, DType::Bf16.size(), self.threads).into_owned()),
        })
    }
}

impl Weights for Checkpoint {
    fn check(&self, slice: &Slice) -> Result<DType, LoadError> {
        if self.packed(slice)?.is_some() {
            return Ok(DType::Bf16);
        }
        self.checked(slice).map(|(_, dtype)| dtype)
    }

    fn fetch(&self, slice: &Slice) -> Result<Chunk<'_>, LoadError> {
        if let Some(packed) = self.packed(slice)? {
            return self.unpack(slice, &packed);
        }
        let (name, dtype) = self.checked(slice)?;
        let bytes = match self.files.bytes(name)? {
            Cow::Borrowed(tensor) => slice.cut(tensor, dtype.size(), self.threads),
            Cow::Owned(tensor) if slice.is_whole() => Cow::Owned(tensor),
            Cow::Owned(tensor) => Cow::Owned(slice.cut(&tensor, dtype.size(), self.threads).into_owned()),
        };
        Ok(Chunk { dtype, bytes })
    }

    fn scalars(&self, ends: &[&str]) -> Result<BTreeMap<String, f32>, LoadError> {
        let names = self.files.names().into_iter().filter(|name| ends.iter().any(|end| name.ends_with(end)));
        names.map(|name| Ok((name.to_owned(), self.scalar(name)?))).collect()
    }
}

impl Checkpoint {
    fn scalar(&self, name: &str) -> Result<f32, LoadError> {
        let (name, Stored { file, shape, dtype }) = self.stored(name)?;
        let (file, tensor) = (file.to_owned(), name.to_owned());
        if shape.iter().product::<usize>() != 1 {
            return Err(LoadError::Shape { file, tensor, expected: vec![1], found: shape.to_vec() });
        }
        let dtype = dtype.map_err(|found| LoadError::ElementType { file, tensor, found })?;
        Ok(widen(dtype, &self.files.bytes(name)?)[0])
    }
}
