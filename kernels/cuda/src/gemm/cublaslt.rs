//! Products by cuBLASLt: 16-bit inputs, sums in f32. Descriptors are made once a shape, and cuBLASLt may be asked for
//! several algorithms: which of them is the fastest is measured (`autotune`). Until then a range of rows has its first
//! choice for the most of them.
//!
//! cuBLASLt thinks in columns. Read so, `out[rows, n]` is an `n x rows` matrix, `w[n, k]` a `k x n` one to be
//! transposed, and `x[rows, k]` a `k x rows` one: `out = w^T x`.

use std::collections::HashMap;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use crate::autotune::tactics::bucket;
use crate::error::OpenError;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};
use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::context::{Context, Memory, explain};
use crate::runtime::device::Device;
use crate::runtime::joined::Joined;
use crate::runtime::libraries::Folders;
use kernels::ops::{DType, Epilogue, WaitFor};

/// More than NVIDIA advises for Hopper (32 MiB), and than any device's cache holds, which is overwritten with it before
/// something is timed.
const WORKSPACE: usize = 64 << 20;
/// `CUBLAS_OP_T` of `cublasOperation_t`, which cuBLASLt's own header does not have.
const TRANSPOSED: i32 = 1;
/// Parts of a sum that several blocks share are added in f32, never in the output's type.
const EXACT_SUMS: u32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
/// Plans kept at most; prefills come in many lengths.
const MOST_PLANS: usize = 4096;

/// A product's shape and types, by which plans are kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key {
    pub(crate) rows: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Of `x` and `w`.
    pub(crate) input: DType,
    pub(crate) output: DType,
    pub(crate) bias: bool,
    pub(crate) epilogue: Epilogue,
}

impl Key {
    /// What its algorithm is chosen for: all products of a range of rows have one, so that its other numbers of rows
    /// need no other code.
    fn range(self) -> Self {
        Self { rows: bucket(self.rows), epilogue: Epilogue::Store, ..self }
    }
}

/// Where a product's operands are. A bias has the output's element type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) x: CUdeviceptr,
    pub(crate) w: CUdeviceptr,
    pub(crate) bias: CUdeviceptr,
    pub(crate) out: CUdeviceptr,
}

/// How cuBLASLt does a product: its own description, good for the same version of it and any number of rows that it
/// says is possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Algorithm(sys::cublasLtMatmulAlgo_t);

impl Algorithm {
    const NAME: &str = "cublaslt";

    pub(crate) fn text(&self) -> String {
        let words = self.0.data.iter().map(|word| format!(" {word:x}"));
        std::iter::once(Self::NAME.to_owned()).chain(words).collect()
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let words = text.strip_prefix(Self::NAME)?.split_whitespace();
        let words: Vec<u64> = words.map(|word| u64::from_str_radix(word, 16).ok()).collect::<Option<_>>()?;
        Some(Self(sys::cublasLtMatmulAlgo_t { data: words.try_into().ok()? }))
    }
}

/// cuBLASLt's own.
pub(crate) fn version() -> usize {
    // SAFETY: the library is open (the caller has a `Blas`), and the function takes nothing.
    unsafe { sys::cublasLtGetVersion() }
}

/// cuBLASLt on one device.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
    /// Absent: cuBLASLt has no algorithm for it.
    plans: HashMap<Key, Option<(Plan, Algorithm)>>,
    /// What it takes for the best for [ranges](Key::range) of rows.
    choices: HashMap<Key, Option<Algorithm>>,
    /// Has it make its first choice, which takes long, and for which all others wait.
    first_choice: Option<Joined>,
}

/// cuBLASLt on its way, on a thread of its own: a start has other things to do meanwhile.
pub(crate) struct Starting {
    created: Receiver<Result<Handle, OpenError>>,
    thread: Joined,
}

/// Of the library on one device.
#[derive(Clone, Copy)]
struct Handle(sys::cublasLtHandle_t);

