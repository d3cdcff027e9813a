//! Describes a matrix to the copy engine of Hopper (`struct TensorMap` of `kernels/cuda/csrc/include/hopper.cuh`).

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use kernels::ops::DType;

/// Bytes of a row of a box, the most that a swizzle takes; and its columns of 16-bit elements.
const BOX_BYTES: usize = 128;
const BOX_COLUMNS: u32 = 64;

/// Rows of a swizzle of 128 bytes.
const GROUP: usize = 8;

/// A row-major matrix of f32 or 16-bit elements, to be copied in boxes of 128 bytes of `box_rows` rows, swizzled by 128
/// bytes.
pub(crate) fn tensor_map(
    ptr: sys::CUdeviceptr,
    dtype: DType,
    [rows, columns]: [usize; 2],
    box_rows: usize,
) -> Result<sys::CUtensorMap, DriverError> {
    let (size, box_columns) = (dtype.size(), BOX_BYTES / dtype.size());
    encode(ptr, dtype, [columns as u64, rows as u64], [(columns * size) as u64], [box_columns as u32, box_rows as u32])
}

/// The same matrix, of a multiple of 8 columns and rows, to be copied in boxes of a multiple of 8 rows: 8 rows of a
/// box's first 64 columns, the same rows of the next 64, ..., then the next 8 rows. What the last 64 columns lack is
/// read from the row after them, of which there is one more than `rows`.
pub(crate) fn tensor_map_of_groups(
    ptr: sys::CUdeviceptr,
    dtype: DType,
    [rows, columns]: [usize; 2],
    [box_rows, box_columns]: [usize; 2],
) -> Result<sys::CUtensorMap, DriverError> {
    assert_eq!(dtype.size(), 2, "bytes of an element");
    let part = BOX_COLUMNS as usize;
    let (parts, row) = (columns.div_ceil(part), columns as u64 * 2);
    let sizes = [u64::from(BOX_COLUMNS), GROUP as u64, parts as u64, (rows / GROUP) as u64];
    let strides = [row, u64::from(BOX_COLUMNS) * 2, GROUP as u64 * row];
    let boxes = [BOX_COLUMNS, GROUP as u32, box_columns.div_ceil(part) as u32, (box_rows / GROUP) as u32];
    encode(ptr, dtype, sizes, strides, boxes)
}

/// A tensor whose rows of `sizes[0]` elements touch; `strides`, in bytes, are those of its other dimensions.
fn encode<const RANK: usize, const STRIDES: usize>(
    ptr: sys::CUdeviceptr,
    dtype: DType,
    sizes: [u64; RANK],
    strides: [u64; STRIDES],
    box_sizes: [u32; RANK],
) -> Result<sys::CUtensorMap, DriverError> {
    const { assert!(STRIDES + 1 == RANK, "a stride for each dimension but the first") };
    let kind = match dtype {
        DType::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    let steps = [1_u32; RANK];
    let mut map = MaybeUninit::uninit();
    // SAFETY: there are as many sizes, box sizes and steps as dimensions, and one stride fewer; the driver only writes
    // the map.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            kind,
            RANK as u32,
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
