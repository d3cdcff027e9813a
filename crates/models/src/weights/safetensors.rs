//! Weight files in safetensors, mapped or read.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::path::PathBuf;

use ::safetensors::{Dtype, SafeTensors};
use kernels::ops::DType;
use model_files::{FilesError, MappedFile};

use super::files::{Code, Element, Files, Tensor};
use crate::error::LoadError;

/// One file, or the shards of a model.
#[derive(Default)]
pub(super) struct SafetensorsFiles {
    shards: Vec<Shard>,
    tensors: HashMap<String, Entry>,
}

struct Shard {
    path: PathBuf,
    bytes: Content,
}

/// A file's bytes.
enum Content {
    Mapped(MappedFile),
    /// Of a file that may be overwritten while it is used.
    Read(Vec<u8>),
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
        }
    }
}

struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Bytes of the shard.
    range: Range<usize>,
}

impl SafetensorsFiles {
    /// Maps the files and reads their headers.
    pub(super) fn open(files: &[PathBuf]) -> Result<Self, LoadError> {
        let mut all = Self::default();
        for path in files {
            all.add(path.clone(), Content::Mapped(MappedFile::open(path)?))?;
        }
        Ok(all)
    }

    /// A file that was read from `path`.
    pub(super) fn of_bytes(path: PathBuf, bytes: Vec<u8>) -> Result<Self, LoadError> {
        let mut all = Self::default();
        all.add(path, Content::Read(bytes))?;
        Ok(all)
    }

    fn add(&mut self, path: PathBuf, bytes: Content) -> Result<(), LoadError> {
        let damaged = |reason: String| FilesError::Damaged { file: path.clone(), reason };
        let (header_len, header) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(error.to_string()))?;
        let data = 8 + header_len;
        for (name, info) in header.tensors() {
            let range = data + info.data_offsets.0..data + info.data_offsets.1;
            let tensor = Entry { shard: self.shards.len(), dtype: info.dtype, shape: info.shape.clone(), range };
            self.tensors.insert(name, tensor);
        }
        self.shards.push(Shard { path, bytes });
        Ok(())
    }
}

impl Files for SafetensorsFiles {
    fn find<'a>(&'a self, name: &str) -> Option<Tensor<'a>> {
        let Entry { shard, dtype, shape, .. } = self.tensors.get(name)?;
        Some(Tensor { file: &self.shards[*shard].path, name: name.to_owned(), shape, element: element(*dtype) })
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError> {
        let bytes = self.tensors.get(name).map(|tensor| &self.shards[tensor.shard].bytes[tensor.range.clone()]);
        Ok(Cow::Borrowed(bytes.unwrap_or_default()))
    }
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::Number(DType::F32),
        Dtype::F16 => Element::Number(DType::F16),
        Dtype::BF16 => Element::Number(DType::Bf16),
        Dtype::F8_E4M3 => Element::Code(Code::E4m3),
        Dtype::U8 => Element::Code(Code::U8),
        Dtype::I8 => Element::Code(Code::I8),
        Dtype::I32 => Element::Code(Code::I32),
        other => Element::Unknown(format!("{other:?}")),
    }
}
