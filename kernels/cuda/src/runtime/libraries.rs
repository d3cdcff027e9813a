//! Finding CUDA's libraries at run time: where the system has them, or in a Python environment, where many servers have
//! them.
//!
//! cudarc opens libraries by bare name and panics when one is missing. So each is opened here first, by its full path
//! where it is not installed for the whole system (the loader then knows it by name), and asked for before anything is
//! called.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::runtime::joined::Joined;
use cudarc::{cublaslt, driver, nvrtc};

/// Folders to search before the system's, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders(pub Vec<PathBuf>);

/// What the environment says about where libraries may be. Read by the caller: this crate reads no environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// Folders that somebody named, `:` between them (`QUIRE_CUDA_LIBRARY_PATH`).
    pub named: Option<&'a OsStr>,
    /// `VIRTUAL_ENV`.
    pub virtual_env: Option<&'a OsStr>,
    /// `PATH`: beside a `python3` there may be its packages.
    pub path: Option<&'a OsStr>,
}

/// A library: the name that cudarc finds it by once it is open, and what must be open before.
struct Library {
    what: &'static str,
    /// Starts of file names, dependencies first; any version will do.
    files: &'static [&'static str],
    present: unsafe fn() -> bool,
}

const NVRTC: Library =
    Library { what: "NVRTC", files: &["libnvrtc-builtins.so.", "libnvrtc.so."], present: nvrtc::sys::is_culib_present };
const CUBLASLT: Library =
    Library { what: "cuBLASLt", files: &["libcublasLt.so."], present: cublaslt::sys::is_culib_present };

/// Names of NCCL's file: Python's packages have the one with a version only.
const NCCL: &str = "libnccl.so.2";

/// A library that is open until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Opened(*mut c_void);

impl Opened {
    /// A function of the library.
    ///
    /// # Safety
    /// `F` must be a function pointer of the right type.
    pub(crate) unsafe fn function<F: Copy>(self, name: &CStr) -> Result<F, String> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "the size of a function pointer");
        // SAFETY: the handle is open, the name a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("{NCCL} has no {}; a newer one is needed", name.to_string_lossy()));
        }
        // SAFETY: a pointer that is not null, of the size of `F` (checked), and of its type (the caller's promise).
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

impl Folders {
    /// The folders that these surroundings hint at, those that exist.
    pub fn of(surroundings: Surroundings<'_>) -> Self {
        let split = |list: Option<&OsStr>| -> Vec<PathBuf> {
            list.map(|list| std::env::split_paths(list).filter(|path| path.is_absolute()).collect()).unwrap_or_default()
        };
        let mut folders = split(surroundings.named);
        let mut environments: Vec<PathBuf> = surroundings.virtual_env.map(PathBuf::from).into_iter().collect();
        let has_python = |bin: &PathBuf| bin.join("python3").exists();
        environments.extend(
            split(surroundings.path).into_iter().filter(has_python).filter_map(|bin| bin.parent().map(Path::to_owned)),
        );
        environments.extend(subfolders(Path::new("/opt")).map(|folder| folder.join(".venv")));
        for environment in environments {
            for python in subfolders(&environment.join("lib")) {
                for packages in ["site-packages", "dist-packages"] {
                    let nvidia = python.join(packages).join("nvidia");
                    folders.extend(subfolders(&nvidia).map(|package| package.join("lib")));
                }
            }
        }
        folders.extend(["/usr/local/cuda/lib64", "/usr/local/nvidia/lib64"].map(PathBuf::from));
        folders.retain(|folder| folder.is_dir());
        let mut seen = Vec::new();
        folders.retain(|folder| {
            !seen.contains(folder) && {
                seen.push(folder.clone());
                true
            }
        });
        Self(folders)
    }

    /// Begins to open what a GPU will be used with, where there is a driver: that takes longer than the driver needs to
    /// start. What cannot be opened is told by who needs it.
    pub fn open_ahead(&self) -> Option<Joined> {
        let folders = self.clone();
        let open = move || {
            let _ = folders.open_cublaslt();
            let _ = folders.open_nvrtc();
        };
        open_driver().ok().and_then(|()| Joined::spawn("libraries", open).ok())
    }

    /// Makes NVRTC usable, or says why not.
    pub(crate) fn open_nvrtc(&self) -> Result<(), String> {
        self.open(&NVRTC)
    }

