//! Weight files in GGUF, mapped: under their own names, in their own order of rows, in blocks.

mod names;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

use kernels::ops::DType;
use model_files::{FilesError, Gguf, MappedFile, TensorInfo, TensorType};
use model_spec::GgufFamily;

use super::cast;
use super::files::{Element, Files, Tensor};
use crate::error::LoadError;

/// One file, or the parts of a split one.
pub(super) struct GgufFiles {
    family: &'static GgufFamily,
    heads: Heads,
    parts: Vec<(PathBuf, MappedFile)>,
    tensors: HashMap<String, TensorInfo>,
}

/// What a name stands for.
struct Found<'a> {
    tensor: &'a TensorInfo,
    /// One of so many equal parts, where it is not the whole tensor.
    expert: Option<(usize, usize)>,
}

impl<'a> Found<'a> {
    fn shape(&self) -> &'a [usize] {
        &self.tensor.shape[usize::from(self.expert.is_some())..]
    }

    /// Its bytes in the file.
    fn range(&self) -> Range<usize> {
        let (number, count) = self.expert.unwrap_or((0, 1));
        let bytes = self.tensor.bytes / count;
        let start = self.tensor.start + number * bytes;
        start..start + bytes
    }
}

/// Heads whose rows may be permuted.
struct Heads {
    query: usize,
    key: usize,
}

impl GgufFiles {
    /// Maps the files and reads their headers; the first one's metadata count.
    pub(super) fn open(files: &[PathBuf]) -> Result<Self, LoadError> {
        let gguf = Gguf::read_parts(files)?;
        let parts: Vec<(PathBuf, MappedFile)> =
            files.iter().map(|file| Ok((file.clone(), MappedFile::open(file)?))).collect::<Result<_, LoadError>>()?;
        for tensor in gguf.tensors() {
            let (file, map) = &parts[tensor.part];
            // The file may have changed since its header was read.
            if tensor.start + tensor.bytes > map.len() {
                let reason = format!("{:?} is cut off", tensor.name);
                return Err(FilesError::Damaged { file: file.clone(), reason }.into());
            }
        }
        let family = GgufFamily::of(&gguf)?;
        let tensors = gguf.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect();
        Ok(Self { family, heads: Heads::read(&gguf, family)?, parts, tensors })
    }

    /// The tensor of that name, or the expert of that name in a tensor of all.
    fn tensor(&self, name: &str) -> Option<Found<'_>> {
        let stored = names::stored(name, self.family)?;
        if let Some(tensor) = self.tensors.get(&stored.name) {
            return Some(Found { tensor, expert: None });
        }
        let names::Expert { tensor, number } = stored.expert?;
        let tensor = self.tensors.get(&tensor)?;
        let count = *tensor.shape.first().filter(|count| tensor.shape.len() > 1 && number < **count)?;
        Some(Found { tensor, expert: Some((number, count)) })
    }

    /// The elements as the architecture means them.
    fn elements<'a>(&self, name: &str, tensor: &TensorInfo, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut bytes = Cow::Borrowed(bytes);
        if let Some(heads) = self.permuted_heads(name) {
            bytes = Cow::Owned(halves_from_pairs(&bytes, tensor.shape[0], heads));
        }
        if self.family.norms_plus_one
            && names::is_norm(name)
            && let Element::Number(dtype) = element(tensor.kind)
        {
            let less_one = cast::widen(dtype, &bytes).into_iter().map(|x| x - 1.0);
            let mut out = Vec::with_capacity(bytes.len());
            cast::narrow(less_one, dtype, &mut out);
            bytes = Cow::Owned(out);
        }
        bytes
    }

    /// Heads of a projection whose rows are permuted.
    fn permuted_heads(&self, name: &str) -> Option<usize> {
        let heads = match names::projection(name)? {
            names::Projection::Query => self.heads.query,
            names::Projection::Key => self.heads.key,
        };
        self.family.rotates_pairs.then_some(heads)
    }
}

impl Files for GgufFiles {
    fn find<'a>(&'a self, name: &str) -> Option<Tensor<'a>> {
        let found = self.tensor(name)?;
        let (file, element) = (&self.parts[found.tensor.part].0, element(found.tensor.kind));
        Some(Tensor { file, name: name.to_owned(), shape: found.shape(), element })
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError> {
        let Some(found) = self.tensor(name) else { return Ok(Cow::default()) };
        let bytes = &self.parts[found.tensor.part].1[found.range()];
        Ok(self.elements(name, found.tensor, bytes))
    }
}

impl Heads {
    fn read(gguf: &Gguf, family: &GgufFamily) -> Result<Self, LoadError> {
        let read = |key: &str| gguf.whole(&format!("{}.attention.{key}", family.name));
        let query = read("head_count")?.unwrap_or(1).max(1) as usize;
        let key = read("head_count_kv")?.map_or(query, |heads| heads.max(1) as usize);
        Ok(Self { query, key })
    }
}

fn element(kind: TensorType) -> Element {
    match kind {
        TensorType::F32 => Element::Number(DType::F32),
        TensorType::F16 => Element::Number(DType::F16),
        TensorType::Bf16 => Element::Number(DType::Bf16),
        TensorType::Blocks(kind) => Element::Blocks(kind),
        TensorType::Mxfp4 => Element::Mxfp4,
        TensorType::Other(_) => Element::Unknown(format!("{} (decoded are {})", kind.name(), TensorType::decoded())),
    }
}

/// Rows of heads whose rotary pairs stand side by side, in the order in which each pair is split between the halves of
/// its head.
fn halves_from_pairs(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let (width, dim) = (bytes.len() / rows.max(1), rows / heads);
    let mut out = Vec::with_capacity(bytes.len());
    for row in 0..rows {
        let (head, within) = (row / dim.max(1), row % dim.max(1));
        // An odd head has no pairs to put back.
        let stored = if dim.is_multiple_of(2) { head * dim + within % (dim / 2) * 2 + within / (dim / 2) } else { row };
        out.extend_from_slice(&bytes[stored * width..(stored + 1) * width]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_halves() {
        // Two heads of four rows of one byte: the pairs (0, 1) and (2, 3) of each.
        assert_eq!(halves_from_pairs(&[0, 1, 2, 3, 10, 11, 12, 13], 8, 2), [0, 2, 1, 3, 10, 12, 11, 13]);
        assert_eq!(halves_from_pairs(&[0, 1, 2, 3, 4, 5], 3, 1), [0, 1, 2, 3, 4, 5]);
        assert_eq!(halves_from_pairs(&[], 0, 2), [0u8; 0]);
    }
}
