//! Reads an adapter's folder: finds the layer of each tensor, checks shapes, and takes this rank's slices.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::Config;
use super::{Adapter, AdapterError, AdapterLayout, Delta, LoraLayer, Numbers, Projection};
use crate::weights::{OpenFiles, Role, Slice, Tensor, TensorLocation, Tensors, files_of, widen};

/// What PEFT writes before a module's name.
const PREFIX: &str = "base_model.model.";

/// The two matrices of a module, as the files call them.
#[derive(Default)]
struct Pair {
    a: Option<String>,
    b: Option<String>,
}

/// The names of a module's two matrices.
struct Names<'a> {
    module: &'a str,
    a: &'a str,
    b: &'a str,
}

impl AdapterLayout {
    /// Reads the adapter in a folder. Every tensor of it is used, or named by the error. Reads files, and takes as long
    /// as that takes.
    pub fn read(&self, dir: &Path) -> Result<Adapter, AdapterError> {
        let file = dir.join("adapter_config.json");
        let text = std::fs::read(&file).map_err(|source| match source.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => AdapterError::NotFound { dir: dir.to_owned() },
            _ => AdapterError::Read { file: file.clone(), source },
        })?;
        let config = Config::read(file, &text)?;
        let path = weights_of(dir)?;
        let bytes = contents(&path)?;
        let hash = Sha256::digest(&bytes);
        let files = files_of(&path, bytes).map_err(Box::new)?;
        let modules = modules(&files)?;
        if modules.is_empty() {
            return Err(AdapterError::Empty { dir: dir.to_owned() });
        }
        let tensors = Tensors { files: &*files, model: dir, threads: 1 };
        let mut layers: Vec<Vec<Option<Delta>>> = self.layers.iter().map(|_| Vec::new()).collect();
        for (module, pair) in &modules {
            let missing = |name: &Option<String>| {
                let reason = format!("module {module:?} has one of lora_A and lora_B, but not the other");
                tensor_error(name.as_deref().unwrap_or(module), reason)
            };
            let names = match (&pair.a, &pair.b) {
                (Some(a), Some(b)) => Names { module, a, b },
                (a, b) => return Err(missing(if a.is_some() { a } else { b })),
            };
            self.add(&names, tensors, &config, &mut layers)?;
        }
        // What PyTorch pickled is read from the file once more, piece by piece.
        if path.extension().is_some_and(|extension| extension == "bin") && Sha256::digest(contents(&path)?) != hash {
            return Err(AdapterError::Changed { file: path });
        }
        let both = Sha256::new().chain_update(Sha256::digest(&text)).chain_update(hash).finalize();
        Ok(Adapter { layers, fingerprint: format!("{both:x}") })
    }

    /// Adds a module to the layers that it is a part of.
    fn add(
        &self,
        names: &Names<'_>,
        tensors: Tensors<'_>,
        config: &Config,
        layers: &mut [Vec<Option<Delta>>],
    ) -> Result<(), AdapterError> {
        let mut found = false;
        for (LoraLayer { projections, .. }, deltas) in self.layers.iter().zip(layers) {
            for (index, projection) in projections.iter().enumerate() {
                if !is_named(&projection.location.tensor, names.module) {
                    continue;
                }
                found = true;
                deltas.resize_with(projections.len(), || None);
                deltas[index] = Some(self.delta(projection, names, tensors, config)?);
            }
        }
        if found || self.elsewhere.iter().any(|location| is_named(&location.tensor, names.module)) {
            return Ok(());
        }
        let reason = format!("{:?} is no linear layer of this model that takes adapters", names.module);
        Err(tensor_error(names.a, reason))
    }

    fn delta(
        &self,
        projection: &Projection,
        names: &Names<'_>,
        tensors: Tensors<'_>,
        config: &Config,
    ) -> Result<Delta, AdapterError> {
        let [a, b] = [names.a, names.b].map(|name| tensors.find(name).map_err(Box::new));
        let (a, b) = (a?, b?);
        let rank = self.rank(&a, names, config)?;
        let [outputs, inputs] = projection.shape;
        let of_a = Slice {
            location: TensorLocation::from(a.name.clone()),
            shape: vec![rank, inputs],
            rows: 0..rank,
            cols: projection.cols.clone(),
            role: Role::Matrix,
        };
        let location = TensorLocation { tensor: b.name.clone(), transposed: false, ..projection.location.clone() };
        let rows = projection.rows.clone();
        let of_b = Slice { location, shape: vec![outputs, rank], rows, cols: 0..rank, role: Role::Matrix };
        let scale = config.scale(names.module);
        let (a, mut b) = (numbers(tensors, &a, &of_a)?, numbers(tensors, &b, &of_b)?);
        b.iter_mut().for_each(|x| *x *= scale);
        let [a, b] = [a, b].map(|values| Numbers::new(values, self.dtype));
        Ok(Delta { rank, a, b })
    }

    /// The rank of a module's matrices, of which `a` is the first.
    fn rank(&self, a: &Tensor<'_>, names: &Names<'_>, config: &Config) -> Result<usize, AdapterError> {
        let (rank, configured) = (a.shape.first().copied().unwrap_or(0), config.rank(names.module));
        if rank > self.max_rank {
            let reason = format!("rank {rank} is above --max-lora-rank {}", self.max_rank);
            return Err(tensor_error(names.a, reason));
        }
        if rank as f64 != configured {
            let reason = format!("shape {:?}, but adapter_config.json gives its module rank {configured}", a.shape);
            return Err(tensor_error(names.a, reason));
        }
        Ok(rank)
    }
}

