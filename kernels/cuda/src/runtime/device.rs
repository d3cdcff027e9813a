//! The device as operations use it: memory, copies, CUDA graphs, and the first fault, after which nothing runs any
//! more.

mod launch;
mod launches;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::OpenError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::graph::cuda_graph::{self, Graph};
use crate::jit::compile_queue::CompileQueue;
use crate::jit::compiler::{Compiler, FirstKernels};
use crate::jit::sources::Source;
use crate::jit::specialization::Special;
use crate::runtime::context::{
    Beside, Context, Event, Memory, Pinned, copy_beside, copy_in_background, explain, load_module,
};
use crate::runtime::libraries::Folders;
use crate::runtime::profile::Profile;
use kernels::ops::{CaptureError, Timing, Wait, WaitFor};
use launch::Module;
pub(crate) use launch::{Argument, MOMENT, Name, Shape, args};

/// A GPU with its kernels.
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: HashMap<Name, sys::CUfunction>,
    /// What makes kernels for a shape, and those made: absent where that failed.
    compile_queue: CompileQueue,
    special: HashMap<Special, Option<Module>>,
    /// Kernels that steps to come will need, and their shared memory.
    wishes: Vec<(Special, usize)>,
    /// Clusters that run at once, by kernel and shared memory of a block.
    clusters: HashMap<(Special, usize), usize>,
    /// Whether kernels with large clusters run here, by shared memory of a block.
    clustered: HashMap<(Name, usize), bool>,
    fault: Option<String>,
    capturing: Option<Capturing>,
    profile: Option<Profile>,
    /// What the host waited for, until somebody asks.
    waits: Vec<Wait>,
    /// Kernels that nearly every start has, and that were to be compiled.
    first: Vec<Source>,
}

/// Waits that are worth telling of, and how many are kept.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const MOST_WAITS: usize = 256;

/// What is queued is recorded instead of run.
#[derive(Default)]
struct Capturing {
    /// Why it cannot be used: something was asked for that cannot be recorded, or failed.
    refused: Option<String>,
}

impl Device {
    /// Loads those of a GPU's first kernels that are cached; several starts may share the cache. The others are
    /// compiled from here on, and loaded when they are needed, or by [`Self::load_first`].
    pub(crate) fn open(
        context: Arc<Context>,
        folders: &Folders,
        cache: Option<&Path>,
    ) -> Result<(Self, FirstKernels), OpenError> {
        let compiler = Compiler::new(folders, cache);
        let (cached, missing) = compiler.first(context.arch).map_err(OpenError::Kernel)?;
        let unkept = if missing.is_empty() { None } else { compiler.cannot_keep() };
        let first = FirstKernels { compiling: missing.len(), cached: cached.len(), unkept };
        let mut modules = HashMap::new();
        for file in cached {
            let failed = |error| OpenError::Kernel(format!("kernel {}: {}", file.name, explain(error)));
            let module = load_module(&file.cubin).map_err(failed)?;
            modules.insert(file.name, module);
        }
        let compile_queue = CompileQueue::new(compiler, context.arch);
        let (seldom, missing): (Vec<_>, Vec<_>) = missing.into_iter().partition(Source::is_seldom);
        missing.iter().for_each(|source| compile_queue.order(*source));
        seldom.into_iter().for_each(|source| compile_queue.order_last(source));
        let device = Self {
            context,
            modules,
            functions: HashMap::new(),
            compile_queue,
            special: HashMap::new(),
            wishes: Vec::new(),
            clusters: HashMap::new(),
            clustered: HashMap::new(),
            fault: None,
            capturing: None,
            profile: None,
            waits: Vec::new(),
            first: missing,
        };
        Ok((device, first))
    }

    /// The host has waited since `start`.
    pub(crate) fn note_wait(&mut self, reason: WaitFor, start: Instant, name: impl FnOnce() -> String) {
        let took = start.elapsed();
        if took >= SHORTEST_WAIT && self.waits.len() < MOST_WAITS {
            self.waits.push(Wait { reason, name: name(), took });
        }
    }

    /// What it has waited for since the last call.
    pub(crate) fn take_waits(&mut self) -> Vec<Wait> {
        std::mem::take(&mut self.waits)
    }

    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// From now on nothing runs. The first reason is kept: later ones follow from it.
    pub(crate) fn fail(&mut self, reason: String) {
        self.fault.get_or_insert(reason);
    }

    /// Runs something on the device unless it has failed; what fails is remembered.
    pub(crate) fn attempt<T>(
        &mut self,
        what: impl FnOnce() -> String,
        run: impl FnOnce(&Arc<Context>) -> Result<T, DriverError>,
    ) -> Option<T> {
        if self.fault.is_some() {
            return None;
        }
        match run(&self.context) {
            Ok(value) => Some(value),
            // Nothing has run.
            Err(error) if self.is_capturing() => {
                self.refuse(|| format!("{} cannot be recorded: {}", what(), explain(error)));
                None
            }
            Err(error) => {
                let (name, remedy) = (&self.context.name, remedy(error));
                self.fail(format!("GPU {name} failed: {}: {}{remedy}", what(), explain(error)));
                None
            }
        }
    }