    /// Makes cuBLASLt usable, or says why not.
    pub(crate) fn open_cublaslt(&self) -> Result<(), String> {
        self.open(&CUBLASLT)
    }

    /// NCCL, or why it is not there.
    pub(crate) fn open_nccl(&self) -> Result<Opened, String> {
        let found = self.0.iter().find_map(|folder| file_in(folder, NCCL));
        let opened = found.map_or_else(|| open_path(Path::new(NCCL)), |path| open_path(&path));
        opened.map_err(|reason| self.absent("NCCL", NCCL, "nvidia-nccl-cu13", &reason))
    }

    fn open(&self, library: &Library) -> Result<(), String> {
        let folder = self.0.iter().find(|folder| library.files.iter().all(|start| file_in(folder, start).is_some()));
        if let Some(folder) = folder {
            for path in library.files.iter().filter_map(|start| file_in(folder, start)) {
                keep_open(&path)?;
            }
        }
        // SAFETY: loading these libraries runs their initialisers, which have no preconditions.
        if unsafe { (library.present)() } {
            return Ok(());
        }
        let file = format!("{}*", library.files.last().copied().unwrap_or_default());
        Err(self.absent(library.what, &file, "nvidia-cuda-nvrtc nvidia-cublas", ""))
    }

    fn absent(&self, what: &str, file: &str, packages: &str, reason: &str) -> String {
        let places: Vec<_> = self.0.iter().map(|folder| folder.display().to_string()).collect();
        let places = if places.is_empty() { "any Python environment".to_owned() } else { places.join(", ") };
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        format!(
            "{what} ({file}) is neither installed nor in {places}; name its folder in \
             QUIRE_CUDA_LIBRARY_PATH, or install it \
             (for example pip install {packages}){reason}"
        )
    }
}

/// The driver, or why there is none.
pub(crate) fn open_driver() -> Result<(), OpenError> {
    for folder in ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"] {
        // SAFETY: as in `open`.
        if unsafe { driver::sys::is_culib_present() } {
            break;
        }
        if let Some(path) = file_in(Path::new(folder), "libcuda.so.1") {
            keep_open(&path).map_err(OpenError::Library)?;
        }
    }
    // SAFETY: as in `open`.
    match unsafe { driver::sys::is_culib_present() } {
        true => Ok(()),
        false => Err(OpenError::NoDriver),
    }
}

/// The first file of a folder whose name starts so.
fn file_in(folder: &Path, start: &str) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    names.filter(|name| name.as_bytes().starts_with(start.as_bytes())).min().map(|name| folder.join(name))
}

fn subfolders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut found: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect(),
        Err(_) => Vec::new(),
    };
    found.sort();
    found.into_iter()
}

/// Opens a library for the life of the process, so that its name is known to the loader.
fn keep_open(path: &Path) -> Result<(), String> {
    open_path(path).map(drop)
}

fn open_path(path: &Path) -> Result<Opened, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{} holds a NUL", path.display()))?;
    // SAFETY: the name is a C string; CUDA's libraries have no preconditions for being loaded.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(Opened(handle));
    }
    // SAFETY: after a failed dlopen, dlerror returns a C string of this thread, or null.
    let reason = unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    Err(format!("cannot load {}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_python_environments_are_found_once() {
        let root = tempfile::tempdir().expect("a folder");
        let lib = root.path().join("lib/python3.12/site-packages/nvidia/cu13/lib");
        fs::create_dir_all(&lib).expect("made");
        fs::create_dir_all(root.path().join("bin")).expect("made");
        fs::write(root.path().join("bin/python3"), "").expect("written");
        let named = root.path().join("bin");
        let path = std::env::join_paths([root.path().join("bin"), root.path().join("absent")]).expect("a list");
        let folders = Folders::of(Surroundings {
            named: Some(named.as_os_str()),
            virtual_env: Some(root.path().as_os_str()),
            path: Some(&path),
        });
        assert_eq!(folders.0[..2], [named, lib.clone()]);
        assert_eq!(folders.0.iter().filter(|folder| **folder == lib).count(), 1);
    }

    #[test]
    fn a_missing_library_is_one_line() {
        let absent = Library { what: "X", files: &["libquire-absent.so."], present: || false };
        let error = Folders::default().open(&absent).unwrap_err();
        assert!(error.contains("libquire-absent.so.*") && !error.contains('\n'), "{error}");
    }
}
