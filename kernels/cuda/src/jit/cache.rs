//! Compiled kernels on disk, and what was measured beside them.
//!
//! A file's name says all that went into it, so several versions live side by side; it is written beside its place and
//! moved there, so that processes that start at the same time never see half of one; and it carries its checksum, so
//! that a damaged one is made again.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::jit::nvrtc::OPTIONS;
use crate::jit::sources::{Source, headers};
use crate::runtime::arch::Arch;

const MAGIC: &[u8; 8] = b"quirek01";
const CHECKSUM: usize = 32;

/// A folder of files that are whole or absent.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
}

impl Cache {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// What was stored for this source, architecture and NVRTC version; without a version, for any.
    pub(crate) fn get(&self, source: Source, arch: Arch, version: Option<&str>) -> Option<Vec<u8>> {
        let stem = stem(source, arch);
        match version {
            Some(version) => read(&self.folder.join(file_name(&stem, version))),
            None => {
                let names = fs::read_dir(&self.folder).ok()?.flatten().map(|entry| entry.path());
                let mut known: Vec<PathBuf> = names
                    .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&stem)))
                    .filter(|path| path.extension().is_some_and(|extension| extension == "cubin"))
                    .collect();
                known.sort();
                known.iter().rev().find_map(|path| read(path))
            }
        }
    }

    /// Stores machine code, or says why it cannot.
    pub(crate) fn put(&self, source: Source, arch: Arch, version: &str, cubin: &[u8]) -> Result<(), String> {
        self.store(&file_name(&stem(source, arch), version), cubin).map_err(|error| self.explain(&error))
    }

    /// Fails where nothing can be stored.
    pub(crate) fn check(&self) -> Result<(), String> {
        let made = fs::create_dir_all(&self.folder).and_then(|()| tempfile::tempfile_in(&self.folder));
        made.map(drop).map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &std::io::Error) -> String {
        format!("{}: {error}", self.folder.display())
    }

    /// What was stored under this name.
    pub(crate) fn content(&self, name: &str) -> Option<Vec<u8>> {
        read(&self.folder.join(name))
    }

    /// Stores something else, or replaces it.
    pub(crate) fn store(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        // Readable by all: an image is built by one user and run by another.
        let readable = fs::Permissions::from_mode(0o644);
        let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(&self.folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(content))?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(self.folder.join(name))?;
        Ok(())
    }
}

/// All of a name but the compiler's version.
fn stem(source: Source, arch: Arch) -> String {
    let special = source.special.map(|special| special.options()).unwrap_or_default();
    let parts = [source.text].into_iter().chain(headers().map(|(_, text)| text)).chain(OPTIONS.iter().copied());
    format!("{}-{arch}-{}-", source.name, digest(parts.chain(special.iter().map(String::as_str))))
}

/// What tells texts from others in a file's name.
pub(crate) fn digest<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_name(stem: &str, version: &str) -> String {
    format!("{stem}nvrtc{version}.cubin")
}

/// What a file holds, if all of it is there.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let head = MAGIC.len() + CHECKSUM;
    let whole = bytes.len() > head
        && bytes.starts_with(MAGIC)
        && Sha256::digest(&bytes[head..])[..] == bytes[MAGIC.len()..head];
    whole.then(|| bytes.split_off(head))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source { name: "x", text: "one", special: None };
    const ARCH: Arch = Arch::new(9, 0);

    #[test]
    fn what_was_stored_comes_back_for_the_same_question_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(&folder.path().join("deeper"));
        assert_eq!(cache.get(SOURCE, ARCH, Some("13.0")), None);
        cache.put(SOURCE, ARCH, "13.0", b"machine code").expect("stored");
        assert_eq!(cache.get(SOURCE, ARCH, Some("13.0")).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.get(SOURCE, ARCH, None).as_deref(), Some(&b"machine code"[..]));
        assert_eq!(cache.get(SOURCE, ARCH, Some("13.1")), None);
        assert_eq!(cache.get(SOURCE, Arch::new(8, 0), Some("13.0")), None);
        assert_eq!(cache.get(Source { text: "two", ..SOURCE }, ARCH, None), None);
    }

    #[test]
    fn damaged_files_count_as_absent_and_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(folder.path());
        cache.put(SOURCE, ARCH, "13.0", b"machine code").expect("stored");
        let path = fs::read_dir(folder.path()).expect("a folder").next().expect("a file").expect("an entry").path();
        let whole = fs::read(&path).expect("read");
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("bytes") ^= 1;
        for damaged in [&whole[..whole.len() - 1], &whole[..10], &[], &flipped] {
            fs::write(&path, damaged).expect("written");
            assert_eq!(cache.get(SOURCE, ARCH, Some("13.0")), None);
            cache.put(SOURCE, ARCH, "13.0", b"machine code").expect("stored");
            assert!(cache.get(SOURCE, ARCH, Some("13.0")).is_some());
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named_before_anything_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("written");
        let cache = Cache::new(&file.join("cache"));
        for refusal in [cache.check(), cache.put(SOURCE, ARCH, "13.0", b"machine code")] {
            assert!(refusal.expect_err("no folder").contains("file/cache"));
        }
        assert_eq!(Cache::new(&folder.path().join("deeper")).check(), Ok(()));
    }

    #[test]
    fn many_may_store_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache::new(folder.path());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    cache.put(SOURCE, ARCH, "13.0", &[7; 100_000]).expect("stored");
                    assert_eq!(cache.get(SOURCE, ARCH, Some("13.0")), Some(vec![7; 100_000]));
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