// SAFETY: any thread may use the handle, one at a time; see `Blas::settle`.
unsafe impl Send for Handle {}

impl Handle {
    fn create(folders: &Folders, context: &Context) -> Result<Self, OpenError> {
        folders.open_cublaslt().map_err(OpenError::Library)?;
        let failed = |reason: String| OpenError::Library(format!("cuBLASLt does not start: {reason}"));
        context.bind().map_err(|error| failed(explain(error)))?;
        result::create_handle().map(Self).map_err(|error| failed(error.to_string()))
    }

    /// Has the library choose, and check what it has chosen; any product will do.
    fn choose_once(self) {
        let [rows, n, k] = [1024, 4096, 4096];
        let dtype = DType::Bf16;
        let key = Key { rows, n, k, input: dtype, output: dtype, bias: false, epilogue: Epilogue::Store };
        if let Ok(plan) = Plan::new(key) {
            let chosen = plan.algorithms(self.0, 1);
            let _ = chosen.iter().all(|algorithm| plan.allows(self.0, algorithm));
        }
    }
}

impl Starting {
    /// Waits for it.
    pub(crate) fn open(self, device: &mut Device) -> Result<Blas, OpenError> {
        let gone = || OpenError::Library("cuBLASLt does not start: its thread is gone".to_owned());
        let start = Instant::now();
        let Handle(handle) = self.created.recv().map_err(|_| gone())??;
        device.note_wait(WaitFor::Loading, start, || "cuBLASLt".to_owned());
        let first_choice = Some(self.thread);
        match device.allocate(WORKSPACE, "cuBLASLt's workspace") {
            Some(workspace) => {
                Ok(Blas { handle, workspace, plans: HashMap::new(), choices: HashMap::new(), first_choice })
            }
            None => Err(OpenError::Device(device.fault().unwrap_or_default().to_owned())),
        }
    }
}

