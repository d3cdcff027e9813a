//! What is launched: a kernel by its name, in a shape, with its arguments.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::time::Duration;

use cudarc::driver::sys;

use kernels::ops::{DType, KvDType};

/// A module with one function, the shared memory that its code fixes, and the dynamic one that it may use so far.
#[derive(Clone, Copy)]
pub(super) struct Module {
    pub(super) module: sys::CUmodule,
    pub(super) function: sys::CUfunction,
    pub(super) fixed: usize,
    pub(super) shared: usize,
}

/// A kernel: its file, its function, and the element types that end the function's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Name {
    pub(super) file: &'static str,
    pub(super) function: &'static str,
    types: [Option<KvDType>; 3],
}

impl Name {
    /// The function named like its file.
    pub(crate) fn of(file: &'static str, types: &[DType]) -> Self {
        Self::in_file(file, file, types)
    }

    pub(crate) fn in_file(file: &'static str, function: &'static str, types: &[DType]) -> Self {
        let mut all = [None; 3];
        all.iter_mut().zip(types).for_each(|(slot, dtype)| *slot = Some(KvDType::Float(*dtype)));
        Self { file, function, types: all }
    }

    /// The same for a function whose second type is that of a cache.
    pub(crate) fn with_cache(self, cache: KvDType) -> Self {
        let [rows, out, _] = self.types;
        Self { types: [rows, Some(cache), out], ..self }
    }

    /// The function's name in its module.
    pub(super) fn symbol(&self) -> String {
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
    pub(super) fn config(
        self,
        stream: sys::CUstream,
        attributes: &mut [sys::CUlaunchAttribute],
    ) -> sys::CUlaunchConfig {
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

/// Where an argument of a launch lies, which is borrowed until the launch has been queued.
#[repr(transparent)]
pub(crate) struct Argument<'a>(*mut c_void, PhantomData<&'a ()>);

impl<'a> Argument<'a> {
    pub(crate) fn of<T>(value: &'a T) -> Self {
        Self(std::ptr::from_ref(value).cast_mut().cast(), PhantomData)
    }

    /// As the driver takes them: it writes to none.
    pub(super) fn pointers(arguments: &mut [Self]) -> &mut [*mut c_void] {
        // SAFETY: each is a pointer and nothing else.
        unsafe { std::slice::from_raw_parts_mut(arguments.as_mut_ptr().cast(), arguments.len()) }
    }
}

/// The arguments of a launch, which have to live as long as they are named: what a call returns among them lives until
/// the end of the statement.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        &mut [$($crate::runtime::device::Argument::of(&$value)),*]
    };
}
pub(crate) use args;

/// How long a piece of idle work waits for a kernel's code.
pub(crate) const MOMENT: Duration = Duration::from_millis(2);
