//! Random weights as a file: a folder that loads like any other, for measuring how long that takes without a download.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use ::safetensors::{Dtype, tensor::Metadata, tensor::TensorInfo};
use kernels::ops::DType;
use model_files::FilesError;

use super::random_tensor::element_type;
use super::{Dummy, Fetched, Measure, RandomTensor, RandomWeight, Role, Slice, Stored, Weights};
use crate::arch::{self, Description};
use crate::error::LoadError;
use crate::network;
use crate::quant::Quantized;
use crate::tp::Shard;

/// Bytes that a thread makes at a time.
const PIECE: usize = 16 << 20;
/// Files beside the weights that a model needs.
const BESIDE: [&str; 5] = ["json", "jinja", "model", "tiktoken", "txt"];

/// Writes `to`: the model of the folder `model` with random weights, as one safetensors file. Only `config.json` is
/// needed of it. Plain numbers are of the type `dtype`; where the config quantises, projections are tensors of codes as
/// checkpoints of that format have them. Returns the bytes of weights. The same seed gives the same weights; plain ones
/// are those of [`LoadFormat::Dummy`](crate::LoadFormat::Dummy) where a tensor holds one matrix.
///
/// # Errors
/// When the model is not one that can be served, how its format stores weights is not known here, or the folder has
/// weights already or cannot be written.
pub fn save_random(model: &Path, to: &Path, dtype: DType, seed: u64) -> Result<u64, LoadError> {
    let Description { spec, names, quantized } = arch::read(model)?;
    let dummy = Dummy::new(seed, dtype, 1);
    let census = Census { dtype, tensors: Mutex::default() };
    network::build(&spec, &names, Shard::new(0, 1)?, 0..spec.layers.len(), &mut Measure::new(&census))?;
    let path = to.join("model.safetensors");
    let planned = plan(census.tensors.into_inner().unwrap_or_else(PoisonError::into_inner), &quantized, dtype, &path)?;
    copy_beside(model, to)?;
    let written = File::create_new(&path).and_then(|file| write(&file, &planned, &dummy));
    written.map_err(|source| LoadError::Write { file: path, source })
}

/// All tensors of a model, by name, and a slice of each. What a model alone on its device asks for is noted.
struct Census {
    dtype: DType,
    tensors: Mutex<BTreeMap<String, Slice>>,
}

impl Weights for Census {
    fn check(&self, slice: &Slice) -> Result<Stored, LoadError> {
        let mut tensors = self.tensors.lock().unwrap_or_else(PoisonError::into_inner);
        tensors.insert(slice.location.tensor.clone(), slice.clone());
        Ok(Stored::plain(self.dtype, slice.elements()))
    }

    fn fetch(&self, slice: &Slice) -> Result<Fetched<'_>, LoadError> {
        unreachable!("{} is noted, not fetched", slice.location.tensor)
    }
}

/// A tensor to be written.
enum Planned {
    Numbers { name: String, shape: Vec<usize>, role: Role, dtype: DType },
    Codes(RandomTensor),
}

impl Planned {
    fn info(&self) -> (&str, Dtype, &[usize]) {
        match self {
            Self::Numbers { name, shape, dtype, .. } => (name, element_type(*dtype), shape),
            Self::Codes(RandomTensor { name, dtype, shape, .. }) => (name, *dtype, shape),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Numbers { shape, dtype, .. } => shape.iter().product::<usize>() * dtype.size(),
            Self::Codes(tensor) => tensor.bytes(),
        }
    }
}

/// What a file of these tensors holds.
fn plan(
    tensors: BTreeMap<String, Slice>,
    quantized: &Quantized,
    dtype: DType,
    file: &Path,
) -> Result<Vec<Planned>, LoadError> {
    let mut planned = Vec::new();
    for (name, slice) in tensors {
        if slice.role == Role::Projection
            && let Some(weight) = random_weight(&name, &slice, dtype)
            && let Some(codes) = quantized.made(&weight, file)?
        {
            planned.extend(codes.into_iter().map(Planned::Codes));
        } else {
            planned.push(Planned::Numbers { name, shape: slice.stored_shape(), role: slice.role, dtype });
        }
    }
    Ok(planned)
}

/// The matrix, or the stacked ones, of a slice's tensor.
fn random_weight<'a>(name: &'a str, slice: &Slice, dtype: DType) -> Option<RandomWeight<'a>> {
    // Codes lie by output features also where plain weights do not.
    let mut slice = slice.clone();
    slice.location.transposed = false;
    let (experts, shape) = match slice.stored_shape()[..] {
        [rows, cols] => (None, [rows, cols]),
        [count, rows, cols] => (Some(count), [rows, cols]),
        _ => return None,
    };
    Some(RandomWeight { name, experts, shape, dtype, conv1d: slice.location.conv1d })
}

