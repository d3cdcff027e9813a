//! What lies in a model folder: which files hold the weights, and what the header of a GGUF file says.
//!
//! A model is given by a path: a folder, or one `.gguf` file. [`WeightFiles::find`] says which files hold its weights;
//! [`pick`] decides the same from names alone, for repositories that are not here yet. A GGUF file also holds what
//! other formats keep beside the weights (configuration, tokenizer, chat template): [`Gguf`] reads it. [`MappedFile`]
//! gives the bytes of weights when they are used.

mod error;
mod gguf;
mod lfs;
mod mapped;
mod pick;
mod weights;

pub use error::FilesError;
pub use gguf::{BlockShape, GgmlType, Gguf, TensorInfo, TensorType, Value};
pub use lfs::is_lfs_pointer;
pub use mapped::{MappedFile, read_into};
pub use pick::{Format, Pick, pick};
pub use weights::{WeightFiles, gguf_of, shards_of};
