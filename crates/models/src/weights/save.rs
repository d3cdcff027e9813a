//! Random weights as a file: a folder that loads like any other, for measuring how long that takes without a download.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ::safetensors::{Dtype, tensor::Metadata, tensor::TensorInfo};
use kernels::ops::DType;
use model_files::FilesError;

use super::{Dummy, Fetched, Measure, Role, Slice, Stored, Weights};
use crate::arch::{self, Description};
use crate::error::LoadError;
use crate::network;
use crate::tp::Shard;

/// Bytes that a thread makes at a time.
const PIECE: usize = 16 << 20;
/// Files beside the weights that a model needs.
const BESIDE: [&str; 5] = ["json", "jinja", "model", "tiktoken", "txt"];

/// Writes `to`: the model of the folder `model` with random weights of a type, as one safetensors file. Only
/// `config.json` is needed of it. Returns the bytes of weights. The same seed gives the same weights, and those of
/// [`LoadFormat::Dummy`](crate::LoadFormat::Dummy) where a tensor holds one matrix.
///
/// # Errors
/// When the model is not one that can be served, or the folder has weights already or cannot be written.
pub fn save_random(model: &Path, to: &Path, dtype: DType, seed: u64) -> Result<u64, LoadError> {
    let Description { spec, names, quantized } = arch::read(model)?;
    quantized.check_dummy()?;
    let dummy = Dummy { seed, dtype, stored: None, threads: 1 };
    let census = Census { dtype, tensors: RefCell::default() };
    network::build(&spec, &names, Shard::new(0, 1)?, 0..spec.layers.len(), &mut Measure::new(&census))?;
    let tensors = census.tensors.into_inner();
    copy_beside(model, to)?;
    let path = to.join("model.safetensors");
    let written = File::create_new(&path).and_then(|file| write(&file, &tensors, &dummy));
    written.map_err(|source| LoadError::Write { file: path, source })
}

/// All tensors of a model, by name: shape and role. What a model alone on its device asks for is noted.
struct Census {
    dtype: DType,
    tensors: RefCell<BTreeMap<String, (Vec<usize>, Role)>>,
}

impl Weights for Census {
    fn check(&self, slice: &Slice) -> Result<Stored, LoadError> {
        let noted = (slice.stored_shape(), slice.role);
        self.tensors.borrow_mut().insert(slice.location.tensor.clone(), noted);
        Ok(Stored::plain(self.dtype, slice.elements()))
    }

    fn fetch(&self, slice: &Slice) -> Result<Fetched<'_>, LoadError> {
        unreachable!("{} is noted, not fetched", slice.location.tensor)
    }
}

/// What a thread makes at a time: some rows of a tensor, and where they go.
struct Piece {
    slice: Slice,
    at: u64,
}

/// Header and data; returns the bytes of data.
fn write(file: &File, tensors: &BTreeMap<String, (Vec<usize>, Role)>, dummy: &Dummy) -> io::Result<u64> {
    let (mut infos, mut pieces, mut end) = (Vec::new(), Vec::new(), 0);
    for (name, (shape, role)) in tensors {
        let bytes = shape.iter().product::<usize>() * dummy.dtype.size();
        let data_offsets = (end, end + bytes);
        infos.push((name.clone(), TensorInfo { dtype: element_type(dummy.dtype), shape: shape.clone(), data_offsets }));
        pieces.extend(cut(name, shape, *role, dummy.dtype.size()).map(|(slice, offset)| (slice, end + offset)));
        end += bytes;
    }
    let header = Metadata::new(None, infos).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0)?;
    file.write_all_at(&header, 8)?;
    let data = 8 + header.len();
    let pieces: Vec<Piece> =
        pieces.into_iter().map(|(slice, offset)| Piece { slice, at: (data + offset) as u64 }).collect();
    fill(file, &pieces, dummy)?;
    Ok(end as u64)
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
fn fill(file: &File, pieces: &[Piece], dummy: &Dummy) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> io::Result<()> {
        while let Some(Piece { slice, at }) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            file.write_all_at(&dummy.chunk(slice).bytes, *at)?;
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

fn element_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
    }
}