    /// Does what must not be part of a capture.
    fn attempt_now<T>(
        &mut self,
        what: impl Fn() -> String,
        run: impl FnOnce(&Arc<Context>) -> Result<T, DriverError>,
    ) -> Option<T> {
        if self.refuse(|| format!("a step needs {}", what())) { None } else { self.attempt(&what, run) }
    }

    /// Queues a kernel or the like; a profile notes it, unless it is recorded and does not run.
    pub(crate) fn queue(
        &mut self,
        name: impl Fn() -> String,
        run: impl FnOnce(&Arc<Context>) -> Result<(), DriverError>,
    ) {
        let (mut profile, runs, start) = (self.profile.take(), !self.is_capturing(), Instant::now());
        self.attempt(
            || format!("kernel {}", name()),
            |context| match &mut profile {
                Some(profile) if runs => profile.note(context, name(), run),
                _ => run(context),
            },
        );
        self.note_wait(WaitFor::Driver, start, name);
        self.profile = profile;
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.capturing.is_some()
    }

    /// Gives a capture up, if there is one; whether there is.
    pub(crate) fn refuse(&mut self, reason: impl FnOnce() -> String) -> bool {
        let Some(capturing) = &mut self.capturing else { return false };
        capturing.refused.get_or_insert_with(reason);
        true
    }

    /// From here on what is queued is recorded and does not run.
    pub(crate) fn start_capture(&mut self) {
        if self.attempt(|| "starting to record".to_owned(), |context| cuda_graph::begin(context)).is_some() {
            self.capturing = Some(Capturing::default());
        }
    }

    /// What was recorded since then, or why it cannot be used.
    pub(crate) fn stop_capture(&mut self) -> Result<Graph, CaptureError> {
        let Some(Capturing { refused }) = self.capturing.take() else {
            return Err(self.fault.clone().map_or(CaptureError::NotBegun, CaptureError::Device));
        };
        if let Some(reason) = refused {
            cuda_graph::abandon(&self.context);
            return Err(CaptureError::Refused(reason));
        }
        cuda_graph::end(&self.context).map_err(|error| CaptureError::Driver(explain(error)))
    }

    /// Queues a captured step.
    pub(crate) fn launch_graph(&mut self, graph: &Graph) {
        self.queue(|| "cuda_graph".to_owned(), |_| graph.launch());
    }

    /// From here on, what is queued is timed.
    pub(crate) fn start_profile(&mut self) {
        if self.context.tells_time() {
            self.profile = self.attempt(|| "a profile".to_owned(), Profile::start);
        }
    }

    /// Waits for what was queued since then, and says how long it took.
    pub(crate) fn end_profile(&mut self) -> Vec<Timing> {
        self.synchronize();
        let Some(profile) = self.profile.take() else { return Vec::new() };
        self.attempt(|| "a profile".to_owned(), |_| profile.timings()).unwrap_or_default()
    }

    pub(crate) fn is_profiled(&self) -> bool {
        self.profile.is_some()
    }

    /// To be called where another thread may have worked before.
    pub(crate) fn bind(&mut self) {
        self.attempt(|| "using its context".to_owned(), |context| context.bind());
    }

    pub(crate) fn allocate(&mut self, bytes: usize, what: &str) -> Option<Memory> {
        let size = || {
            let free = crate::runtime::context::free_and_total().map_or(0, |(free, _)| free);
            format!("{} MiB for {what} ({} MiB are free)", bytes.div_ceil(1 << 20), free >> 20)
        };
        self.attempt_now(size, |context| Memory::new(context, bytes))
    }

    /// Memory that grows to the largest that is asked for; 0 where there is none.
    pub(crate) fn reserve(&mut self, memory: &mut Option<Memory>, bytes: usize, what: &str) -> sys::CUdeviceptr {
        if memory.as_ref().map_or(0, |memory| memory.bytes) < bytes {
            *memory = None;
            *memory = self.allocate(bytes, what);
        }
        memory.as_ref().map_or(0, |memory| memory.ptr)
    }

    pub(crate) fn pin(&mut self, bytes: usize) -> Option<Pinned> {
        self.attempt_now(|| format!("{bytes} bytes of pinned host memory"), |context| Pinned::new(context, bytes))
    }

    pub(crate) fn event(&mut self) -> Option<Event> {
        self.attempt_now(|| "an event".to_owned(), Event::new)
    }