/// The file of an adapter's weights.
fn weights_of(dir: &Path) -> Result<PathBuf, AdapterError> {
    let files = ["adapter_model.safetensors", "adapter_model.bin"].map(|name| dir.join(name));
    let found = files.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| AdapterError::NoWeights { dir: dir.to_owned() })
}

/// A file as it is now: its hash is of what is used, even if the file is overwritten meanwhile.
fn contents(file: &Path) -> Result<Vec<u8>, AdapterError> {
    std::fs::read(file).map_err(|source| AdapterError::Read { file: file.to_owned(), source })
}

/// The modules of an adapter's file, by their names in the model.
fn modules(files: &OpenFiles) -> Result<BTreeMap<String, Pair>, AdapterError> {
    let mut modules: BTreeMap<String, Pair> = BTreeMap::new();
    for tensor in files.names() {
        let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        let ends = [".lora_A.weight", ".lora_A.default.weight", ".lora_B.weight", ".lora_B.default.weight"];
        let found = ends.iter().position(|end| name.ends_with(end));
        let Some((index, module)) = found.and_then(|index| Some((index, name.strip_suffix(ends[index])?))) else {
            let reason = "this is no matrix of a linear layer's adapter (lora_A.weight, lora_B.weight); embeddings, \
                          biases, magnitudes and whole modules cannot be served: merge the adapter into its model";
            return Err(tensor_error(tensor, reason.to_owned()));
        };
        let pair = modules.entry(module.to_owned()).or_default();
        *(if index < 2 { &mut pair.a } else { &mut pair.b }) = Some(tensor.to_owned());
    }
    Ok(modules)
}

/// Whether a module of an adapter is the one whose matrix a model's files call `tensor`. Either may lack the first
/// word, where it was saved from a model without its head.
fn is_named(tensor: &str, module: &str) -> bool {
    let Some(own) = tensor.strip_suffix(".weight") else { return false };
    let without_first = |name: &str| name.split_once('.').map(|(_, rest)| rest.to_owned());
    own == module
        || without_first(own).is_some_and(|rest| rest == module)
        || without_first(module).is_some_and(|rest| rest == own)
}

fn numbers(tensors: Tensors<'_>, tensor: &Tensor<'_>, slice: &Slice) -> Result<Vec<f32>, AdapterError> {
    if !slice.fits(tensor.shape) {
        let reason = format!("shape {:?}, but this model needs {:?}", tensor.shape, slice.stored_shape());
        return Err(tensor_error(&tensor.name, reason));
    }
    let dtype = tensor.dtype().map_err(Box::new)?;
    let values = widen(dtype, &tensors.cut(tensor, slice, dtype.size()).map_err(Box::new)?);
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(tensor_error(&tensor.name, "it has numbers that are not finite".to_owned())),
    }
}

fn tensor_error(tensor: &str, reason: String) -> AdapterError {
    AdapterError::Tensor { tensor: tensor.to_owned(), reason }
}
