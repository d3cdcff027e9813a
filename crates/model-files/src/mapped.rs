//! Mapped files: a rank reads from disk only what it slices.
//!
//! Slices of a mapping are bytes like others. [`read_into`] copies many of them: it reads them from the file in place
//! of touching the mapping page by page, so that the kernel copies from its cache without entering a page into the
//! tables of this process first. Of a tmpfs that takes about half of the time.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Deref;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use memmap2::Mmap;

use crate::FilesError;

/// Below this a call costs more than the pages, bytes.
const WORTH_READING: usize = 64 << 10;

/// Live mappings, by the address of their first byte.
static MAPPINGS: RwLock<BTreeMap<usize, Mapping>> = RwLock::new(BTreeMap::new());

struct Mapping {
    bytes: usize,
    file: Arc<File>,
}

/// A file of weights whose bytes are read when they are used.
#[derive(Debug)]
pub struct MappedFile {
    bytes: Mmap,
}

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self, FilesError> {
        let failed = |source| FilesError::Read { file: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // SAFETY: the mapping is read-only and private to this process; its bytes are only ever copied or converted,
        // never given out as anything with validity rules. If another process truncates the file meanwhile, the kernel
        // ends this one (SIGBUS) rather than letting it read wrong memory.
        let bytes = unsafe { Mmap::map(&file) }.map_err(failed)?;
        let mapping = Mapping { bytes: bytes.len(), file: Arc::new(file) };
        mappings_mut(|known| known.insert(bytes.as_ptr() as usize, mapping));
        Ok(Self { bytes })
    }
}

impl Drop for MappedFile {
    /// Its addresses may be another's as soon as it is unmapped.
    fn drop(&mut self) {
        mappings_mut(|known| known.remove(&(self.bytes.as_ptr() as usize)));
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

fn mappings_mut<T>(change: impl FnOnce(&mut BTreeMap<usize, Mapping>) -> T) -> T {
    change(&mut MAPPINGS.write().unwrap_or_else(PoisonError::into_inner))
}

/// Copies bytes, those of a [`MappedFile`] from the file itself.
///
/// # Panics
/// The two are not of one length.
pub fn read_into(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    if from.len() >= WORTH_READING
        && let Some((file, offset)) = file_of(from)
        && file.read_exact_at(to, offset).is_ok()
    {
        return;
    }
    to.copy_from_slice(from);
}

/// The file that bytes are mapped from, and where in it they begin.
fn file_of(bytes: &[u8]) -> Option<(Arc<File>, u64)> {
    let known = MAPPINGS.read().unwrap_or_else(PoisonError::into_inner);
    let (start, mapping) = known.range(..=bytes.as_ptr() as usize).next_back()?;
    let offset = bytes.as_ptr() as usize - start;
    (offset + bytes.len() <= mapping.bytes).then(|| (mapping.file.clone(), offset as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two files, of which the first is mapped twice; bytes of the heap.
    #[test]
    fn bytes_come_from_where_they_lie() {
        let folder = tempfile::tempdir().expect("a folder");
        let contents = [3_u8, 5].map(|step| -> Vec<u8> {
            (0..3 * WORTH_READING).map(|i| (i * usize::from(step) + i / 251) as u8).collect()
        });
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        for (path, content) in paths.iter().zip(&contents) {
            std::fs::write(path, content).expect("written");
        }
        let open = |number: usize| MappedFile::open(&paths[number]).expect("mapped");
        let (a, again, b) = (open(0), open(0), open(1));
        let ranges =
            [0..3 * WORTH_READING, 7..WORTH_READING + 7, 2 * WORTH_READING - 1..3 * WORTH_READING, 5..5, 9..11];
        for range in ranges {
            let mut to = vec![0; range.len()];
            for (from, content) in [(&*a, 0), (&*again, 0), (&*b, 1), (&*contents[0], 0), (&*contents[1], 1)] {
                to.fill(0);
                read_into(&from[range.clone()], &mut to);
                assert!(to == contents[content][range.clone()], "{range:?}");
            }
        }
        assert_eq!(file_of(&b[17..]).map(|(_, offset)| offset), Some(17));
        assert!(file_of(&contents[0]).is_none());
        let part = b[17..].as_ptr_range();
        drop(b);
        let known = MAPPINGS.read().expect("not poisoned");
        assert!(
            !known.iter().any(|(start, mapping)| (*start..*start + mapping.bytes).contains(&(part.start as usize)))
        );
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let missing = Path::new("/nowhere/model.safetensors");
        let error = MappedFile::open(missing).expect_err("missing").to_string();
        assert!(error.contains("/nowhere/model.safetensors"), "{error}");
    }
}
