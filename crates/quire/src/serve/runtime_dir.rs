//! A private folder for the sockets of one engine, gone when the engine is.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::process::{getpid, getuid};

/// A folder that only this user may enter; removed on drop.
pub struct RuntimeDir {
    path: PathBuf,
}

impl RuntimeDir {
    /// Creates `quire-<pid>` in the user's runtime folder, or `quire-<uid>-<pid>` in `/tmp`.
    pub fn create(user_runtime: Option<&Path>) -> io::Result<Self> {
        let pid = getpid().as_raw_nonzero();
        let shared = Path::new("/tmp").join(format!("quire-{}-{pid}", getuid().as_raw()));
        // A socket's path may have 107 bytes.
        let own = user_runtime.filter(|path| path.is_dir() && path.as_os_str().len() < 60);
        let path = own.map_or(shared, |path| path.join(format!("quire-{pid}")));
        if let Some(parent) = path.parent() {
            remove_leftovers(parent);
        }
        // A dead process of the same id may have left it; nobody else can have made it for us.
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() && found.uid() == getuid().as_raw() => fs::remove_dir_all(&path)?,
            _ => {}
        }
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A socket's path in it.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.sock"))
    }

    /// A file's path in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for RuntimeDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes this user's folders of engines that were killed. Failing to is harmless.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix("quire-")) else { continue };
        let Ok(pid) = rest.rsplit('-').next().unwrap_or_default().parse::<u32>() else { continue };
        let ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == getuid().as_raw());
        if ours && !Path::new("/proc").join(pid.to_string()).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_private_and_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join("quire-999999999");
        fs::create_dir(&dead).unwrap();
        let dir = RuntimeDir::create(Some(parent.path())).unwrap();
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o700);
        assert!(dir.path().starts_with(parent.path()));
        assert!(!dead.exists(), "what a killed engine left is removed");
        let path = dir.path().to_owned();
        drop(dir);
        assert!(!path.exists());
    }
}