/// What a thread makes at a time: a part of a tensor, and where it goes.
struct Piece<'a> {
    part: Part<'a>,
    at: u64,
}

enum Part<'a> {
    /// Some rows of numbers.
    Rows(Slice),
    /// Some bytes of codes.
    Bytes(&'a RandomTensor, Range<usize>),
}

/// Header and data; returns the bytes of data.
fn write(file: &File, tensors: &[Planned], dummy: &Dummy) -> io::Result<u64> {
    let (mut infos, mut pieces, mut end) = (Vec::new(), Vec::new(), 0);
    for tensor in tensors {
        let (name, dtype, shape) = tensor.info();
        let data_offsets = (end, end + tensor.bytes());
        infos.push((name.to_owned(), TensorInfo { dtype, shape: shape.to_vec(), data_offsets }));
        pieces.extend(parts(tensor).into_iter().map(|(part, offset)| (part, end + offset)));
        end += tensor.bytes();
    }
    let header =
        Metadata::new(Some([("format".to_owned(), "pt".to_owned())].into()), infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0)?;
    file.write_all_at(&header, 8)?;
    let data = 8 + header.len();
    let pieces: Vec<Piece<'_>> =
        pieces.into_iter().map(|(part, offset)| Piece { part, at: (data + offset) as u64 }).collect();
    fill(file, &pieces, dummy)?;
    Ok(end as u64)
}

/// A tensor in pieces, and where each begins in its data.
fn parts(tensor: &Planned) -> Vec<(Part<'_>, usize)> {
    match tensor {
        Planned::Numbers { name, shape, role, dtype } => {
            cut(name, shape, *role, dtype.size()).map(|(slice, offset)| (Part::Rows(slice), offset)).collect()
        }
        Planned::Codes(tensor) => {
            let bytes = tensor.bytes();
            let piece = |start: usize| (Part::Bytes(tensor, start..bytes.min(start + PIECE)), start);
            (0..bytes).step_by(PIECE).map(piece).collect()
        }
    }
}

/// The rows of a tensor in pieces, and where each begins in its data.
fn cut(name: &str, shape: &[usize], role: Role, element: usize) -> impl Iterator<Item = (Slice, usize)> {
    let (width, shape) = match shape {
        [.., width] if shape.len() > 1 => (*width, vec![shape[..shape.len() - 1].iter().product(), *width]),
        _ => (1, shape.to_vec()),
    };
    let (rows, name) = (shape[0], name.to_owned());
    let some = (PIECE / (width * element).max(1)).max(1);
    (0..rows).step_by(some).map(move |start| {
        let rows: Range<usize> = start..rows.min(start + some);
        let slice = Slice { location: name.clone().into(), shape: shape.clone(), rows, cols: 0..width, role };
        (slice, start * width * element)
    })
}

/// All threads of the machine make pieces and write them.
fn fill(file: &File, pieces: &[Piece<'_>], dummy: &Dummy) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        while let Some(Piece { part, at }) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            match part {
                Part::Rows(slice) => file.write_all_at(&dummy.chunk(slice).bytes, *at)?,
                Part::Bytes(tensor, bytes) => {
                    let mut made = vec![0; bytes.len()];
                    tensor.content.fill(dummy.key(&tensor.name), bytes.start, &mut made);
                    file.write_all_at(&made, *at)?;
                }
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no piece panics"))
    })
}

fn copy_beside(model: &Path, to: &Path) -> Result<(), LoadError> {
    fs::create_dir_all(to).map_err(|source| LoadError::Write { file: to.to_owned(), source })?;
    let unread = |source| FilesError::Read { file: model.to_owned(), source };
    for entry in fs::read_dir(model).map_err(unread)? {
        let from: PathBuf = entry.map_err(unread)?.path();
        let ends_like = |end: &&str| from.extension().is_some_and(|extension| extension == *end);
        let name = from.file_name().filter(|name| !name.to_string_lossy().ends_with(".index.json"));
        let Some(name) = name.filter(|_| BESIDE.iter().any(ends_like)) else { continue };
        let copy = to.join(name);
        fs::copy(&from, &copy).map_err(|source| LoadError::Write { file: copy, source })?;
    }
    Ok(())
}
