//! Unix sockets that are listened on: made where none is, replaced where a dead process left one.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::FlockOperation;
use tokio::net::{UnixListener, UnixStream};

use crate::error::LinkError;

/// The file of a listening socket, removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode: a successor's file at the same path is left alone.
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            // Nothing is lost if it stays: the next listener replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`. Makes the folder; replaces the socket of a dead process; a live listener there is an error.
pub(crate) async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), LinkError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(LinkError::io("making the socket's folder"))?;
    // Two that start at once would each take the other's fresh socket for a stale one. The lock ends with the file.
    let lock = File::open(folder).map_err(LinkError::io("opening the socket's folder"))?;
    let locking =
        move || rustix::fs::flock(&lock, FlockOperation::LockExclusive).map(|()| lock).map_err(io::Error::from);
    let locked = tokio::task::spawn_blocking(locking).await.map_err(io::Error::other).and_then(|lock| lock);
    let _lock = locked.map_err(LinkError::io("locking the socket's folder"))?;
    clear(path).await.map_err(LinkError::io("listening"))?;
    let listener =
        UnixListener::bind(path).map_err(|error| with_path(error, path)).map_err(LinkError::io("listening"))?;
    let identity = identity(path).map_err(LinkError::io("listening"))?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

/// Removes a socket that nobody listens on.
async fn clear(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(with_path(error, path)),
        Ok(found) if !found.file_type().is_socket() => {
            let message = format!("{} exists and is not a socket", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::debug!(path = %path.display(), "replacing the socket that a dead process left");
            std::fs::remove_file(path)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or its backlog is full: somebody lives there.
        _ => {
            let message = format!("another process is listening on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn with_path(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
