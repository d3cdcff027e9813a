//! Weight files that PyTorch pickled: `pytorch_model.bin`. The reader interprets the few calls that describe a tensor
//! and runs nothing.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;

use kernels::ops::DType;
use model_files::FilesError;
use pytorch_reader::{PytorchReader, Tensor};

use super::files::{self, Element, Files};
use crate::error::LoadError;

/// One file, or the shards of a model. Tensors are read from disk when they are asked for.
pub(super) struct TorchFiles {
    tensors: HashMap<String, (PathBuf, Tensor)>,
}

impl TorchFiles {
    /// Reads what tensors the files hold.
    pub(super) fn open(files: &[PathBuf]) -> Result<Self, LoadError> {
        let mut tensors = HashMap::new();
        for file in files {
            let reader = PytorchReader::new(file)
                .map_err(|error| FilesError::Damaged { file: file.clone(), reason: error.to_string() })?;
            tensors.extend(reader.into_tensors().into_iter().map(|(name, tensor)| (name, (file.clone(), tensor))));
        }
        Ok(Self { tensors })
    }
}

impl Files for TorchFiles {
    fn find<'a>(&'a self, name: &str) -> Option<files::Tensor<'a>> {
        let (file, tensor) = self.tensors.get(name)?;
        Some(files::Tensor { file, name: name.to_owned(), shape: tensor.shape(), element: element(tensor.dtype()) })
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError> {
        let Some((file, tensor)) = self.tensors.get(name) else { return Ok(Cow::default()) };
        Ok(Cow::Owned(tensor.read().map_err(|source| FilesError::Read { file: file.clone(), source })?))
    }
}

fn element(dtype: pytorch_reader::DType) -> Element {
    match dtype {
        pytorch_reader::DType::F32 => Element::Number(DType::F32),
        pytorch_reader::DType::F16 => Element::Number(DType::F16),
        pytorch_reader::DType::BF16 => Element::Number(DType::Bf16),
        other => Element::Unknown(format!("{other:?}")),
    }
}
