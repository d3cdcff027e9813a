//! The GPU of this machine, if it has one.

use std::sync::OnceLock;

use kernels::ops::{Backend, Device};
use kernels_cuda::{CudaBackend, CudaOptions, Folders, OpenError, Surroundings};

/// A backend on the first GPU; says once in a line why there is none, or fails where one is `required`.
pub fn backend(required: bool) -> Option<Box<dyn Backend>> {
    static FIRST: OnceLock<Result<CudaOptions, OpenError>> = OnceLock::new();
    let first = FIRST.get_or_init(|| {
        let options = options();
        // Kept for ever: opening a device for the first time takes long, and each test opens it again.
        let found = CudaBackend::open(&options).map(|backend| {
            eprintln!("CUDA: {}", backend.describe());
            std::mem::forget(backend);
            options
        });
        found.inspect_err(|reason| eprintln!("CUDA: skipped: {reason}"))
    });
    match first {
        Ok(options) => Some(open(options)),
        Err(reason) if required => panic!("QUIRE_TEST_DEVICE asks for a GPU: {reason}"),
        Err(_) => None,
    }
}

/// A backend on a GPU that is there.
pub fn open(options: &CudaOptions) -> Box<dyn Backend> {
    Box::new(CudaBackend::open(options).expect("a GPU that was there before"))
}

/// How the first GPU is opened.
pub fn options() -> CudaOptions {
    let variable = std::env::var_os;
    let (named, virtual_env, path) = (variable("QUIRE_CUDA_LIBRARY_PATH"), variable("VIRTUAL_ENV"), variable("PATH"));
    let surroundings =
        Surroundings { named: named.as_deref(), virtual_env: virtual_env.as_deref(), path: path.as_deref() };
    CudaOptions {
        ordinal: 0,
        folders: Folders::of(surroundings),
        kernel_cache: Some(std::env::temp_dir().join("quire-test-kernels")),
        ..CudaOptions::default()
    }
}
