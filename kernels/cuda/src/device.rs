//! The device as operations use it: launches by name, and the first fault, after which nothing runs any more.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::context::{Context, Event, Memory, Pinned, explain, load_module};
use super::graph::{self, Graph};
use super::libraries::Folders;
use super::modules::Compiler;
use super::profile::Profile;
use super::special::{HOPPER, Special};
use kernels::ops::{DType, Timing};

/// A GPU with its kernels.
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    modules: HashMap<&'static str, sys::CUmodule>,
    functions: HashMap<Name, sys::CUfunction>,
    /// What makes kernels for a shape, and those made: absent where that failed.
    compiler: Compiler,
    special: HashMap<Special, Option<Module>>,
    /// Clusters that run at once, by kernel and shared memory of a block.
    clusters: HashMap<(Special, usize), usize>,
    fault: Option<String>,
    recording: Option<Recording>,
    profile: Option<Profile>,
}

/// What is queued is recorded instead of run.
#[derive(Default)]
struct Recording {
    /// Why it cannot be used: something was asked for that cannot be recorded, or failed.
    refused: Option<String>,
}

/// A module with one function, and the dynamic shared memory that the function may use so far.
#[derive(Clone, Copy)]
struct Module {
    module: sys::CUmodule,
    function: sys::CUfunction,
    shared: usize,
}

/// A kernel: its file, its function, and the element types that end the function's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Name {
    file: &'static str,
    function: &'static str,
    types: [Option<DType>; 3],
}

impl Name {
    /// The function named like its file.
    pub(crate) fn of(file: &'static str, types: &[DType]) -> Self {
        Self::in_file(file, file, types)
    }

    pub(crate) fn in_file(file: &'static str, function: &'static str, types: &[DType]) -> Self {
        let mut all = [None; 3];
        all.iter_mut().zip(types).for_each(|(slot, dtype)| *slot = Some(*dtype));
        Self { file, function, types: all }
    }

    fn symbol(&self) -> String {
        let types = self.types.iter().flatten().map(|dtype| format!("_{}", dtype.name()));
        std::iter::once(self.function.to_owned()).chain(types).collect()
    }
}

/// Blocks, threads a block, and bytes of dynamic shared memory a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [usize; 2],
    pub(crate) block: usize,
    pub(crate) shared: usize,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { grid: [x, y], block, .. } = self;
        write!(f, "[{x} x {y} blocks of {block}]")
    }
}

impl Shape {
    /// For a launch on `stream` with these attributes, which must outlive its use.
    fn config(self, stream: sys::CUstream, attributes: &mut [sys::CUlaunchAttribute]) -> sys::CUlaunchConfig {
        sys::CUlaunchConfig {
            gridDimX: self.grid[0] as u32,
            gridDimY: self.grid[1] as u32,
            gridDimZ: 1,
            blockDimX: self.block as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared as u32,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        }
    }

    /// Blocks of `block` threads for `count` elements, each thread taking several when there are very many.
    pub(crate) fn elements(count: usize) -> Self {
        const BLOCK: usize = 256;
        Self { grid: [count.div_ceil(BLOCK).min(1 << 16), 1], block: BLOCK, shared: 0 }
    }

    /// A block for each row, its threads a multiple of 32 that depends on the width alone.
    pub(crate) fn rows(rows: usize, width: usize) -> Self {
        Self { grid: [rows, 1], block: width.next_multiple_of(32).clamp(32, 1024), shared: 0 }
    }
}

/// Pointers to the arguments of a launch. To be written inside the call: values that it borrows live until the end of the statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        &mut [$(std::ptr::from_ref(&$value).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
pub(crate) use args;

