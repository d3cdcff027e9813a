//! Describes a matrix to the copy engine of Hopper (`struct TensorMap` of `kernels/cuda/hopper.cuh`).

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use kernels::ops::DType;

/// Columns of a box: 128 bytes of 16-bit elements, the widest that a swizzle takes.
const BOX_COLUMNS: u32 = 64;

/// A row-major matrix of 16-bit elements, to be copied in boxes of 64 columns and `box_rows` rows, swizzled by 128 bytes.
pub(crate) fn tensor_map(
    ptr: sys::CUdeviceptr,
    dtype: DType,
    [rows, columns]: [usize; 2],
    box_rows: usize,
) -> Result<sys::CUtensorMap, DriverError> {
    assert_eq!(dtype.size(), 2, "bytes of an element");
    let kind = match dtype {
        DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    let sizes = [columns as u64, rows as u64];
    let strides = [columns as u64 * 2];
    let (box_sizes, steps) = ([BOX_COLUMNS, box_rows as u32], [1_u32, 1]);
    let mut map = MaybeUninit::uninit();
    // SAFETY: a matrix has two sizes, one stride, two box sizes and two steps; the driver only writes the map.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            kind,
            2,
            ptr as *mut c_void,
            sizes.as_ptr(),
            strides.as_ptr(),
            box_sizes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()?;
        Ok(map.assume_init())
    }
}
