//! Launches: kernels by name or compiled for a shape, one after the other, early, or all blocks at once.

use std::ffi::CString;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::Device;
use super::launch::{Argument, MOMENT, Module, Name, Shape};
use crate::jit::compile_queue::Compilations;
use crate::jit::sources::{Need, Source};
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::context::{Context, explain, load_module};
use kernels::ops::WaitFor;

/// Per cent of the shared memory that a multiprocessor may have, for kernels that count on its cache.
const SHARED_BESIDE_CACHE: i32 = 28;

impl Device {
    /// Queues a kernel. `arguments` are what its signature says, from [`args`].
    pub(crate) fn launch(&mut self, name: Name, shape: Shape, arguments: &mut [Argument<'_>]) {
        if shape.grid.contains(&0) || self.fault.is_some() {
            return;
        }
        let Some(function) = self.function(name) else { return };
        self.queue_in_order(function, || name.symbol(), shape, arguments);
    }

    fn queue_in_order(
        &mut self,
        function: sys::CUfunction,
        name: impl Fn() -> String,
        shape: Shape,
        arguments: &mut [Argument<'_>],
    ) {
        let (Shape { grid, block, shared }, arguments) = (shape, Argument::pointers(arguments));
        self.queue(
            || format!("{} {shape}", name()),
            // SAFETY: launchers pass what the kernel's signature says, and buffers as large as its shapes.
            |context| unsafe {
                let grid = (grid[0] as u32, grid[1] as u32, 1);
                result::launch_kernel(function, grid, (block as u32, 1, 1), shared as u32, context.stream, arguments)
            },
        );
    }

    /// Queues a kernel that is compiled for its shape, like [`Self::launch_early`]; false, and nothing happens, where
    /// it cannot be compiled.
    pub(crate) fn launch_special(&mut self, special: Special, shape: Shape, arguments: &mut [Argument<'_>]) -> bool {
        if shape.grid.contains(&0) || self.fault.is_some() {
            return true;
        }
        let Some(function) = self.special(special, shape.shared) else { return false };
        self.queue_early(function, special.file, shape, arguments);
        true
    }

    /// The same, to start when all before it is done.
    pub(crate) fn launch_special_in_order(
        &mut self,
        special: Special,
        shape: Shape,
        arguments: &mut [Argument<'_>],
    ) -> bool {
        if shape.grid.contains(&0) || self.fault.is_some() {
            return true;
        }
        let Some(function) = self.special(special, shape.shared) else { return false };
        self.queue_in_order(function, || special.file.to_owned(), shape, arguments);
        true
    }

    /// The same, to start when all before it is done if `is_new`: it reads early what the kernel before it writes.
    pub(crate) fn launch_after(
        &mut self,
        is_new: bool,
        special: Special,
        shape: Shape,
        arguments: &mut [Argument<'_>],
    ) -> bool {
        match is_new {
            true => self.launch_special_in_order(special, shape, arguments),
            false => self.launch_special(special, shape, arguments),
        }
    }

    /// Queues a kernel that may start while the one before it ends: it waits inside (`wait_for_inputs`) for what that
    /// writes.
    pub(crate) fn launch_early(&mut self, name: Name, shape: Shape, arguments: &mut [Argument<'_>]) {
        if shape.grid.contains(&0) || self.fault.is_some() {
            return;
        }
        let Some(function) = self.function(name) else { return };
        self.queue_early(function, name.function, shape, arguments);
    }

    /// Whether a kernel with clusters larger than every device takes can run here, with so much shared memory a block.
    /// `shape`: of one cluster.
    pub(crate) fn takes_clusters(&mut self, name: Name, shape: Shape) -> bool {
        if let Some(takes) = self.clustered.get(&(name, shape.shared)) {
            return *takes;
        }
        let Some(function) = self.function(name) else { return false };
        // As much as it has been promised before.
        let promised = self.clustered.iter().filter(|((other, _), takes)| *other == name && **takes);
        let most = promised.map(|((_, shared), _)| *shared).chain([shape.shared]).max().unwrap_or(0);
        let attributes = [
            (sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
            (sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most as i32),
        ];
        let config = shape.config(self.context.stream, &mut []);
        let mut clusters = 0;
        // That it is refused is the answer, and no fault.
        // SAFETY: the function is in a loaded module, the configuration outlives the call, which writes one integer.
        let asked = unsafe {
            let set = attributes.map(|(attribute, value)| sys::cuFuncSetAttribute(function, attribute, value).result());
            set.into_iter().collect::<Result<(), _>>().and_then(|()| {
                sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function, &raw const config).result()
            })
        };
        let takes = asked.is_ok() && clusters > 0;
        self.clustered.insert((name, shape.shared), takes);
        takes
    }

    fn queue_early(&mut self, function: sys::CUfunction, name: &str, shape: Shape, arguments: &mut [Argument<'_>]) {
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let early = if self.context.arch >= HOPPER { std::slice::from_mut(&mut early) } else { &mut [] };
        self.queue(|| format!("{name} {shape}"), |context| launch_with(context, function, shape, early, arguments));
    }

    /// Queues a kernel all of whose blocks run at once, so that they can wait for each other. The caller asked
    /// [`Self::blocks_at_once`].
    pub(crate) fn launch_at_once(&mut self, special: Special, shape: Shape, arguments: &mut [Argument<'_>]) {
        let Some(function) = self.special(special, shape.shared) else { return };
        let mut together = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { cooperative: 1 },
        };
        let together = std::slice::from_mut(&mut together);
        self.queue(
            || format!("{} {shape}", special.file),
            |context| launch_with(context, function, shape, together, arguments),
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
            // SAFETY: the function is in a loaded module, the configuration outlives the call, which writes one
            // integer.
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

    /// Begins to compile a kernel that steps may need.
    pub(crate) fn order(&self, special: Special) {
        if !self.special.contains_key(&special) {
            self.compile_queue.order(Source::of(special));
        }
    }

    /// The same once nothing else is to be compiled.
    pub(crate) fn order_last(&self, special: Special) {
        if !self.special.contains_key(&special) {
            self.compile_queue.order_last(Source::of(special));
        }
    }

    /// Begins to compile what a model with this needs.
    pub(crate) fn order_for(&self, need: Need) {
        let missing = need.sources().filter(|source| !self.modules.contains_key(source.name));
        missing.for_each(|source| self.compile_queue.order(source));
    }

    /// Whether the kernels that every start has are compiled.
    pub(crate) fn are_first_compiled(&self) -> bool {
        let mut missing = self.first.iter().filter(|source| !self.modules.contains_key(source.name));
        missing.all(|source| self.compile_queue.is_made(*source, Duration::ZERO))
    }

    /// Loads the kernels that every start has, once they are compiled.
    pub(crate) fn load_first(&mut self) {
        for source in std::mem::take(&mut self.first) {
            self.module(source.name);
        }
    }

    /// Whether kernels are being compiled, for other threads.
    pub(crate) fn compilations(&self) -> Compilations {
        self.compile_queue.compilations()
    }

    /// Whether kernels that were ordered are being compiled.
    pub(crate) fn is_compiling(&self) -> bool {
        self.compile_queue.is_busy()
    }

    /// Waits a moment for kernels that are being compiled; whether there were any.
    pub(crate) fn await_orders(&self) -> bool {
        self.compile_queue.wait(MOMENT)
    }

    /// A step to come will need this kernel: it is compiled meanwhile, and loaded by [`Self::grant`].
    pub(crate) fn wish(&mut self, special: Special, shared: usize) {
        if !self.special.contains_key(&special) && !self.wishes.contains(&(special, shared)) {
            self.compile_queue.order(Source::of(special));
            self.wishes.push((special, shared));
        }
    }

    /// Loads a kernel that was wished for, or waits a moment for its code; whether there was one.
    pub(crate) fn grant(&mut self) -> bool {
        let Some(&(special, shared)) = self.wishes.last() else { return false };
        if self.is_compiled(special, MOMENT) {
            self.wishes.pop();
            self.special(special, shared);
        }
        true
    }

    /// Loads a kernel, once it is compiled; whether there is one.
    pub(crate) fn load(&mut self, special: Special) -> bool {
        self.special(special, 0).is_some()
    }

    /// Whether a kernel could be loaded now (or cannot be compiled): where not, it is being compiled, and this has
    /// waited so long.
    pub(crate) fn is_compiled(&self, special: Special, most: Duration) -> bool {
        self.special.contains_key(&special) || self.compile_queue.is_made(Source::of(special), most)
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
        let Module { function, fixed, shared: before, .. } = *module;
        /// What any function may use, with what its code fixes.
        const FREE: usize = 48 << 10;
        if shared > before.max(FREE.saturating_sub(fixed)) {
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

    /// A kernel's code, which is waited for.
    fn compiled(&mut self, source: Source) -> Result<Vec<u8>, String> {
        let start = Instant::now();
        let made = self.compile_queue.take(source);
        self.note_wait(WaitFor::Compiler, start, || source.title());
        made
    }

    fn make_special(&mut self, special: Special) -> Option<Module> {
        let cubin = self.compiled(Source::of(special)).ok()?;
        let start = Instant::now();
        let module = Self::load_special(&cubin, special);
        self.note_wait(WaitFor::Loading, start, || Source::of(special).title());
        module
    }

    fn load_special(cubin: &[u8], special: Special) -> Option<Module> {
        let module = load_module(cubin).ok()?;
        let symbol = CString::new(special.file).expect("names hold no NUL");
        // SAFETY: the module is loaded in the current context.
        let function = unsafe { result::module::get_function(module, symbol) }.ok()?;
        if special.with_cache {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // What a device does not take makes nothing wrong, only slower.
            // SAFETY: the function is in a loaded module.
            let _ = unsafe { sys::cuFuncSetAttribute(function, attribute, SHARED_BESIDE_CACHE) };
        }
        let (mut fixed, attribute) = (0, sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        // SAFETY: the function is in a loaded module; the call writes one integer.
        unsafe { sys::cuFuncGetAttribute(&raw mut fixed, attribute, function).result() }.ok()?;
        Some(Module { module, function, fixed: usize::try_from(fixed).ok()?, shared: 0 })
    }

    fn function(&mut self, name: Name) -> Option<sys::CUfunction> {
        if let Some(function) = self.functions.get(&name) {
            return Some(*function);
        }
        let module = self.module(name.file)?;
        let (symbol, start) = (CString::new(name.symbol()).expect("names hold no NUL"), Instant::now());
        // SAFETY: the module is loaded in the current context.
        let found = unsafe { result::module::get_function(module, symbol) };
        self.note_wait(WaitFor::Loading, start, || name.symbol());
        match found {
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

    /// The module of a file, which is loaded now where it was to be compiled or only some models need it.
    fn module(&mut self, file: &'static str) -> Option<sys::CUmodule> {
        if let Some(module) = self.modules.get(file) {
            return Some(*module);
        }
        let Some(source) = Source::as_it_is(file) else {
            self.fail(format!("{file} has no CUDA kernel yet; start with --device cpu"));
            return None;
        };
        if self.refuse(|| format!("a step needs {file}, which was not loaded before")) {
            return None;
        }
        let made = self.compiled(source);
        let start = Instant::now();
        let loaded = made.and_then(|cubin| load_module(&cubin).map_err(explain));
        self.note_wait(WaitFor::Loading, start, || source.title());
        match loaded {
            Ok(module) => Some(*self.modules.entry(file).or_insert(module)),
            Err(reason) => {
                self.fail(format!("kernel {file}: {reason}"));
                None
            }
        }
    }
}

/// Queues a kernel in some other way than one after the other, as `attributes` say.
fn launch_with(
    context: &Context,
    function: sys::CUfunction,
    shape: Shape,
    attributes: &mut [sys::CUlaunchAttribute],
    arguments: &mut [Argument<'_>],
) -> Result<(), result::DriverError> {
    let config = shape.config(context.stream, attributes);
    let arguments = Argument::pointers(arguments).as_mut_ptr();
    // SAFETY: launchers pass what the kernel's signature says, and buffers as large as its shapes; attributes outlive
    // the call.
    unsafe { sys::cuLaunchKernelEx(&raw const config, function, arguments, std::ptr::null_mut()).result() }
}