    /// Waits for all work. A kernel's fault shows here.
    pub(crate) fn synchronize(&mut self) {
        if !self.refuse(|| "a step waits for the device".to_owned()) {
            self.attempt(|| "a step".to_owned(), |context| context.synchronize());
        }
    }

    /// Queues a copy from pinned host memory, which must stay as it is until the copy was waited for.
    pub(crate) fn upload(&mut self, from: &Pinned, range: std::ops::Range<usize>, to: sys::CUdeviceptr) {
        assert!(range.end <= from.bytes, "{range:?} of {} bytes", from.bytes);
        self.attempt_now(
            || "a copy to the device".to_owned(),
            // SAFETY: the range is inside the pinned memory (checked); the caller gives room for it at `to`.
            |context| unsafe {
                let from = from.as_ptr().add(range.start).cast();
                sys::cuMemcpyHtoDAsync_v2(to, from, range.len(), context.stream).result()
            },
        );
    }

    /// The same beside the stream: the copy begins when the stream has passed `free`, and what is queued from here on
    /// when it has `arrived`.
    pub(crate) fn upload_beside(&mut self, from: &Pinned, bytes: usize, to: sys::CUdeviceptr, beside: Beside<'_>) {
        assert!(bytes <= from.bytes, "{bytes} of {} bytes", from.bytes);
        self.attempt_now(
            || "a copy to the device".to_owned(),
            |_| {
                // SAFETY: so much pinned memory is there (checked), and room at `to` (the caller's).
                unsafe { copy_beside(from.as_ptr(), to, bytes, beside) }?;
                beside.arrived.hold_stream()
            },
        );
    }

    /// Queues a copy from pinned host memory in the background; both ends stay as they are until it was waited for.
    pub(crate) fn upload_in_background(&mut self, from: &Pinned, range: std::ops::Range<usize>, to: sys::CUdeviceptr) {
        assert!(range.end <= from.bytes, "{range:?} of {} bytes", from.bytes);
        self.attempt_now(
            || "a copy to the device".to_owned(),
            // SAFETY: the range is inside the pinned memory (checked); the caller gives room for it at `to`, and sees
            // to it that neither changes.
            |context| unsafe { copy_in_background(context, from.as_ptr().add(range.start), to, range.len()) },
        );
    }

    /// Copies to pinned host memory and waits for it.
    pub(crate) fn download(&mut self, from: sys::CUdeviceptr, to: &mut Pinned, bytes: usize) {
        assert!(bytes <= to.bytes);
        self.attempt_now(
            || "a copy from the device".to_owned(),
            // SAFETY: there is room (checked), and `bytes` bytes at `from` (the caller's).
            |context| unsafe {
                let to = to.slice_mut::<u8>(bytes).as_mut_ptr().cast();
                sys::cuMemcpyDtoHAsync_v2(to, from, bytes, context.stream).result()
            },
        );
        self.synchronize();
    }

    /// Queues a copy inside the device's memory.
    pub(crate) fn copy(&mut self, from: sys::CUdeviceptr, to: sys::CUdeviceptr, bytes: usize) {
        self.attempt(
            || "a copy on the device".to_owned(),
            // SAFETY: both ranges are the caller's allocations.
            |context| unsafe { result::memcpy_dtod_async(to, from, bytes, context.stream) },
        );
    }

    /// Queues what a library launches on the stream; its error says what failed.
    pub(crate) fn run(&mut self, queue: impl FnOnce(sys::CUstream) -> Result<(), String>) {
        if self.fault.is_none()
            && let Err(reason) = queue(self.context.stream)
        {
            self.fail(format!("GPU {} failed: {reason}", self.context.name));
        }
    }

    /// Makes memory all zeros.
    pub(crate) fn clear(&mut self, memory: &Memory) {
        self.fill(memory, 0);
    }

    /// Makes every byte of memory the same.
    pub(crate) fn fill(&mut self, memory: &Memory, byte: u8) {
        self.attempt(
            || "filling memory".to_owned(),
            // SAFETY: as many bytes as the memory has.
            |context| unsafe { sys::cuMemsetD8Async(memory.ptr, byte, memory.bytes, context.stream).result() },
        );
    }
}

/// What to do about an error, where something can be done.
fn remedy(error: DriverError) -> &'static str {
    match error.0 {
        sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => {
            "; what takes memory: weights, which --tensor-parallel-size spreads over GPUs, steps \
             (--max-num-batched-tokens, --max-num-seqs), \
             the cache (--gpu-memory-utilization, --kv-cache-memory-bytes), and other processes on this GPU"
        }
        _ => "",
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            let _ = self.context.synchronize();
            let special = self.special.values().flatten().map(|module| &module.module);
            for module in self.modules.values().chain(special) {
                // SAFETY: loaded by this, and its functions are not used again.
                let _ = unsafe { result::module::unload(*module) };
            }
        }
    }
}