/// A product's descriptors.
struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Blas {
    /// Begins to start it.
    pub(crate) fn start(folders: &Folders, context: &Arc<Context>) -> Result<Starting, OpenError> {
        let (folders, context) = (folders.clone(), context.clone());
        let (sender, created) = channel();
        let start = move || {
            let created = Handle::create(&folders, &context);
            let handle = created.as_ref().ok().copied();
            // Who gave up opening the device takes no first choice.
            if sender.send(created).is_ok()
                && let Some(handle) = handle
            {
                handle.choose_once();
            }
        };
        let no_thread = |error| OpenError::Library(format!("no thread to start cuBLASLt: {error}"));
        let thread = Joined::spawn("cublaslt", start).map_err(no_thread)?;
        Ok(Starting { created, thread })
    }

    /// Waits until no other thread uses the handle any more.
    fn settle(&mut self) {
        self.first_choice = None;
    }

    /// Memory whose content does not matter between products.
    pub(crate) fn workspace(&self) -> &Memory {
        &self.workspace
    }

    /// Queues a product; false where cuBLASLt has no algorithm for it. It takes `wanted` where that can do these rows,
    /// else its own first choice for their range; what a key first ran with stays.
    pub(crate) fn run(&mut self, device: &mut Device, key: Key, wanted: Option<Algorithm>, operands: Operands) -> bool {
        if !self.plans.contains_key(&key) {
            if self.plans.len() >= MOST_PLANS {
                self.plans.clear();
            }
            let start = Instant::now();
            self.settle();
            let plan = Plan::new(key).ok().and_then(|plan| Some((self.choose(&plan, key, wanted)?, plan)));
            self.plans.insert(key, plan.map(|(algorithm, plan)| (plan, algorithm)));
            device.note_wait(WaitFor::Loading, start, || format!("cuBLASLt's choice for {key:?}"));
        }
        let Some(Some((plan, algorithm))) = self.plans.get(&key) else { return false };
        let (handle, workspace) = (self.handle, &self.workspace);
        let mut failed = None;
        device.queue(
            || format!("cuBLASLt [{} x {} x {}]", key.rows, key.n, key.k),
            |context| {
                failed = plan.run(handle, workspace, context.stream.cast(), algorithm, key, operands).err();
                Ok(())
            },
        );
        if let Some(error) = failed {
            let reason = || format!("cuBLASLt failed at {key:?}: {error}");
            if !device.refuse(reason) {
                device.fail(reason());
            }
        }
        true
    }

    /// What a product that is planned is done with.
    fn choose(&mut self, plan: &Plan, key: Key, wanted: Option<Algorithm>) -> Option<Algorithm> {
        let handle = self.handle;
        let first = |plan: &Plan| plan.algorithms(handle, 1).into_iter().next();
        let allowed = |algorithm: &Algorithm| plan.allows(handle, algorithm);
        wanted.filter(allowed).or_else(|| {
            let range = key.range();
            let choice = self.choices.entry(range).or_insert_with(|| first(&Plan::new(range).ok()?));
            choice.filter(allowed).or_else(|| first(plan))
        })
    }

    /// Forgets what such products first ran with.
    pub(crate) fn forget(&mut self, are: impl Fn(&Key) -> bool) {
        self.plans.retain(|key, _| !are(key));
    }

    /// Algorithms for a product, `most` of them at most, the one that cuBLASLt takes for the best first.
    pub(crate) fn candidates(&mut self, key: Key, most: usize) -> Option<Candidates> {
        self.settle();
        let plan = Plan::new(key).ok()?;
        let algorithms = plan.algorithms(self.handle, most);
        Some(Candidates { plan, key, algorithms })
    }

    /// Queues a product with one of them; false: it cannot be.
    pub(crate) fn attempt(
        &self,
        device: &mut Device,
        candidates: &Candidates,
        algorithm: &Algorithm,
        operands: Operands,
    ) -> bool {
        let (Self { handle, workspace, .. }, Candidates { plan, key, .. }) = (self, candidates);
        let queue = |context: &Arc<Context>| {
            Ok(plan.run(*handle, workspace, context.stream.cast(), algorithm, *key, operands).is_ok())
        };
        device.attempt(|| "trying cuBLASLt".to_owned(), queue).unwrap_or(false)
    }
}

/// See [`Blas::candidates`].
pub(crate) struct Candidates {
    plan: Plan,
    key: Key,
    pub(crate) algorithms: Vec<Algorithm>,
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.settle();
        self.plans.clear();
        // SAFETY: made by `Handle::create`; the plans are gone.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
    }
}

impl Plan {
    fn new(key: Key) -> Result<Self, CublasError> {
        let Key { rows, n, k, input, output, bias, .. } = key;
        let layout = |dtype, lines: usize, columns: usize| {
            result::create_matrix_layout(data_type(dtype), lines as u64, columns as u64, lines as i64)
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let operation = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?;
        // From here on a plan owns what was made, and frees it when something fails. (A null descriptor may be
        // destroyed.)
        let none = std::ptr::null_mut();
        let mut plan = Self { operation, w: none, x: none, out: none };
        plan.w = layout(input, k, n)?;
        plan.x = layout(input, k, rows)?;
        plan.out = layout(output, n, rows)?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if bias {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &data_type(output))?;
        }
        Ok(plan)
    }

