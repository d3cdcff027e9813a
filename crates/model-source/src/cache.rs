//! The Hugging Face hub cache on disk, one model of it.
//!
//! ```text
//! <cache>/models--owner--name/refs/main                  the commit that `main` was when it was last asked
//!                             snapshots/<commit>/<file>  -> ../../blobs/<etag>
//!                             blobs/<etag>               contents; `.incomplete` while they arrive
//! <cache>/.locks/models--owner--name/<etag>.lock         held by the process that downloads that blob
//! ```

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::{SourceError, folder::Wanted, name::is_name};

/// One model's part of the hub cache.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    model: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub(crate) fn new(hub_cache: &Path, id: &str) -> Self {
        let name = format!("models--{}", id.replace('/', "--"));
        Self { model: hub_cache.join(&name), locks: hub_cache.join(".locks").join(name) }
    }

    /// The snapshot of a branch, tag or commit, when all that is needed lies in it.
    pub(crate) fn complete_snapshot(&self, revision: &str, wanted: Wanted<'_>) -> Option<PathBuf> {
        let reference = fs::read_to_string(self.reference(revision)).ok();
        let commit = reference.as_deref().map_or(revision, str::trim);
        if !is_name(commit) {
            return None;
        }
        let snapshot = self.snapshot(commit);
        wanted.check(&snapshot).is_ok().then_some(snapshot)
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.model.join("snapshots").join(commit)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.model.join("blobs").join(etag)
    }

    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.model.join("refs").join(revision)
    }

    /// Creates the folders that a download writes to.
    pub(crate) fn create(&self, commit: &str) -> Result<(), SourceError> {
        for folder in [self.model.join("blobs"), self.model.join("refs"), self.snapshot(commit), self.locks.clone()] {
            fs::create_dir_all(&folder).map_err(|source| SourceError::io("create", &folder, source))?;
        }
        Ok(())
    }

    /// Makes `file` of a snapshot point to a blob.
    pub(crate) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<(), SourceError> {
        let link = self.snapshot(commit).join(file);
        // Modules lie a folder deeper.
        let up = "../".repeat(2 + file.matches('/').count());
        let target = Path::new(&up).join("blobs").join(etag);
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        let scratch = format!(".{}.{}.tmp", file.replace('/', "."), std::process::id());
        let scratch = link.with_file_name(scratch);
        let swap = || -> io::Result<()> {
            fs::create_dir_all(link.parent().unwrap_or(&self.model))?;
            let _ = fs::remove_file(&scratch);
            symlink(&target, &scratch)?;
            fs::rename(&scratch, &link)
        };
        swap().map_err(|source| SourceError::io("link", &link, source))
    }

    /// Records which commit a branch or tag is; a commit needs no record.
    pub(crate) fn refer(&self, revision: &str, commit: &str) -> Result<(), SourceError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.reference(revision);
        let scratch = path.with_extension(format!("{}.tmp", std::process::id()));
        let write = || -> io::Result<()> {
            // `refs/pr/1` has a folder in its name.
            fs::create_dir_all(path.parent().unwrap_or(&self.model))?;
            fs::write(&scratch, commit)?;
            fs::rename(&scratch, &path)
        };
        write().map_err(|source| SourceError::io("write", &path, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Need;

    const CONFIG: Wanted<'_> = Wanted { need: Need::NoWeights, variant: None };

    #[test]
    fn a_snapshot_is_found_by_branch_and_by_commit() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path(), "owner/name");
        cache.create("abc").unwrap();
        fs::write(cache.blob("e1"), "{}").unwrap();
        cache.link("abc", "config.json", "e1").unwrap();
        cache.link("abc", "config.json", "e1").unwrap();
        assert_eq!(cache.complete_snapshot("main", CONFIG), None);
        cache.refer("main", "abc").unwrap();
        let snapshot = folder.path().join("models--owner--name/snapshots/abc");
        assert_eq!(cache.complete_snapshot("main", CONFIG), Some(snapshot.clone()));
        assert_eq!(cache.complete_snapshot("abc", CONFIG), Some(snapshot));
        assert_eq!(cache.complete_snapshot("main", Wanted { need: Need::Everything, ..CONFIG }), None);
    }

    #[test]
    fn references_cannot_leave_the_cache() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path(), "a/b");
        cache.create("abc").unwrap();
        cache.refer("main", "../../..").unwrap();
        assert_eq!(cache.complete_snapshot("main", CONFIG), None);
        assert_eq!(cache.complete_snapshot("../x", CONFIG), None);
    }
}
