//! Reads an adapter's folder: finds the layer of each tensor, checks shapes, and takes this rank's slices.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::Config;
use super::error::{misshapen, tensor_error};
use super::modules::{Module, is_named, modules};
use super::parameters::unwrapped;
use super::places::{Place, Places};
use super::source::{Names, Source};
use super::{Adapter, AdapterError, AdapterLayout, Delta, LoraForm, LoraLayer, Numbers, Projection, SavedLayer};
use crate::weights::{Role, Slice, Tensor, TensorLocation, Tensors, files_of, widen};

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
        let modules = modules(files.names())?;
        if !modules.values().any(Module::adapts) {
            return Err(AdapterError::Empty { dir: dir.to_owned() });
        }
        let saved = modules.iter().filter(|(_, found)| found.saved.is_some()).map(|(module, _)| module.as_str());
        if let Some(missing) = config.missing(&saved.collect::<Vec<&str>>()) {
            let reason = format!("modules_to_save names {missing:?}, of which {} has no tensor", path.display());
            return Err(AdapterError::Config { file: dir.join("adapter_config.json"), reason });
        }
        let tensors = Tensors { files: &*files, model: dir, threads: 1 };
        let places = Places::of(self);
        self.check_parameters(&places, &config)
            .map_err(|reason| AdapterError::Config { file: dir.join("adapter_config.json"), reason })?;
        let known = self.known_tokens(&modules, tensors)?;
        let source = Source { modules: &modules, tensors, config: &config, known };
        let (layers, saved) = (self.layers(source, &places)?, self.saved(&modules, tensors)?);
        // What PyTorch pickled is read from the file once more, piece by piece.
        if path.extension().is_some_and(|extension| extension == "bin") && Sha256::digest(contents(&path)?) != hash {
            return Err(AdapterError::Changed { file: path });
        }
        let both = Sha256::new().chain_update(Sha256::digest(&text)).chain_update(hash).finalize();
        Ok(Adapter { layers, saved, vocab_size: known.vocab_size(), fingerprint: format!("{both:x}") })
    }

    /// What the file has for each layer.
    fn layers(&self, source: Source<'_>, places: &Places<'_>) -> Result<Vec<Vec<Option<Delta>>>, AdapterError> {
        let modules = source.modules;
        let mut layers: Vec<Vec<Option<Delta>>> = self.layers.iter().map(|_| Vec::new()).collect();
        for (module, found) in modules {
            for (is_embedding, pair) in [(false, &found.linear), (true, &found.embedding)] {
                if let Some([a, b]) = pair.both(module)? {
                    self.add(&Names { module, is_embedding, a, b }, source, places, &mut layers)?;
                }
            }
        }
        Ok(layers)
    }

    /// What the file has in place of the model's modules.
    fn saved(
        &self,
        modules: &BTreeMap<String, Module>,
        tensors: Tensors<'_>,
    ) -> Result<Vec<Option<Numbers>>, AdapterError> {
        let mut saved: Vec<Option<Numbers>> = self.saved.iter().map(|_| None).collect();
        for (module, found) in modules {
            let Some((_, tensor)) = self.own_matrix(module, found, tensors)? else { continue };
            if !self.saves {
                let reason = "a matrix in place of the model's needs --enable-lora-modules-to-save, which gives each \
                              of --max-loras room for an embedding and a head; or merge the adapter into its model";
                return Err(tensor_error(&tensor.name, reason.to_owned()));
            }
            let named = |location: &TensorLocation| is_named(&location.tensor, module);
            let mut found = self.elsewhere.iter().any(|(_, location)| named(location));
            for (SavedLayer { form, matrix, .. }, saved) in self.saved.iter().zip(&mut saved) {
                if named(&matrix.location) {
                    *saved = Some(self.whole(*form, matrix, &tensor, tensors)?);
                    found = true;
                }
            }
            if !found {
                let reason = "a head with a bias cannot be replaced: merge the adapter into its model";
                return Err(tensor_error(&tensor.name, reason.to_owned()));
            }
        }
        Ok(saved)
    }

    /// This rank's rows of a matrix in place of the model's, as many as it has.
    fn whole(
        &self,
        form: LoraForm,
        matrix: &Projection,
        tensor: &Tensor<'_>,
        tensors: Tensors<'_>,
    ) -> Result<Numbers, AdapterError> {
        let Projection { rows, cols, .. } = matrix;
        let slice = Slice {
            location: TensorLocation::from(tensor.name.clone()),
            shape: tensor.shape.to_vec(),
            rows: upto(rows, tensor.shape[0]),
            cols: cols.clone(),
            role: Role::Matrix,
        };
        Ok(Numbers::new(self.numbers(form, tensors, tensor, &slice)?, self.dtype))
    }

    /// Adds a module to the layers that it is a part of.
    fn add(
        &self,
        names: &Names<'_>,
        source: Source<'_>,
        places: &Places<'_>,
        layers: &mut [Vec<Option<Delta>>],
    ) -> Result<(), AdapterError> {
        let is_wanted = |form: LoraForm| form.is_embedding() == names.is_embedding;
        let mut found = false;
        let (module, depth) = unwrapped(names.module);
        for place in places.find(module) {
            match place {
                Place::Projection { layer, index } if depth == 0 && is_wanted(self.layers[layer].form) => {
                    let LoraLayer { form, projections, .. } = &self.layers[layer];
                    layers[layer].resize_with(projections.len(), || None);
                    check_free(names, &layers[layer][index..=index])?;
                    layers[layer][index] = Some(self.delta(*form, &projections[index], names, source)?);
                }
                Place::Parameter { layer } if !names.is_embedding => {
                    if let Some(deltas) = self.of_parameter(&self.layers[layer], names, source)? {
                        check_free(names, &layers[layer])?;
                        layers[layer] = deltas;
                    }
                }
                Place::Elsewhere(form) if is_wanted(form) => {}
                _ => continue,
            }
            found = true;
        }
        if found { Ok(()) } else { Err(self.unknown(names)) }
    }

    /// A module that is none of the model's with adapters.
    fn unknown(&self, names: &Names<'_>) -> AdapterError {
        let kind = if names.is_embedding { "embedding" } else { "linear layer" };
        let instead = self.instead(names.module);
        let reason = format!("{:?} is no {kind} of this model that takes adapters{instead}", names.module);
        tensor_error(names.a, reason)
    }

    /// What gives a module of this name adapters.
    fn instead(&self, module: &str) -> &'static str {
        match module.split('.').any(|word| word == "experts") && !self.experts {
            true => "; experts take some without --no-enable-lora-experts",
            false => "",
        }
    }

    /// Fails where an adapter of a parameter would be left out.
    fn check_parameters(&self, places: &Places<'_>, config: &Config) -> Result<(), String> {
        let parameters = || self.layers.iter().filter_map(|layer| layer.parameter.as_ref());
        let is_known = |end: &String| {
            let module = end.strip_suffix(".weight").unwrap_or(end);
            parameters().any(|parameter| parameter.has_end(end)) || places.has_end(module)
        };
        match config.parameters.iter().find(|end| !is_known(end)) {
            None => Ok(()),
            Some(end) => {
                let instead = self.instead(end);
                Err(format!(
                    "target_parameters names {end:?}, which is not supported: it is no matrix of this model's linear \
                     layers or experts that takes adapters{instead}"
                ))
            }
        }
    }

    fn delta(
        &self,
        form: LoraForm,
        projection: &Projection,
        names: &Names<'_>,
        Source { tensors, config, known, .. }: Source<'_>,
    ) -> Result<Delta, AdapterError> {
        let [a, b] = [names.a, names.b].map(|name| tensors.find(name).map_err(Box::new));
        let (a, b) = (a?, b?);
        let rank = self.check_rank(a.shape.first().copied().unwrap_or(0), &a, names, config)?;
        let Projection { shape: [outputs, inputs], rows, cols, pad_rows, .. } = projection;
        // Tokens that the adapter does not know are zeros.
        let (outputs, inputs) = match form {
            LoraForm::Linear => (*outputs, *inputs),
            LoraForm::Head => (known.of(form), *inputs),
            LoraForm::Embedding => (*outputs, known.of(form)),
        };
        let of_a = Slice {
            location: TensorLocation::from(a.name.clone()),
            shape: vec![rank, inputs],
            rows: 0..rank,
            cols: upto(cols, inputs),
            role: Role::Matrix,
        };
        let location = TensorLocation { tensor: b.name.clone(), transposed: false, ..projection.location.clone() };
        let of_b = Slice {
            location,
            shape: vec![outputs, rank],
            rows: upto(rows, outputs),
            cols: 0..rank,
            role: Role::Matrix,
        };
        let scale = config.scale(names.module);
        let a = widened(self.numbers(form, tensors, &a, &of_a)?, rank, cols.len());
        let mut b = self.numbers(form, tensors, &b, &of_b)?;
        b.iter_mut().for_each(|x| *x *= scale);
        b.resize((rows.len() + pad_rows) * rank, 0.0);
        let [a, b] = [a, b].map(|values| Numbers::new(values, self.dtype));
        Ok(Delta { rank, a, b })
    }

    /// A slice of a tensor's numbers.
    pub(super) fn numbers(
        &self,
        form: LoraForm,
        tensors: Tensors<'_>,
        tensor: &Tensor<'_>,
        slice: &Slice,
    ) -> Result<Vec<f32>, AdapterError> {
        if !slice.fits(tensor.shape) {
            return Err(misshapen(form, tensor, &slice.stored_shape(), self.vocab));
        }
        let dtype = tensor.dtype().map_err(Box::new)?;
        let values = widen(dtype, &tensors.cut(tensor, slice, dtype.size()).map_err(Box::new)?);
        match values.iter().all(|value| value.is_finite()) {
            true => Ok(values),
            false => Err(tensor_error(&tensor.name, "it has numbers that are not finite".to_owned())),
        }
    }

    /// The rank of a module's matrices, of which `a` is the first, if there is room for it.
    pub(super) fn check_rank(
        &self,
        rank: usize,
        a: &Tensor<'_>,
        names: &Names<'_>,
        config: &Config,
    ) -> Result<usize, AdapterError> {
        let configured = config.rank(names.module);
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

/// Fails where a matrix has an adapter already, under another name.
fn check_free(names: &Names<'_>, deltas: &[Option<Delta>]) -> Result<(), AdapterError> {
    match deltas.iter().any(Option::is_some) {
        true => Err(tensor_error(names.a, "its matrix has an adapter of another name, too".to_owned())),
        false => Ok(()),
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

/// The part of a range that lies before `end`.
fn upto(range: &Range<usize>, end: usize) -> Range<usize> {
    range.start.min(end)..range.end.min(end)
}

/// `rows` rows of numbers, with zeros behind them up to `width`.
fn widened(values: Vec<f32>, rows: usize, width: usize) -> Vec<f32> {
    let columns = values.len() / rows;
    if columns == width {
        return values;
    }
    let mut wide = vec![0.0; rows * width];
    for (row, to) in wide.chunks_exact_mut(width).enumerate() {
        to[..columns].copy_from_slice(&values[row * columns..][..columns]);
    }
    wide
}
