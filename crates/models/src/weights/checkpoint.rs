//! A model's weight files, whatever their format: finding their tensors and cutting slices out of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_files::{FilesError, Format, WeightFiles};

use super::beside::FilesBeside;
use super::files::{Files, Tensor, Tensors};
use super::gguf::GgufFiles;
use super::safetensors::SafetensorsFiles;
use super::torch::TorchFiles;
use super::{Chunk, Fetched, Slice, Stored, Weights, open_files};
use crate::error::LoadError;
use crate::quant::{self, Quantization};

/// The weight files of a model.
pub(crate) struct Checkpoint {
    model: PathBuf,
    files: Box<dyn Files>,
    format: Format,
    /// What tensors stand for weights that are not stored as plain numbers.
    quantization: Option<Box<dyn Quantization>>,
    /// How many unpack what is quantised, and put together what lies in pieces.
    threads: usize,
}

impl Checkpoint {
    /// Opens the weight files of a model, a folder or a `.gguf` file, and reads their headers. They must be in the
    /// format `only`, if given. So many threads unpack what is quantised.
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
            Format::Gguf => Box::new(GgufFiles::open(&files)?),
        };
        let quantization = (format == Format::Gguf).then(|| Box::new(quant::Gguf) as Box<dyn Quantization>);
        Ok(Self { model: model.to_owned(), files, format, quantization, threads })
    }

    /// With the tensors of files that lie beside the model's own; paths are relative to its folder.
    pub(crate) fn with(mut self, beside: &[&str]) -> Result<Self, LoadError> {
        if !beside.is_empty() {
            let open = |path: &&str| {
                let file = self.model.join(path);
                if !file.is_file() {
                    return Err(FilesError::MissingShard { file, named_by: "the model's head".to_owned() }.into());
                }
                Ok(((*path).to_owned(), open_files(&file)?))
            };
            let others = beside.iter().map(open).collect::<Result<_, LoadError>>()?;
            self.files = Box::new(FilesBeside { model: self.files, others });
        }
        Ok(self)
    }

    /// With weights that are stored as a method has it; absent: as the files' format does.
    pub(crate) fn quantized(self, quantization: Option<Box<dyn Quantization>>) -> Self {
        Self { quantization: quantization.or(self.quantization), ..self }
    }

    /// The quantisation method that the files' format is by itself.
    pub(crate) fn method(&self) -> Option<&'static str> {
        (self.format == Format::Gguf).then_some(quant::GGUF)
    }

    /// A slice as plain numbers lie: GGUF files have no `Conv1D`.
    fn lying<'s>(&self, slice: &'s Slice) -> Cow<'s, Slice> {
        if self.format == Format::Gguf { slice.as_linear() } else { Cow::Borrowed(slice) }
    }

    fn tensors(&self) -> Tensors<'_> {
        Tensors { files: &*self.files, model: &self.model, threads: self.threads }
    }

    /// The tensor of plain numbers that a slice is cut out of.
    fn plain(&self, slice: &Slice) -> Result<Tensor<'_>, LoadError> {
        let tensor = self.tensors().find(&slice.location.tensor)?;
        if self.lying(slice).fits(tensor.shape) { Ok(tensor) } else { Err(tensor.misshapen(slice.stored_shape())) }
    }
}

impl Weights for Checkpoint {
    fn check(&self, slice: &Slice) -> Result<Stored, LoadError> {
        let quantized = self.quantization.as_ref().map(|method| method.check(&slice.as_linear(), self.tensors()));
        if let Some(stored) = quantized.transpose()?.flatten() {
            return Ok(stored);
        }
        Ok(Stored::plain(self.plain(slice)?.dtype()?, slice.elements()))
    }

    fn fetch(&self, slice: &Slice) -> Result<Fetched<'_>, LoadError> {
        let quantized = self.quantization.as_ref().map(|method| method.fetch(&slice.as_linear(), self.tensors()));
        if let Some(fetched) = quantized.transpose()?.flatten() {
            return Ok(fetched);
        }
        let tensor = self.plain(slice)?;
        let dtype = tensor.dtype()?;
        Ok(Fetched::Plain(Chunk { dtype, bytes: self.tensors().cut(&tensor, &self.lying(slice), dtype.size())? }))
    }

    fn numbers(&self, ends: &[&str]) -> Result<BTreeMap<String, Vec<f32>>, LoadError> {
        let names = self.files.names().into_iter().filter(|name| ends.iter().any(|end| name.ends_with(end)));
        let read = |name: &str| {
            let tensor = self.tensors().find(name)?;
            Ok((name.to_owned(), self.tensors().numbers(&tensor)?))
        };
        names.map(read).collect()
    }
}
