//! Products by cuBLASLt: 16-bit inputs, sums in f32. Descriptors and the choice of algorithm are made once a shape.
//!
//! cuBLASLt thinks in columns. Read so, `out[rows, n]` is an `n x rows` matrix, `w[n, k]` a `k x n` one to be transposed, and `x[rows, k]`
//! a `k x rows` one: `out = w^T x`.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};
use cudarc::driver::sys::CUdeviceptr;

use super::context::Memory;
use super::device::Device;
use super::libraries::Folders;
use kernels::ops::{DType, Epilogue};

/// What NVIDIA advises for Hopper; enough for older ones.
const WORKSPACE: usize = 32 << 20;
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

/// Where a product's operands are. A bias has the output's element type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) x: CUdeviceptr,
    pub(crate) w: CUdeviceptr,
    pub(crate) bias: CUdeviceptr,
    pub(crate) out: CUdeviceptr,
}

/// cuBLASLt on one device.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
    /// Absent: cuBLASLt has no algorithm for it.
    plans: HashMap<Key, Option<Plan>>,
}

struct Plan {
    operation: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Blas {
    pub(crate) fn open(folders: &Folders, device: &mut Device) -> Result<Self, String> {
        folders.open_cublaslt()?;
        let handle = result::create_handle().map_err(|error| format!("cuBLASLt does not start: {error}"))?;
        match device.allocate(WORKSPACE, "cuBLASLt's workspace") {
            Some(workspace) => Ok(Self { handle, workspace, plans: HashMap::new() }),
            None => Err(device.fault().unwrap_or_default().to_owned()),
        }
    }

    /// Queues a product; false where cuBLASLt has no algorithm for it.
    pub(crate) fn run(&mut self, device: &mut Device, key: Key, operands: Operands) -> bool {
        if !self.plans.contains_key(&key) {
            if self.plans.len() >= MOST_PLANS {
                self.plans.clear();
            }
            let plan = Plan::new(self.handle, key).ok();
            self.plans.insert(key, plan);
        }
        let Some(Some(plan)) = self.plans.get(&key) else { return false };
        let (handle, workspace) = (self.handle, &self.workspace);
        let mut failed = None;
        device.queue(
            || format!("cuBLASLt [{} x {} x {}]", key.rows, key.n, key.k),
            |context| {
                failed = plan.run(handle, workspace, context.stream.cast(), key, operands).err();
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
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: made in `open`; the plans are gone.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn data_type(dtype: DType) -> sys::cudaDataType {
    match dtype {
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::E4m3 => sys::cudaDataType::CUDA_R_8F_E4M3,
    }
}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, key: Key) -> Result<Self, CublasError> {
        let Key { rows, n, k, input, output, bias, .. } = key;
        let layout = |dtype, lines: usize, columns: usize| {
            result::create_matrix_layout(data_type(dtype), lines as u64, columns as u64, lines as i64)
        };
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let operation = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?;
        // From here on a plan owns what was made, and frees it when something fails. (A null descriptor may be destroyed.)
        let none = std::ptr::null_mut();
        // SAFETY: an algorithm is plain data.
        let algorithm = unsafe { std::mem::zeroed() };
        let mut plan = Self { operation, w: none, x: none, out: none, algorithm };
        plan.w = layout(input, k, n)?;
        plan.x = layout(input, k, rows)?;
        plan.out = layout(output, n, rows)?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &TRANSPOSED)?;
        if bias {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &data_type(output))?;
        }
        plan.algorithm = plan.choose(handle)?;
        Ok(plan)
    }

    fn choose(&self, handle: sys::cublasLtHandle_t) -> Result<sys::cublasLtMatmulAlgo_t, CublasError> {
        let preference = result::create_matmul_pref()?;
        let most = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let sums = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK;
        // SAFETY: all descriptors are alive; the attributes are a size and a mask.
        unsafe {
            let (bytes, exact) = (WORKSPACE, EXACT_SUMS);
            let set =
                result::set_matmul_pref_attribute(preference, most, (&raw const bytes).cast(), size_of::<usize>());
            let set = set.and_then(|()| {
                result::set_matmul_pref_attribute(preference, sums, (&raw const exact).cast(), size_of::<u32>())
            });
            let chosen = set.and_then(|()| {
                let (operation, w, x, out) = (self.operation, self.w, self.x, self.out);
                result::get_matmul_algo_heuristic(handle, operation, w, x, out, out, preference)
            });
            let _ = result::destroy_matmul_pref(preference);
            chosen.map(|chosen| chosen.algo)
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
        key: Key,
        operands: Operands,
    ) -> Result<(), CublasError> {
        if key.bias {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands.bias)?;
        }
        let one = 1.0_f32;
        let keep = if key.epilogue == Epilogue::Accumulate { 1.0_f32 } else { 0.0 };
        let at = |pointer: CUdeviceptr| pointer as *mut c_void;
        // SAFETY: the operands are as large as the key says (checked by the caller); alpha and beta are read before the call returns.
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
                &raw const self.algorithm,
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