    /// Algorithms that cuBLASLt proposes, the best in its view first; none where there is none.
    fn algorithms(&self, handle: sys::cublasLtHandle_t, most: usize) -> Vec<Algorithm> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Wish;
        let Ok(preference) = result::create_matmul_pref() else { return Vec::new() };
        let mut found = vec![MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit(); most];
        let (mut count, (operation, w, x, out)) = (0, (self.operation, self.w, self.x, self.out));
        let (bytes, exact) = (WORKSPACE, EXACT_SUMS);
        let (most, first) = (most as i32, found.as_mut_ptr().cast());
        // SAFETY: all descriptors are alive; the attributes are a size and a mask; there is room for `most` results, of
        // which `count` are written.
        unsafe {
            let set = |wish, value, size| result::set_matmul_pref_attribute(preference, wish, value, size);
            let room =
                set(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (&raw const bytes).cast(), size_of::<usize>());
            let sums =
                set(Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (&raw const exact).cast(), size_of::<u32>());
            let asked = room.and(sums).and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    operation,
                    w,
                    x,
                    out,
                    out,
                    preference,
                    most,
                    first,
                    &raw mut count,
                )
                .result()
            });
            let _ = result::destroy_matmul_pref(preference);
            found.truncate(if asked.is_ok() { count.clamp(0, most) as usize } else { 0 });
            let found = found.iter().map(|result| result.assume_init_ref());
            found.filter(|result| result.state.result().is_ok()).map(|result| Algorithm(result.algo)).collect()
        }
    }

    /// Whether an algorithm that was proposed for other rows can do these.
    fn allows(&self, handle: sys::cublasLtHandle_t, algorithm: &Algorithm) -> bool {
        let (operation, w, x, out) = (self.operation, self.w, self.x, self.out);
        let mut needs = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit();
        // SAFETY: all descriptors are alive, and the result is read only where it was written.
        unsafe {
            let checked = sys::cublasLtMatmulAlgoCheck(
                handle,
                operation,
                w,
                x,
                out,
                out,
                &raw const algorithm.0,
                needs.as_mut_ptr(),
            );
            checked.result().is_ok() && needs.assume_init().workspaceSize <= WORKSPACE
        }
    }

    fn set<T>(&self, attribute: Attribute, value: &T) -> Result<(), CublasError> {
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the descriptor is alive, and the value has the attribute's type.
        unsafe { result::set_matmul_desc_attribute(self.operation, attribute, value, size_of::<T>()) }
    }

    fn run(
        &self,
        handle: sys::cublasLtHandle_t,
        workspace: &Memory,
        stream: sys::cudaStream_t,
        algorithm: &Algorithm,
        key: Key,
        operands: Operands,
    ) -> Result<(), CublasError> {
        if key.bias {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        let one = 1.0_f32;
        let keep = if key.epilogue == Epilogue::Accumulate { 1.0_f32 } else { 0.0 };
        let at = |pointer: CUdeviceptr| pointer as *mut c_void;
        // SAFETY: the operands are as large as the key says (checked by the caller); alpha and beta are read before the
        // call returns.
        unsafe {
            result::matmul(
                handle,
                self.operation,
                (&raw const one).cast(),
                (&raw const keep).cast(),
                at(operands.w),
                self.w,
                at(operands.x),
                self.x,
                at(operands.out),
                self.out,
                at(operands.out),
                self.out,
                &raw const algorithm.0,
                at(workspace.ptr),
                workspace.bytes,
                stream,
            )
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: descriptors of this plan alone, each null or alive.
        unsafe {
            for layout in [self.w, self.x, self.out].into_iter().filter(|layout| !layout.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_a_range_of_rows_share_a_choice() {
        let key = |rows, epilogue| Key {
            rows,
            n: 6144,
            k: 4096,
            input: DType::Bf16,
            output: DType::F32,
            bias: false,
            epilogue,
        };
        let range = key(1000, Epilogue::Store).range();
        assert_eq!(range, key(1024, Epilogue::Store));
        assert_eq!(key(961, Epilogue::Accumulate).range(), range, "whether it is added changes nothing");
        // What idle time loads is the most of each range.
        assert_eq!(range.range(), range);
        assert_ne!(key(1025, Epilogue::Store).range(), range);
        assert_ne!(Key { n: 4096, ..key(1000, Epilogue::Store) }.range(), range);
    }
}
