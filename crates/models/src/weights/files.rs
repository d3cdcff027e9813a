//! Weight files of any format: the tensors in them, by name.

use std::borrow::Cow;
use std::path::Path;

use kernels::ops::{DType, GgmlType};
use model_spec::nearest;

use super::cast::widen;
use super::{Slice, TensorLocation};
use crate::error::LoadError;

/// Weight files of one format.
pub(crate) trait Files: Sync {
    /// The tensor that `config.json`'s architecture calls so.
    fn find<'a>(&'a self, name: &str) -> Option<Tensor<'a>>;
    /// Names of all tensors, for messages.
    fn names(&self) -> Vec<&str>;
    /// All elements of a tensor that [`find`](Self::find) found, row-major, little-endian; as they are stored where its
    /// type is no number's.
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError>;
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Tensor<'a> {
    pub file: &'a Path,
    /// What [`Files`] calls it.
    pub name: String,
    pub shape: &'a [usize],
    pub element: Element,
}

/// What a tensor's elements are once read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// Numbers.
    Number(DType),
    /// Parts of numbers, which a quantisation method puts together.
    Code(Code),
    /// Elements of a GGUF file's blocks.
    Blocks(GgmlType),
    /// The same of four-bit floats, 32 of which share a power of two.
    Mxfp4,
    /// What has this name, and nobody can read.
    Unknown(String),
}

/// Elements that quantised weights consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// 8-bit floats: [`kernels::e4m3`].
    E4m3,
    /// Bytes.
    U8,
    /// Bytes with a sign.
    I8,
    /// Words of four bytes.
    I32,
}

impl Element {
    /// For messages.
    fn name(&self) -> String {
        match self {
            Self::Number(dtype) => dtype.name().to_uppercase(),
            Self::Code(Code::E4m3) => "F8_E4M3".to_owned(),
            Self::Code(Code::U8) => "U8".to_owned(),
            Self::Code(Code::I8) => "I8".to_owned(),
            Self::Code(Code::I32) => "I32".to_owned(),
            Self::Blocks(kind) => format!("{kind:?}"),
            Self::Mxfp4 => "MXFP4".to_owned(),
            Self::Unknown(name) => name.clone(),
        }
    }
}

impl Tensor<'_> {
    /// The error for another shape than `expected`.
    pub(crate) fn misshapen(&self, expected: Vec<usize>) -> LoadError {
        let (file, tensor) = (self.file.to_owned(), self.name.clone());
        LoadError::Shape { file, tensor, expected, found: self.shape.to_vec() }
    }

    /// The error for content that makes no sense.
    pub(crate) fn invalid(&self, reason: &'static str) -> LoadError {
        LoadError::Tensor { file: self.file.to_owned(), tensor: self.name.clone(), reason }
    }

    /// The error for elements of a type that cannot be used here.
    pub(crate) fn mistyped(&self) -> LoadError {
        let (file, tensor) = (self.file.to_owned(), self.name.clone());
        LoadError::ElementType { file, tensor, found: self.element.name() }
    }

    /// The type of its numbers.
    pub(crate) fn dtype(&self) -> Result<DType, LoadError> {
        match self.element {
            Element::Number(dtype) => Ok(dtype),
            _ => Err(self.mistyped()),
        }
    }
}

/// The tensors of a model, for whoever reads weights out of them.
#[derive(Clone, Copy)]
pub(crate) struct Tensors<'a> {
    pub files: &'a dyn Files,
    /// For messages.
    pub model: &'a Path,
    /// How many decode, and put together what lies in pieces.
    pub threads: usize,
}

impl<'a> Tensors<'a> {
    /// A tensor, if it is there. Files saved from a model without its head lack the first word: `h.0.ln_1` stands for
    /// `transformer.h.0.ln_1`. Other writers' names count too: see [`other_name`].
    pub(crate) fn get(self, name: &str) -> Option<Tensor<'a>> {
        let find = |name: &str| self.files.find(name).or_else(|| self.files.find(name.split_once('.')?.1));
        find(name).or_else(|| find(&other_name(name)?))
    }

    /// A tensor that must be there.
    pub(crate) fn find(self, name: &str) -> Result<Tensor<'a>, LoadError> {
        self.get(name).ok_or_else(|| LoadError::MissingTensor {
            dir: self.model.to_owned(),
            tensor: name.to_owned(),
            nearest: nearest(name, self.files.names()).map(str::to_owned),
        })
    }

    /// A slice's elements, of `element` bytes each, of a tensor that has the slice's stored shape.
    pub(crate) fn cut(self, tensor: &Tensor<'_>, slice: &Slice, element: usize) -> Result<Cow<'a, [u8]>, LoadError> {
        Ok(match self.files.bytes(&tensor.name)? {
            Cow::Borrowed(bytes) => slice.cut(bytes, element, self.threads),
            Cow::Owned(bytes) if slice.is_whole() => Cow::Owned(bytes),
            Cow::Owned(bytes) => Cow::Owned(slice.cut(&bytes, element, self.threads).into_owned()),
        })
    }

    /// All of a tensor's numbers.
    pub(crate) fn numbers(self, tensor: &Tensor<'_>) -> Result<Vec<f32>, LoadError> {
        Ok(widen(tensor.dtype()?, &self.files.bytes(&tensor.name)?))
    }

    /// A tensor of one number.
    pub(crate) fn scalar(self, name: &str) -> Result<f32, LoadError> {
        let tensor = self.find(name)?;
        if tensor.shape.iter().product::<usize>() != 1 {
            return Err(tensor.misshapen(vec![1]));
        }
        Ok(self.numbers(&tensor)?[0])
    }
}

/// What other writers call a tensor: the first BERTs' norms have a `gamma` and a `beta`, and tools that quantise
/// Mixtral name its experts' projections as other families do.
fn other_name(name: &str) -> Option<String> {
    if name.contains(".block_sparse_moe.experts.") {
        let pieces = [(".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")];
        let (from, to) = pieces.into_iter().find(|(from, _)| name.contains(from))?;
        return Some(name.replace(from, to));
    }
    let (norm, ending) = name.rsplit_once('.').filter(|(norm, _)| norm.ends_with("LayerNorm"))?;
    Some(format!("{norm}.{}", if ending == "weight" { "gamma" } else { "beta" }))
}

impl TensorLocation {
    /// Whether the tensor holds the weight and nothing else.
    pub(crate) fn is_alone(&self) -> bool {
        self.stack.is_none() && self.rows == super::FusedShard::ALL
    }
}
