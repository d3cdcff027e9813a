//! Checkpoints in safetensors: one file, or shards with an index. Files are mapped, so a rank reads from disk only what it slices.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ::safetensors::{Dtype, SafeTensors};
use kernels::ops::DType;
use memmap2::Mmap;
use model_spec::{ConfigFile, nearest};

use super::{Chunk, Slice, Weights};
use crate::error::LoadError;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A folder's weight files, mapped.
pub(crate) struct Checkpoint {
    dir: PathBuf,
    shards: Vec<Shard>,
    tensors: HashMap<String, Tensor>,
}

struct Shard {
    path: PathBuf,
    map: Mmap,
}

struct Tensor {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Bytes of the shard.
    range: Range<usize>,
}

impl Checkpoint {
    /// Maps the weight files of a folder and reads their headers.
    pub(crate) fn open(dir: &Path) -> Result<Self, LoadError> {
        let mut checkpoint = Self { dir: dir.to_owned(), shards: Vec::new(), tensors: HashMap::new() };
        for name in shard_names(dir)? {
            checkpoint.add(dir.join(name))?;
        }
        Ok(checkpoint)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), LoadError> {
        let failed = |source| LoadError::Read { file: path.clone(), source };
        let file = File::open(&path).map_err(failed)?;
        // SAFETY: the mapping is read-only and private to this process; its bytes are only ever copied or converted, never given out as
        // anything with validity rules. If another process truncates the file meanwhile, the kernel ends this one (SIGBUS) rather than
        // letting it read wrong memory.
        let map = unsafe { Mmap::map(&file) }.map_err(failed)?;
        let damaged = |reason: String| LoadError::Damaged { file: path.clone(), reason };
        let (header_len, header) = SafeTensors::read_metadata(&map).map_err(|error| damaged(error.to_string()))?;
        let data = 8 + header_len;
        for (name, info) in header.tensors() {
            let range = data + info.data_offsets.0..data + info.data_offsets.1;
            let tensor = Tensor { shard: self.shards.len(), dtype: info.dtype, shape: info.shape.clone(), range };
            self.tensors.insert(name, tensor);
        }
        self.shards.push(Shard { path, map });
        Ok(())
    }

    fn tensor(&self, name: &str) -> Result<&Tensor, LoadError> {
        self.tensors.get(name).ok_or_else(|| LoadError::MissingTensor {
            dir: self.dir.clone(),
            tensor: name.to_owned(),
            nearest: nearest(name, self.tensors.keys().map(String::as_str)).map(str::to_owned),
        })
    }

    fn file(&self, tensor: &Tensor) -> PathBuf {
        self.shards[tensor.shard].path.clone()
    }
}

impl Weights for Checkpoint {
    fn check(&self, slice: &Slice) -> Result<DType, LoadError> {
        let name = &slice.tensor;
        let tensor = self.tensor(name)?;
        if tensor.shape != slice.shape {
            let (expected, found) = (slice.shape.clone(), tensor.shape.clone());
            return Err(LoadError::Shape { file: self.file(tensor), tensor: name.clone(), expected, found });
        }
        element_type(tensor.dtype).ok_or_else(|| LoadError::ElementType {
            file: self.file(tensor),
            tensor: name.clone(),
            found: format!("{:?}", tensor.dtype),
        })
    }

    fn fetch(&self, slice: &Slice) -> Result<Chunk<'_>, LoadError> {
        let dtype = self.check(slice)?;
        let tensor = self.tensor(&slice.tensor)?;
        let bytes = &self.shards[tensor.shard].map[tensor.range.clone()];
        Ok(Chunk { dtype, bytes: cut(bytes, dtype.size(), slice) })
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

fn element_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::Bf16),
        _ => None,
    }
}

/// The weight files of a folder, sorted.
fn shard_names(dir: &Path) -> Result<BTreeSet<String>, LoadError> {
    if dir.join(SINGLE).exists() {
        return Ok(BTreeSet::from([SINGLE.to_owned()]));
    }
    let path = dir.join(INDEX);
    let Some(index) = ConfigFile::read_optional(&path)? else {
        return Err(LoadError::NoWeights { dir: dir.to_owned(), found: other_weights(dir) });
    };
    let map = index.get("weight_map").and_then(|map| map.as_object());
    let map = map.ok_or_else(|| index.missing("weight_map", "an object from tensor names to files"))?;
    map.values()
        .map(|name| match name.as_str() {
            // A name with a slash could lead out of the folder.
            Some(name) if !name.contains('/') => Ok(name.to_owned()),
            _ => Err(LoadError::Damaged { file: path.clone(), reason: format!("weight_map names the file {name}") }),
        })
        .collect()
}

/// For the error: weights in a format that is not read.
fn other_weights(dir: &Path) -> String {
    let names = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut others: Vec<String> =
        names.filter(|n| [".bin", ".gguf", ".pt", ".pth"].iter().any(|e| n.ends_with(e))).collect();
    others.sort();
    if others.is_empty() { String::new() } else { format!(" (but {}, which cannot be read)", others.join(", ")) }
}
