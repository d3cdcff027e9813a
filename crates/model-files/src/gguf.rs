//! GGUF: one file with metadata, tokenizer and tensors (the specification is `docs/gguf.md` of the ggml project). Here
//! its header: what is where; the tensors' bytes are read by whoever wants them.

mod blocks;
mod read;
mod types;
mod value;

use std::{
    collections::HashMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

pub use blocks::{BlockShape, GgmlType};
pub use types::TensorType;
pub use value::Value;

use crate::{FilesError, WeightFiles, gguf_of};

/// Roles of special tokens, and what metadata keys call them.
const ROLES: &[(&str, &str)] = &[
    ("bos_token", "bos"),
    ("cls_token", "cls"),
    ("eos_token", "eos"),
    ("mask_token", "mask"),
    ("pad_token", "padding"),
    // The key is misspelt everywhere.
    ("sep_token", "seperator"),
    ("unk_token", "unknown"),
];

/// The header of a GGUF file, or of all parts of a split one: the first one's metadata, and every part's tensors.
#[derive(Clone, Debug)]
pub struct Gguf {
    files: Vec<PathBuf>,
    metadata: HashMap<String, Value>,
    tensors: Vec<TensorInfo>,
}

/// Where a tensor lies and what it is. It lies inside the file, and holds whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Extents, outermost first (the file has them the other way round).
    pub shape: Vec<usize>,
    /// How elements are stored.
    pub kind: TensorType,
    /// Which of the files it lies in.
    pub part: usize,
    /// First byte in the file.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Gguf {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// When the file cannot be read, is no GGUF file of version 2 or 3, or contradicts itself.
    pub fn read(file: &Path) -> Result<Self, FilesError> {
        if crate::is_lfs_pointer(file) {
            return Err(FilesError::LfsPointer { file: file.to_owned() });
        }
        read::header(file)
    }

    /// Reads the headers of a split file's parts; the first one's metadata count.
    ///
    /// # Errors
    /// As [`Gguf::read`] has.
    pub fn read_parts(files: &[PathBuf]) -> Result<Self, FilesError> {
        let mut all = Self { files: Vec::new(), metadata: HashMap::new(), tensors: Vec::new() };
        for (part, file) in files.iter().enumerate() {
            let Self { metadata, tensors, .. } = Self::read(file)?;
            if part == 0 {
                all.metadata = metadata;
            }
            all.tensors.extend(tensors.into_iter().map(|tensor| TensorInfo { part, ..tensor }));
            all.files.push(file.clone());
        }
        Ok(all)
    }

    /// The GGUF file that speaks for a model, with all its parts; see [`gguf_of`].
    ///
    /// # Errors
    /// As [`gguf_of`] and [`Gguf::read`] have.
    pub fn of_model(model: &Path) -> Result<Option<Self>, FilesError> {
        match gguf_of(model)? {
            Some(_) => Self::read_parts(&WeightFiles::find(model)?.files).map(Some),
            None => Ok(None),
        }
    }

    /// The file, the first one of a split.
    pub fn file(&self) -> &Path {
        self.files.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// All parts.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The elements of a small tensor of type F32.
    ///
    /// # Errors
    /// When it has another type or cannot be read.
    pub fn floats(&self, tensor: &TensorInfo) -> Result<Vec<f32>, FilesError> {
        if tensor.kind != TensorType::F32 {
            let what = format!("tensor {:?} has type {}; expected F32", tensor.name, tensor.kind.name());
            return Err(FilesError::Unsupported { file: self.file().to_owned(), what });
        }
        let (mut bytes, path) = (vec![0; tensor.bytes], &self.files[tensor.part]);
        let mut read = || {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(tensor.start as u64))?;
            file.read_exact(&mut bytes)
        };
        read().map_err(|source| FilesError::Read { file: path.clone(), source })?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    /// The value under a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All keys with their values, in no order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The text under a key, or none.
    pub fn text(&self, key: &str) -> Result<Option<&str>, FilesError> {
        self.typed(key, "text", Value::as_text)
    }

    /// The whole number under a key, or none.
    pub fn whole(&self, key: &str) -> Result<Option<u64>, FilesError> {
        self.typed(key, "a whole number", Value::as_whole)
    }

    /// The finite number under a key, or none.
    pub fn number(&self, key: &str) -> Result<Option<f64>, FilesError> {
        self.typed(key, "a number", |value| value.as_number().filter(|x| x.is_finite()))
    }

    /// The truth value under a key, or none.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, FilesError> {
        self.typed(key, "true or false", Value::as_flag)
    }

    /// The list of texts under a key, or none.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, FilesError> {
        self.typed(key, "a list of texts", |value| value.as_list()?.iter().map(Value::as_text).collect())
    }

    /// The list of numbers under a key, or none.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, FilesError> {
        self.typed(key, "a list of numbers", |value| value.as_list()?.iter().map(Value::as_number).collect())
    }

    /// Roles (`bos_token` and the like) and texts of the special tokens that the file names.
    pub fn token_roles(&self) -> Result<Vec<(&'static str, &str)>, FilesError> {
        let Some(texts) = self.texts("tokenizer.ggml.tokens")? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (role, name) in ROLES {
            let id = self.whole(&format!("tokenizer.ggml.{name}_token_id"))?;
            found.extend(id.and_then(|id| texts.get(usize::try_from(id).ok()?)).map(|text| (*role, *text)));
        }
        Ok(found)
    }

    /// The error for a key that has to be there.
    pub fn missing(&self, key: &str, expected: &'static str) -> FilesError {
        FilesError::Metadata { file: self.file().to_owned(), key: key.to_owned(), expected, found: "absent".to_owned() }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FilesError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| FilesError::Metadata {
            file: self.file().to_owned(),
            key: key.to_owned(),
            expected,
            found: value.describe().to_owned(),
        })
    }
}
