//! Products whose inputs are rounded to codes of 8 bits, as their weights are: Hopper multiplies two codes in the time
//! of one number of 16 bits. A row of the input becomes codes and one scale (`prepare_input.cu`).
//! `matmul_packed_wgmma.cu` multiplies some rows by codes as they are packed, `matmul_codes.cu` few rows where matrices
//! are small, `matmul_wgmma.cu` many rows by codes that are written row by row first. Sums of 8-bit floats are as exact
//! as the tensor cores keep them, about 14 bits; those of integers are exact.

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{Activation, DType, Epilogue, InputRounding, WeightFormat};

use crate::gemm::matmul_packed::{InputShape, rows_shape};
use crate::gemm::matmul_packed_wgmma::MOST_ROWS;
use crate::gemm::product::{Activated, Gate, OutputFunction, Product};
use crate::gemm::table::Facts;
use crate::gemm::{matmul_codes, matmul_packed_wgmma, matmul_wgmma};
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, args};
use crate::weights::Weights;
use crate::weights::packed::{Code, CodedRows, Kind, Packed, TILE};

/// Fewer rows are bound by reading weights, whatever multiplies them.
const LEAST_ROWS: usize = 17;
/// What rows of weights are a multiple of.
const PIECE: usize = 8;

/// A product's input as codes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodedInput {
    pub(crate) rows: CodedRows,
    /// What both sides are.
    pub(crate) code: Code,
    /// The 16-bit type of results.
    pub(crate) dtype: DType,
    /// Room for the codes of weights row by row.
    pub(crate) room: CUdeviceptr,
}

/// The 16-bit type that a product is computed in where numbers are multiplied.
fn narrow(Product { x, w, .. }: &Product<'_>) -> Option<DType> {
    let dtype = if x.dtype.size() == 2 { x.dtype } else { w.compute };
    (dtype.size() == 2).then_some(dtype)
}

/// What both sides of products with a matrix may be.
fn takes(facts: Facts, w: &Weights) -> Option<Code> {
    let hopper = facts.arch == HOPPER && w.rows.is_multiple_of(PIECE);
    w.packed.as_ref().filter(|_| hopper).and_then(Packed::both_codes)
}

/// Whether products of many rows with such weights are ones of codes.
pub(crate) fn gains(facts: Facts, format: WeightFormat, cols: usize) -> bool {
    facts.arch == HOPPER && Kind::of(format, cols).is_some_and(|kind| kind.both_codes(format.input(), cols).is_some())
}

/// Whether a product's input, which is no product of codes, is left as it is: there are too few rows to gain by it.
fn leaves_input(facts: Facts, product: &Product<'_>) -> bool {
    let both = || product.w.packed.as_ref().and_then(Packed::both_codes);
    facts.arch == HOPPER && product.x.rows < LEAST_ROWS && narrow(product).is_some() && both().is_some()
}

/// How a product's input is rounded that is no product of codes.
pub(crate) fn rounding(facts: Facts, product: &Product<'_>, packed: &Packed) -> InputRounding {
    if leaves_input(facts, product) { InputRounding::None } else { packed.input }
}

/// Whether a product is one of codes.
fn fits(facts: Facts, product: &Product<'_>, gate: Option<Gate>) -> bool {
    let Product { x, w, out, epilogue, .. } = product;
    let stores = *epilogue == Epilogue::Store;
    let Some(dtype) = narrow(product).filter(|_| x.rows >= LEAST_ROWS && takes(facts, w).is_some()) else {
        return false;
    };
    match gate {
        Some(gate) => gate.out.dtype == dtype && stores && w.rows.is_multiple_of(2 * TILE),
        None => out.dtype == DType::F32 || (out.dtype == dtype && stores),
    }
}

/// Whether a product is `matmul_packed_wgmma`'s with codes on both sides.
pub(crate) fn fits_packed(facts: Facts, product: &Product<'_>, gate: Option<Gate>) -> bool {
    product.x.rows <= MOST_ROWS && matmul_packed_wgmma::takes(facts, product.w) && fits(facts, product, gate)
}

/// Whether it is `matmul_wgmma`'s.
pub(crate) fn fits_many(facts: Facts, product: &Product<'_>, gate: Option<Gate>) -> bool {
    product.x.rows > MOST_ROWS && matmul_wgmma::has_room(facts, product.x.rows) && fits(facts, product, gate)
}

/// Whether a product of very many rows may gate its outputs.
pub(crate) fn may_gate_many(facts: Facts, product: &Product<'_>) -> bool {
    let out = View { width: product.out.width / 2, ..product.out };
    fits_many(facts, product, Some(Gate { of: Activated::Gates, activation: Activation::Silu, out, prepared: None }))
}

/// Bytes of the codes of a matrix row by row; 0 where no product is one of codes.
pub(crate) fn room_bytes(facts: Facts, w: &Weights) -> usize {
    if takes(facts, w).is_some() { CodedRows::bytes(w.rows, w.cols) } else { 0 }
}

/// Bytes of a product's input as codes.
pub(crate) fn input_bytes(x: View) -> usize {
    CodedRows::bytes(x.rows, x.width)
}

/// Queues the rounding of a product's input, to memory of [`input_bytes`].
pub(crate) fn quantize(
    device: &mut Device,
    product: &Product<'_>,
    to: CUdeviceptr,
    room: CUdeviceptr,
) -> Option<CodedInput> {
    let coded = quantized(product, to, room)?;
    let (x, rows, packed) = (product.x, coded.rows, product.w.packed.as_ref()?);
    let name = Name::in_file("prepare_input", "quantize_input", &[x.dtype]);
    let input = InputShape::of(packed, packed.input, x);
    device.launch_early(name, rows_shape(x), args![x.ptr, rows.codes, rows.scales, input, (rows.pitch / 4) as u32]);
    Some(coded)
}

/// The same for an input that was rounded to such memory.
pub(crate) fn quantized(product: &Product<'_>, at: CUdeviceptr, room: CUdeviceptr) -> Option<CodedInput> {
    let (x, packed, dtype) = (product.x, product.w.packed.as_ref()?, narrow(product)?);
    Some(CodedInput { rows: CodedRows::at(at, x.rows, x.width), code: packed.both_codes()?, dtype, room })
}

/// Queues a product that [`fits_many`].
pub(crate) fn run_many(device: &mut Device, product: &Product<'_>, gate: Option<Gate>, x: &CodedInput) -> bool {
    let Some(packed) = &product.w.packed else { return false };
    let w = CodedRows::at(x.room, product.w.rows, product.w.cols);
    packed.unpack_codes(device, w);
    matmul_wgmma::run_codes(device, product, gate, x, w)
}

/// Kernels for products of codes with a matrix, of few rows and of very many; gates of those are nearly always SiLU.
pub(crate) fn specials(facts: Facts, w: &Weights, dtype: DType) -> Vec<Special> {
    let code = takes(facts, w).filter(|_| matmul_wgmma::has_room(facts, MOST_ROWS + 1));
    let functions = [None, Some(OutputFunction::gate(Activation::Silu))];
    let many = code
        .into_iter()
        .flat_map(|code| functions.map(|function| matmul_wgmma::special_of_codes(dtype, function, code)));
    let few = takes(facts, w).and_then(|_| matmul_codes::special(facts, w, dtype));
    many.chain(few).collect()
}
