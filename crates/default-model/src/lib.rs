//! Wren, the small chat model that ships inside Quire: its files are part of the program and are laid out on disk on
//! demand.
//!
//! The workers map weight files, so the embedded bytes have to become files once. They go to
//! `<cache>/wren-<hash of all bytes>/`, so that programs of different versions never touch each other's copy.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

/// The name that the model is served under.
pub const NAME: &str = "wren";

/// One embedded file.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its name inside the model folder.
    pub name: &'static str,
    /// Its content.
    pub bytes: &'static [u8],
}

macro_rules! embedded {
    ($($name:literal from $path:literal,)*) => {
        &[$(File { name: $name, bytes: include_bytes!(concat!("../files/", $path)) },)*]
    };
}

/// Every file of the model folder, sorted by name.
pub const FILES: &[File] = embedded![
    "ATTRIBUTION.md" from "ATTRIBUTION.md",
    "chat_template.jinja" from "model/chat_template.jinja",
    "config.json" from "model/config.json",
    "generation_config.json" from "model/generation_config.json",
    "model-00001-of-00002.safetensors" from "model/model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors" from "model/model-00002-of-00002.safetensors",
    "model.safetensors.index.json" from "model/model.safetensors.index.json",
    "special_tokens_map.json" from "model/special_tokens_map.json",
    "tokenizer.json" from "model/tokenizer.json",
    "tokenizer_config.json" from "model/tokenizer_config.json",
];

/// Why the model could not be laid out.
#[derive(Debug)]
pub struct ExtractError {
    /// What was tried: "create", "compare", "write" or "rename".
    pub doing: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// What the operating system said.
    pub source: io::Error,
}

impl std::fmt::Display for ExtractError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the built-in model: cannot {} {}: {}", self.doing, self.path.display(), self.source)
    }
}

impl std::error::Error for ExtractError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Lays the model out under `cache_dir` and returns its folder.
///
/// Every file is compared byte for byte with what the program holds, and replaced (written beside, then renamed over)
/// where it differs. So a file is whole or absent whatever was killed when, any number of programs may do this at once,
/// and a folder that is already right costs one read of 24 MB from the page cache.
pub fn extract(cache_dir: &Path) -> Result<PathBuf, ExtractError> {
    let folder = cache_dir.join(format!("{NAME}-{:016x}", fingerprint(FILES)));
    fs::create_dir_all(&folder).map_err(|source| ExtractError { doing: "create", path: folder.clone(), source })?;
    let mut wrote = false;
    for file in FILES {
        let path = folder.join(file.name);
        if !holds(&path, file.bytes).map_err(|source| ExtractError { doing: "compare", path: path.clone(), source })? {
            replace(&folder, file)?;
            wrote = true;
        }
    }
    if wrote {
        remove_leftovers(&folder);
    }
    Ok(folder)
}

/// A hash of names and contents. Tells versions apart; it does not protect against an enemy.
fn fingerprint(files: &[File]) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut hash = PRIME;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(PRIME).rotate_left(29);
    for file in files {
        for part in [file.name.as_bytes(), file.bytes] {
            mix(part.len() as u64);
            let (words, rest) = part.as_chunks::<8>();
            for word in words {
                mix(u64::from_le_bytes(*word));
            }
            for byte in rest {
                mix(u64::from(*byte));
            }
        }
    }
    hash
}

/// Whether `path` is a file with exactly these bytes.
fn holds(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != bytes.len() as u64 {
        return Ok(false);
    }
    let mut buffer = vec![0; bytes.len().min(1 << 18)];
    for expected in bytes.chunks(buffer.len().max(1)) {
        let found = &mut buffer[..expected.len()];
        match file.read_exact(found) {
            Ok(()) if found == expected => {}
            Ok(()) => return Ok(false),
            // Somebody cut the file between the two calls.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn replace(folder: &Path, file: &File) -> Result<(), ExtractError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let scratch = folder.join(format!(".{}.{number}.{}.tmp", file.name, std::process::id()));
    let path = folder.join(file.name);
    let write = || -> io::Result<()> { fs::File::create(&scratch)?.write_all(file.bytes) };
    write().map_err(|source| {
        let _ = fs::remove_file(&scratch); // a full disk should not be left fuller
        ExtractError { doing: "write", path: scratch.clone(), source }
    })?;
    fs::rename(&scratch, &path).map_err(|source| ExtractError { doing: "rename", path, source })
}

/// Removes scratch files whose writer is dead. Failing to is harmless.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".tmp")) else { continue };
        let writer = name.rsplit('.').next().unwrap_or_default();
        if !Path::new("/proc").join(writer).exists() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_folder(folder: &Path) {
        for file in FILES {
            assert!(holds(&folder.join(file.name), file.bytes).unwrap(), "{}", file.name);
        }
        assert_eq!(fs::read_dir(folder).unwrap().count(), FILES.len(), "nothing else lies in {}", folder.display());
    }

    #[test]
    fn lays_out_every_file() {
        let cache = tempfile::tempdir().unwrap();
        let folder = extract(cache.path()).unwrap();
        check_folder(&folder);
        assert_eq!(extract(cache.path()).unwrap(), folder);
    }

    #[test]
    fn mends_what_is_truncated_changed_or_left_over() {
        let cache = tempfile::tempdir().unwrap();
        let folder = extract(cache.path()).unwrap();
        let weights = folder.join("model-00001-of-00002.safetensors");
        fs::File::options().write(true).open(&weights).unwrap().set_len(1000).unwrap();
        let mut config = fs::read(folder.join("config.json")).unwrap();
        config[10] ^= 1;
        fs::write(folder.join("config.json"), config).unwrap();
        fs::write(folder.join(".tokenizer.json.0.999999999.tmp"), "half").unwrap();
        assert_eq!(extract(cache.path()).unwrap(), folder);
        check_folder(&folder);
    }

    #[test]
    fn does_not_write_a_folder_that_is_right() {
        let cache = tempfile::tempdir().unwrap();
        let folder = extract(cache.path()).unwrap();
        let modified = || fs::metadata(folder.join("tokenizer.json")).unwrap().modified().unwrap();
        let before = modified();
        extract(cache.path()).unwrap();
        assert_eq!(modified(), before);
    }

    #[test]
    fn many_at_once_agree() {
        let cache = tempfile::tempdir().unwrap();
        let folders: Vec<_> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| extract(cache.path()).unwrap())).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(folders.windows(2).all(|pair| pair[0] == pair[1]));
        check_folder(&folders[0]);
    }

    #[test]
    fn says_what_it_could_not_create() {
        let cache = tempfile::tempdir().unwrap();
        let file = cache.path().join("file");
        fs::write(&file, "").unwrap();
        let error = extract(&file).unwrap_err();
        assert_eq!(error.doing, "create");
        assert!(error.to_string().contains("file/wren-"), "{error}");
    }
}
