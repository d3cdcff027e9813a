//! Machine code of all kernels for one architecture: from the cache on disk, or compiled now.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::jit::cache::Cache;
use crate::jit::nvrtc::Nvrtc;
use crate::jit::sources::{self, Source};
use crate::runtime::arch::Arch;
use crate::runtime::libraries::Folders;

/// Threads that compile at most, each of which takes a core and some 100 MB.
pub(crate) const MOST_THREADS: usize = 16;

/// The machine code of a file.
pub(crate) struct Compiled {
    pub(crate) name: &'static str,
    pub(crate) cubin: Vec<u8>,
}

/// Where kernels come from.
#[derive(Debug)]
pub(crate) struct Compiler {
    cache: Option<Cache>,
    /// Absent: only what is cached can be had; then the reason.
    nvrtc: Result<Nvrtc, String>,
    /// Why something that was compiled is not in the cache.
    unkept: OnceLock<String>,
}

/// What filling a cache did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Filled {
    /// Files compiled now.
    pub compiled: usize,
    /// Files that were there.
    pub cached: usize,
}

/// What it takes to have a device's first kernels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FirstKernels {
    /// Files that are being compiled since it was opened.
    pub compiling: usize,
    /// Files that were there.
    pub cached: usize,
    /// Why the next process compiles them again, if it has to.
    pub unkept: Option<String>,
}

impl Compiler {
    /// What lacks NVRTC has what is cached.
    pub(crate) fn new(folders: &Folders, cache: Option<&Path>) -> Self {
        Self { cache: cache.map(Cache::new), nvrtc: Nvrtc::load(folders), unkept: OnceLock::new() }
    }

    /// One that fills a cache, which takes NVRTC.
    pub(crate) fn filling(folders: &Folders, cache: &Path) -> Result<Self, String> {
        let (nvrtc, cache) = (Nvrtc::load(folders)?, Cache::new(cache));
        cache.check().map_err(|reason| format!("compiled kernels cannot be kept: {reason}"))?;
        Ok(Self { cache: Some(cache), nvrtc: Ok(nvrtc), unkept: OnceLock::new() })
    }

    /// Why what is compiled cannot be kept, if it cannot.
    pub(crate) fn cannot_keep(&self) -> Option<String> {
        self.cache.as_ref().and_then(|cache| cache.check().err())
    }

    /// Why something that was compiled so far will be compiled again by the next process, if that is so.
    pub(crate) fn unkept(&self) -> Option<&str> {
        self.unkept.get().map(String::as_str)
    }

    /// What is cached of the kernels that every start has; and those that are to be compiled, the longest first. Fails
    /// where they cannot be.
    pub(crate) fn first(&self, arch: Arch) -> Result<(Vec<Compiled>, Vec<Source>), String> {
        self.check_knows(arch)?;
        let sources = sources::first();
        let found = each(&sources, |source| self.cached(source, arch));
        let (mut cached, mut missing) = (Vec::new(), Vec::new());
        for (source, found) in found {
            match found {
                Some(cubin) => cached.push(Compiled { name: source.name, cubin }),
                None => missing.push(source),
            }
        }
        missing.sort_by_key(Source::turn);
        if let (false, Err(reason)) = (missing.is_empty(), &self.nvrtc) {
            return Err(cannot_compile(arch, reason));
        }
        Ok((cached, missing))
    }

    /// Several at a time; how many were compiled or cached.
    pub(crate) fn several(&self, sources: &[Source], arch: Arch) -> Result<Filled, String> {
        self.check_knows(arch)?;
        let mut sources = sources.to_vec();
        sources.sort_by_key(Source::turn);
        let mut filled = Filled::default();
        for (_, made) in each(&sources, |source| self.one(source, arch)) {
            let (_, fresh) = made?;
            *(if fresh { &mut filled.compiled } else { &mut filled.cached }) += 1;
        }
        Ok(filled)
    }

    fn check_knows(&self, arch: Arch) -> Result<(), String> {
        self.nvrtc.as_ref().map_or(Ok(()), |nvrtc| nvrtc.check_knows(arch))
    }

    /// What the cache has of a file.
    pub(crate) fn cached(&self, source: Source, arch: Arch) -> Option<Vec<u8>> {
        let version = self.nvrtc.as_ref().ok().map(|nvrtc| nvrtc.version.as_str());
        self.cache.as_ref()?.get(source, arch, version)
    }

    /// A file's machine code, and whether it was compiled now.
    pub(crate) fn one(&self, source: Source, arch: Arch) -> Result<(Vec<u8>, bool), String> {
        if let Some(cubin) = self.cached(source, arch) {
            return Ok((cubin, false));
        }
        let nvrtc = self.nvrtc.as_ref().map_err(|reason| cannot_compile(arch, reason))?;
        let cubin = nvrtc.compile(source, arch)?;
        // A cache that cannot be written costs time at the next start and nothing else.
        let put = self.cache.as_ref().map_or(Ok(()), |cache| cache.put(source, arch, &nvrtc.version, &cubin));
        if let Err(reason) = put {
            let _ = self.unkept.set(reason);
        }
        Ok((cubin, true))
    }
}

/// Does something with each source, on several threads; in no order.
fn each<T: Send>(sources: &[Source], work: impl Fn(Source) -> T + Sync) -> Vec<(Source, T)> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(sources.len())));
    let run = || {
        while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
            let done = work(*source);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((*source, done));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn cannot_compile(arch: Arch, reason: &str) -> String {
    format!("kernels must be compiled for {arch}, but {reason}")
}
