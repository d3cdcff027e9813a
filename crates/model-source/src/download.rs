//! Brings one file into the cache: resumes what was interrupted, checks what arrived, and lets one program at a time do
//! it.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use reqwest::StatusCode;
use sha2::{Digest, Sha256};

use crate::{
    Event, Progress, SourceError,
    cache::Cache,
    hub::{Hub, RemoteFile},
};

/// Interrupted transfers are taken up again this often without a byte of progress.
const ATTEMPTS: u32 = 5;

/// Puts the blob of `file` into the cache.
pub(crate) async fn fetch(
    hub: &Hub<'_>,
    file: &RemoteFile<'_>,
    cache: &Cache,
    progress: &dyn Progress,
) -> Result<(), SourceError> {
    let blob = cache.blob(&file.etag);
    if blob.is_file() {
        return Ok(());
    }
    let _lock = lock(cache.lock(&file.etag)).await?;
    if blob.is_file() {
        return Ok(()); // the process that held the lock downloaded it
    }
    let mut partial = Partial::open(&blob, file)?;
    progress.event(Event::Begin { file: file.name, total_bytes: file.bytes, have_bytes: partial.have });
    let mut failures = 0;
    while partial.have < file.bytes {
        let before = partial.have;
        if let Err(error) = transfer(hub, file, &mut partial, progress).await {
            failures = if partial.have > before { 1 } else { failures + 1 };
            if failures >= ATTEMPTS || !is_passing(&error) {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(200 << failures)).await; // lets a troubled hub recover
        }
    }
    partial.finish(file, &blob)?;
    progress.event(Event::Done { file: file.name });
    Ok(())
}

/// Waits for the right to write a blob; two downloads of the same blob would tear it.
async fn lock(path: PathBuf) -> Result<File, SourceError> {
    let failed = |cause| SourceError::Io { doing: "lock", path: path.clone(), cause };
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
        Err(TryLockError::WouldBlock) => {}
    }
    let waited = tokio::task::spawn_blocking(move || file.lock().map(|()| file)).await;
    waited.map_err(io::Error::other).and_then(|locked| locked).map_err(failed)
}

/// Reads until the end of the file or of the connection.
async fn transfer(
    hub: &Hub<'_>,
    file: &RemoteFile<'_>,
    partial: &mut Partial,
    progress: &dyn Progress,
) -> Result<(), SourceError> {
    let response = hub.read(&file.url, partial.have).await?;
    match response.status() {
        StatusCode::PARTIAL_CONTENT => {}
        StatusCode::OK => partial.restart()?, // it does not know ranges
        StatusCode::RANGE_NOT_SATISFIABLE => return partial.restart(),
        status => return Err(SourceError::Status { url: file.url.clone(), status: status.as_u16() }),
    }
    let mut body = response.bytes_stream();
    while let Some(bytes) = body.next().await {
        let bytes = bytes.map_err(|error| SourceError::network(&file.url, &error))?;
        partial.append(&bytes)?;
        progress.event(Event::Advance { file: file.name, bytes: bytes.len() as u64 });
    }
    if partial.have < file.bytes {
        return Err(SourceError::Network { url: file.url.clone(), reason: "the connection ended early".to_owned() });
    }
    Ok(())
}

/// Whether trying again may help.
fn is_passing(error: &SourceError) -> bool {
    match error {
        SourceError::Network { .. } => true,
        SourceError::Status { status, .. } => *status == 429 || *status >= 500,
        _ => false,
    }
}

/// A blob while it arrives: the `.incomplete` file and the hash of what it holds.
struct Partial {
    path: PathBuf,
    file: File,
    have: u64,
    hash: Sha256,
}

impl Partial {
    /// Opens the blob's `.incomplete` file and takes up what an earlier run left in it.
    fn open(blob: &Path, remote: &RemoteFile<'_>) -> Result<Self, SourceError> {
        let path = blob.with_file_name(format!("{}.incomplete", remote.etag));
        let opened = File::options().read(true).append(true).create(true).open(&path);
        let file = opened.map_err(|source| SourceError::io("open", &path, source))?;
        let mut partial = Self { path, file, have: 0, hash: Sha256::new() };
        partial.hash_what_is_there().map_err(|source| SourceError::io("read", &partial.path, source))?;
        if partial.have > remote.bytes {
            partial.restart()?;
        }
        Ok(partial)
    }

    fn hash_what_is_there(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            self.hash.update(&buffer[..count]);
            self.have += count as u64;
        }
    }

    fn restart(&mut self) -> Result<(), SourceError> {
        self.file.set_len(0).map_err(|source| SourceError::io("truncate", &self.path, source))?;
        self.have = 0;
        self.hash = Sha256::new();
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), SourceError> {
        self.file.write_all(bytes).map_err(|source| SourceError::io("write", &self.path, source))?;
        self.hash.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Checks the blob and gives it its name.
    fn finish(self, remote: &RemoteFile<'_>, blob: &Path) -> Result<(), SourceError> {
        let size = (self.have != remote.bytes).then(|| ("size", remote.bytes.to_string(), self.have.to_string()));
        let found: String = self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = (remote.etag.len() == 64 && remote.etag != found).then(|| ("SHA-256", remote.etag.clone(), found));
        if let Some((what, expected, found)) = size.or(hash) {
            let _ = fs::remove_file(&self.path);
            return Err(SourceError::Damaged { file: remote.name.to_owned(), what, expected, found });
        }
        fs::rename(&self.path, blob).map_err(|source| SourceError::io("rename", &self.path, source))
    }
}
