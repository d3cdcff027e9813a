//! What handles stand for on the device: parameters and columns as kernels see them.

use cudarc::driver::sys::CUdeviceptr;

use crate::CudaBackend;
use crate::fusion::op::Cache;
use crate::layers::norm;
use crate::recurrent;
use crate::runtime::arch::LOWEST_BF16;
use kernels::ops::{Cols, DType, KvLayer, Norm, NormKind, Vector};

impl CudaBackend {
    pub(crate) fn vector(&self, vector: Option<Vector>) -> CUdeviceptr {
        vector.map_or(0, |vector| self.vectors[vector.0 as usize].ptr())
    }

    pub(crate) fn norm_params(&self, norm: Norm, width: usize) -> norm::Params {
        for vector in [norm.weight, norm.bias].into_iter().flatten() {
            assert_eq!(
                self.vectors[vector.0 as usize].len, width,
                "length of a norm's parameters, and width of what it norms"
            );
        }
        norm::Params {
            weight: self.vector(norm.weight),
            bias: self.vector(norm.bias),
            eps: norm.eps,
            subtract_mean: u32::from(norm.kind == NormKind::Layer),
        }
    }

    pub(crate) fn values(&self, vector: Vector) -> recurrent::Values {
        let vector = &self.vectors[vector.0 as usize];
        recurrent::Values { ptr: vector.ptr(), len: vector.len }
    }

    pub(crate) fn cols(&self, cols: Cols) -> recurrent::Cols {
        recurrent::Cols { view: self.acts.view(cols.act), first: cols.first }
    }

    /// A layer's keys and values, with the batch's block tables of its kind.
    pub(crate) fn cache(&self, kv: KvLayer) -> Cache {
        Cache::new(&self.caches[kv.memory as usize], self.batch.first_entry_of(kv.table), kv.scales)
    }

    /// Fails where the hardware does not know a type.
    pub(crate) fn check_type(&mut self, dtype: DType) {
        let context = &self.device.context;
        if dtype == DType::Bf16 && context.arch < LOWEST_BF16 {
            let (name, has, needs) = (&context.name, context.arch.capability(), LOWEST_BF16.capability());
            let reason = format!(
                "GPU {name} (compute capability {has}) has no bfloat16, which needs {needs}; start with --dtype float16"
            );
            self.device.fail(reason);
        }
    }
}
