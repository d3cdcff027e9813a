//! Mapped files: a rank reads from disk only what it slices.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;
use model_files::FilesError;

use crate::error::LoadError;

/// Maps a weight file.
pub(super) fn map(path: &Path) -> Result<Mmap, LoadError> {
    let failed = |source| FilesError::Read { file: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // SAFETY: the mapping is read-only and private to this process; its bytes are only ever copied or converted, never
    // given out as anything with validity rules. If another process truncates the file meanwhile, the kernel ends this
    // one (SIGBUS) rather than letting it read wrong memory.
    Ok(unsafe { Mmap::map(&file) }.map_err(failed)?)
}
