//! Inputs of products with quantized weights as their kernels read them: as codes, or reordered. Kernels that make rows
//! may write them like that beside the rows (`csrc/gemm/prepared.cuh`); else a pass of its own does
//! (`csrc/gemm/prepare_input.cu`), with the same bits.

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::InputRounding;

use crate::gemm::codes;
use crate::gemm::matmul_packed::{self, InputShape};
use crate::gemm::matmul_packed_wgmma::{self, MOST_ROWS};
use crate::gemm::product::Product;
use crate::gemm::table::Facts;
use crate::jit::layouts::twin;
use crate::runtime::activations::View;
use crate::runtime::device::Device;
use crate::weights::Weights;
use crate::weights::packed::{CHUNK, CodedRows, Packed, STAGE};

/// How a product reads its input, where not as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InputForm {
    /// 8-bit codes, with a scale a row.
    Codes(Scales),
    /// 16-bit numbers in the order of packed weights.
    Reordered,
}

/// What makes the scales of codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scales {
    /// The checkpoint: all rows have the same.
    Static,
    /// Each row's largest element.
    Dynamic,
}

/// Where prepared rows lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Buffer {
    /// What most products' inputs are prepared in.
    Usual,
    /// What a product's own outputs are prepared in for the next one, while it reads the other.
    Gated,
}

/// An input that is there in this form already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prepared {
    pub(crate) form: InputForm,
    pub(crate) buffer: Buffer,
}

/// `struct PreparedRows` of the kernels: where they write rows for a product, too.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedRows {
    to: CUdeviceptr,
    scales: CUdeviceptr,
    shape: InputShape,
    words: u32,
}

twin!(PreparedRows = "PreparedRows" { to, scales, shape, words });

impl PreparedRows {
    /// Nowhere.
    pub(crate) const NONE: Self = Self { to: 0, scales: 0, shape: InputShape::NONE, words: 0 };

    /// An input of a product with a packed matrix, in memory of [`InputForm::bytes`].
    pub(crate) fn new(form: InputForm, to: CUdeviceptr, packed: &Packed, x: View) -> Self {
        match form {
            InputForm::Codes(_) => {
                let CodedRows { codes, scales, pitch } = CodedRows::at(to, x.rows, x.width);
                let shape = InputShape::of(packed, packed.input, x);
                Self { to: codes, scales, shape, words: (pitch / 4) as u32 }
            }
            InputForm::Reordered => {
                let shape = InputShape::of(packed, InputRounding::None, x);
                Self { to, scales: 0, shape, words: (x.width.next_multiple_of(CHUNK) / 2) as u32 }
            }
        }
    }
}

impl InputForm {
    /// How a product that is not gated reads its input; none where it reads it as it is, or rounded in a way that only
    /// `prepare_input.cu` knows.
    pub(crate) fn of(facts: Facts, product: &Product<'_>) -> Option<Self> {
        /// Elements that are written at a time.
        const EACH: usize = 4;
        let (x, packed) = (product.x, product.w.packed.as_ref()?);
        if x.dtype.size() != 2 || packed.columns.is_some() || !x.width.is_multiple_of(EACH) {
            return None;
        }
        if codes::fits_packed(facts, product, None) || codes::fits_many(facts, product, None) {
            return Some(Self::codes(packed.input));
        }
        let rounding = codes::rounding(facts, product, packed);
        let reads_numbers = !matmul_packed::needs_input(packed, rounding, x, x.dtype);
        (reads_numbers && matmul_packed_wgmma::fits(facts, product)).then_some(Self::Reordered)
    }

    fn codes(rounding: InputRounding) -> Self {
        Self::Codes(match rounding {
            InputRounding::Static(_) | InputRounding::StaticInt8(_) => Scales::Static,
            _ => Scales::Dynamic,
        })
    }

    /// Whether any part of a row can be written without the others.
    pub(crate) fn is_piecewise(self) -> bool {
        self != Self::Codes(Scales::Dynamic)
    }

    pub(crate) fn is_codes(self) -> bool {
        matches!(self, Self::Codes(_))
    }

    /// Bytes of an input.
    pub(crate) fn bytes(self, x: View) -> usize {
        match self {
            Self::Codes(_) => codes::input_bytes(x),
            Self::Reordered => x.rows * x.width.next_multiple_of(CHUNK) * 2,
        }
    }

    /// Queues a pass that writes a product's input like this, to memory of [`Self::bytes`].
    pub(crate) fn write(self, device: &mut Device, product: &Product<'_>, to: CUdeviceptr) {
        match self {
            Self::Codes(_) => drop(codes::quantize(device, product, to, 0)),
            Self::Reordered => matmul_packed_wgmma::reorder(device, product.x, to),
        }
    }
}

/// Whether the kernel that gates a product's outputs could write them as the next product reads them: `finish` of
/// `packed_wgmma.cuh` knows some of a row's columns, and rows end with whole chunks.
pub(crate) fn gate_writes(facts: Facts, product: &Product<'_>) -> bool {
    matmul_packed_wgmma::may_gate(facts, product) && (product.w.rows / 2).is_multiple_of(STAGE)
}

/// Bytes of the largest input that such a kernel may write for a product with a matrix.
pub(crate) fn gated_bytes(facts: Facts, w: &Weights) -> usize {
    let codes = w.packed.as_ref().filter(|packed| packed.both_codes().is_some());
    match codes.map(|packed| InputForm::codes(packed.input)) {
        Some(form) if !form.is_piecewise() || !matmul_packed_wgmma::takes(facts, w) => 0,
        Some(_) => CodedRows::bytes(MOST_ROWS, w.cols),
        None => matmul_packed_wgmma::reordered_bytes(facts, w),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_with_a_scale_for_all_rows_are_written_piece_by_piece() {
        for rounding in [InputRounding::Static(0.1), InputRounding::StaticInt8(0.1)] {
            assert!(InputForm::codes(rounding).is_piecewise(), "{rounding:?}");
        }
        let outliers = f32::INFINITY;
        for rounding in [InputRounding::Dynamic { cols: 64 }, InputRounding::DynamicInt8 { outliers }] {
            assert!(!InputForm::codes(rounding).is_piecewise(), "{rounding:?}");
        }
        assert!(InputForm::Reordered.is_piecewise());
    }

    #[test]
    fn rows_have_room_for_whole_chunks() {
        let x = View { ptr: 0, dtype: kernels::ops::DType::Bf16, rows: 3, width: 72, most_rows: 3 };
        assert_eq!(InputForm::Reordered.bytes(x), 3 * 128 * 2);
        assert_eq!(InputForm::Codes(Scales::Static).bytes(x), 3 * (128 + 4));
    }
}