impl Device {
    /// Opens a GPU and loads its kernels; several starts may share the cache.
    pub(crate) fn open(ordinal: u32, folders: &Folders, cache: Option<&Path>) -> Result<Self, String> {
        let context = Context::open(ordinal)?;
        let compiler = Compiler::new(folders, cache);
        let (compiled, _) = compiler.all(context.arch)?;
        let mut modules = HashMap::new();
        for file in compiled {
            let module =
                load_module(&file.cubin).map_err(|error| format!("kernel {}: {}", file.name, explain(error)))?;
            modules.insert(file.name, module);
        }
        Ok(Self {
            context,
            modules,
            functions: HashMap::new(),
            compiler,
            special: HashMap::new(),
            clusters: HashMap::new(),
            fault: None,
            recording: None,
            profile: None,
        })
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
            Err(error) if self.is_recording() => {
                self.refuse(|| format!("{} cannot be recorded: {}", what(), explain(error)));
                None
            }
            Err(error) => {
                let name = &self.context.name;
                self.fail(format!("GPU {name} failed: {}: {}", what(), explain(error)));
                None
            }
        }
    }

    /// Does what must not be part of a recording.
    fn attempt_now<T>(
        &mut self,
        what: impl Fn() -> String,
        run: impl FnOnce(&Arc<Context>) -> Result<T, DriverError>,
    ) -> Option<T> {
        if self.refuse(|| format!("a step needs {}", what())) { None } else { self.attempt(&what, run) }
    }

    /// Queues a kernel or the like; a profile notes it.
    pub(crate) fn queue(
        &mut self,
        name: impl Fn() -> String,
        run: impl FnOnce(&Arc<Context>) -> Result<(), DriverError>,
    ) {
        let mut profile = self.profile.take();
        self.attempt(
            || format!("kernel {}", name()),
            |context| match &mut profile {
                Some(profile) => profile.note(context, name(), run),
                None => run(context),
            },
        );
        self.profile = profile;
    }

    pub(crate) fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Gives a recording up, if there is one; whether there is.
    pub(crate) fn refuse(&mut self, reason: impl FnOnce() -> String) -> bool {
        let Some(recording) = &mut self.recording else { return false };
        recording.refused.get_or_insert_with(reason);
        true
    }

    /// From here on what is queued is recorded and does not run.
    pub(crate) fn start_recording(&mut self) {
        if self.attempt(|| "starting to record".to_owned(), |context| graph::begin(context)).is_some() {
            self.recording = Some(Recording::default());
        }
    }

    /// What was recorded since then, or why it cannot be used.
    pub(crate) fn end_recording(&mut self) -> Result<Graph, String> {
        let Some(Recording { refused }) = self.recording.take() else {
            return Err(self.fault.clone().unwrap_or_else(|| "nothing was recorded".to_owned()));
        };
        if let Some(reason) = refused {
            graph::abandon(&self.context);
            return Err(reason);
        }
        graph::end(&self.context).map_err(|error| format!("the driver does not take the recording: {}", explain(error)))
    }

    /// Queues a recording.
    pub(crate) fn launch_graph(&mut self, graph: &Graph) {
        self.queue(|| "recorded step".to_owned(), |_| graph.launch());
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

    /// To be called where another thread may have worked before.
    pub(crate) fn bind(&mut self) {
        self.attempt(|| "using its context".to_owned(), |context| context.bind());
    }

    pub(crate) fn allocate(&mut self, bytes: usize, what: &str) -> Option<Memory> {
        let size = || {
            let free = super::context::free_and_total().map_or(0, |(free, _)| free);
            format!("{} MiB for {what} ({} MiB are free)", bytes.div_ceil(1 << 20), free >> 20)
        };
        self.attempt_now(size, |context| Memory::new(context, bytes))
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

    /// Queues a copy to pinned host memory, `at` bytes from its beginning; what comes is there once the stream has got so far.
    pub(crate) fn fetch(&mut self, from: sys::CUdeviceptr, to: &mut Pinned, at: usize, bytes: usize) {
        assert!(at + bytes <= to.bytes);
        if bytes == 0 {
            return;
        }
        self.attempt_now(
            || "a copy from the device".to_owned(),
            // SAFETY: there is room (checked), and `bytes` bytes at `from` (the caller's).
            |context| unsafe {
                let to = to.slice_mut::<u8>(at + bytes)[at..].as_mut_ptr().cast();
                sys::cuMemcpyDtoHAsync_v2(to, from, bytes, context.stream).result()
            },
        );
    }

    /// Queues a copy inside the device's memory.
    pub(crate) fn copy(&mut self, from: sys::CUdeviceptr, to: sys::CUdeviceptr, bytes: usize) {
        self.attempt(
            || "a copy on the device".to_owned(),
            // SAFETY: both ranges are the caller's allocations.
            |context| unsafe { result::memcpy_dtod_async(to, from, bytes, context.stream) },
        );
    }

    /// Queues a kernel. `arguments` are what its signature says, from [`args`].
    pub(crate) fn launch(&mut self, name: Name, shape: Shape, arguments: &mut [*mut c_void]) {
        let Shape { grid, block, shared } = shape;
        if grid.contains(&0) || self.fault.is_some() {
            return;
        }
        let Some(function) = self.function(name) else { return };
        self.queue(
            || format!("{} {shape}", name.symbol()),
            // SAFETY: launchers pass what the kernel's signature says, and buffers as large as its shapes.
            |context| unsafe {
                let grid = (grid[0] as u32, grid[1] as u32, 1);
                result::launch_kernel(function, grid, (block as u32, 1, 1), shared as u32, context.stream, arguments)
            },
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
        self.attempt(
            || "clearing memory".to_owned(),
            // SAFETY: as many bytes as the memory has.
            |context| unsafe { sys::cuMemsetD8Async(memory.ptr, 0, memory.bytes, context.stream).result() },
        );
    }

    /// Queues a kernel that is compiled for its shape, like [`Self::launch_early`]; false, and nothing happens, where it cannot be compiled.
    pub(crate) fn launch_special(&mut self, special: Special, shape: Shape, arguments: &mut [*mut c_void]) -> bool {
        if shape.grid.contains(&0) || self.fault.is_some() {
            return true;
        }
        let Some(function) = self.special(special, shape.shared) else { return false };
        self.queue_early(function, special.file, shape, arguments);
        true
    }

    /// Queues a kernel that may start while the one before it ends: it waits inside (`wait_for_inputs`) for what that writes.
    pub(crate) fn launch_early(&mut self, name: Name, shape: Shape, arguments: &mut [*mut c_void]) {
        if shape.grid.contains(&0) || self.fault.is_some() {
            return;
        }
        let Some(function) = self.function(name) else { return };
        self.queue_early(function, name.function, shape, arguments);
    }

    fn queue_early(&mut self, function: sys::CUfunction, name: &str, shape: Shape, arguments: &mut [*mut c_void]) {
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        self.queue(
            || format!("{name} {shape}"),
            // SAFETY: launchers pass what the kernel's signature says, and buffers as large as its shapes; the attribute outlives the call.
            |context| unsafe {
                let attributes = if context.arch >= HOPPER { std::slice::from_mut(&mut early) } else { &mut [] };
                let config = shape.config(context.stream, attributes);
                sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
                    .result()
            },
        );
    }

    /// Queues a kernel all of whose blocks run at once, so that they can wait for each other. The caller asked [`Self::blocks_at_once`].
    pub(crate) fn launch_at_once(&mut self, special: Special, shape: Shape, arguments: &mut [*mut c_void]) {
        let Some(function) = self.special(special, shape.shared) else { return };
        let mut together = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { cooperative: 1 },
        };
        self.queue(
            || format!("{} {shape}", special.file),
            // SAFETY: launchers pass what the kernel's signature says, and buffers as large as its shapes; the attribute outlives the call.
            |context| unsafe {
                let config = shape.config(context.stream, std::slice::from_mut(&mut together));
                sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut())
                    .result()
            },
        );
    }

    /// How many blocks of a kernel run at once on a multiprocessor, or none where it cannot be compiled.
    pub(crate) fn blocks_at_once(&mut self, special: Special, shape: Shape) -> Option<usize> {
        let function = self.special(special, shape.shared)?;
        self.attempt(
            || format!("blocks of {}", special.file),
            // SAFETY: the function is in a loaded module; the call writes one integer.
            |_| unsafe {
                let (mut blocks, threads) = (0, shape.block as i32);
                sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, threads, shape.shared)
                    .result()?;
                Ok(usize::try_from(blocks).unwrap_or(0))
            },
        )
    }

    /// How many clusters of a kernel that has such run at once, or none where it cannot be compiled.
    pub(crate) fn clusters_at_once(&mut self, special: Special, shape: Shape) -> Option<usize> {
        let function = self.special(special, shape.shared)?;
        let key = (special, shape.shared);
        if let Some(clusters) = self.clusters.get(&key) {
            return Some(*clusters);
        }
        let clusters = self.attempt(
            || format!("clusters of {}", special.file),
            // SAFETY: the function is in a loaded module, the configuration outlives the call, which writes one integer.
            |context| unsafe {
                let config = shape.config(context.stream, &mut []);
                let mut clusters = 0;
                sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function, &raw const config).result()?;
                Ok(clusters as usize)
            },
        )?;
        self.clusters.insert(key, clusters);
        Some(clusters)
    }

    /// The function, with leave to use `shared` bytes.
    fn special(&mut self, special: Special, shared: usize) -> Option<sys::CUfunction> {
        if !self.special.contains_key(&special) {
            if self.refuse(|| format!("a step needs {}, which was not compiled before", special.file)) {
                return None;
            }
            let made = self.make_special(special);
            self.special.insert(special, made);
        }
        let Some(Some(module)) = self.special.get(&special) else { return None };
        let Module { function, shared: before, .. } = *module;
        /// What any function may use.
        const FREE: usize = 48 << 10;
        if shared > before.max(FREE) {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            self.attempt(
                || format!("{shared} bytes of shared memory for {}", special.file),
                // SAFETY: the function is in a loaded module.
                |_| unsafe { sys::cuFuncSetAttribute(function, attribute, shared as i32).result() },
            )?;
            if let Some(Some(module)) = self.special.get_mut(&special) {
                module.shared = shared;
            }
        }
        Some(function)
    }

    fn make_special(&mut self, special: Special) -> Option<Module> {
        let (cubin, _) = self.compiler.one(special.source(), self.context.arch).ok()?;
        let module = load_module(&cubin).ok()?;
        let symbol = CString::new(special.file).expect("names hold no NUL");
        // SAFETY: the module is loaded in the current context.
        let function = unsafe { result::module::get_function(module, symbol) }.ok()?;
        Some(Module { module, function, shared: 0 })
    }

    fn function(&mut self, name: Name) -> Option<sys::CUfunction> {
        if let Some(function) = self.functions.get(&name) {
            return Some(*function);
        }
        let Some(module) = self.modules.get(name.file).copied() else {
            self.fail(format!("{} has no CUDA kernel yet; start with --device cpu", name.symbol()));
            return None;
        };
        let symbol = CString::new(name.symbol()).expect("names hold no NUL");
        // SAFETY: the module is loaded in the current context.
        match unsafe { result::module::get_function(module, symbol) } {
            Ok(function) => Some(*self.functions.entry(name).or_insert(function)),
            Err(error) => {
                self.fail(format!(
                    "{} has no CUDA kernel yet ({}); start with --device cpu",
                    name.symbol(),
                    explain(error)
                ));
                None
            }
        }
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
