//! Reads files of a model's folder.

use std::{fs, io::ErrorKind, path::Path};

use model_files::{FilesError, is_lfs_pointer};
use serde_json::{Map, Value};

use crate::TokenizerError;

/// The bytes of a file that is there.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TokenizerError> {
    if is_lfs_pointer(path) {
        return Err(FilesError::LfsPointer { file: path.to_owned() }.into());
    }
    fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })
}

/// A JSON object from a file; empty when there is no file.
pub(crate) fn object(path: &Path) -> Result<Map<String, Value>, TokenizerError> {
    match fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|source| TokenizerError::Json { path: path.to_owned(), source })
        }
        // A model that is one file has nothing beside it.
        Err(source) if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Map::new()),
        Err(source) => Err(TokenizerError::Read { path: path.to_owned(), source }),
    }
}
