//! Chooses who multiplies: `kernels/cuda/matmul_few.cu` for few rows, on Hopper `kernels/cuda/matmul_cluster.cu` for some more, cuBLASLt for
//! other 16-bit weights and inputs, the plain kernel `kernels/cuda/matmul.cu` for the rest.

use super::acts::{View, cast};
use super::blas::{Blas, Key, Operands};
use super::context::Memory;
use super::device::{Device, Name, Shape, args};
use super::matmul_cluster::Clusters;
use super::matmul_few;
use super::weights::{Vector, Weights};
use kernels::ops::{DType, Epilogue};

/// Tile of the plain kernel, and its threads.
const TILE: usize = 64;
const THREADS: usize = 256;

/// What products need beside their operands.
pub(crate) struct Matmul {
    pub(crate) blas: Blas,
    clusters: Clusters,
    /// Inputs in another element type; grows to the largest.
    rounded: Option<Memory>,
}

/// One product. The shapes fit (checked by the caller).
pub(crate) struct Product<'a> {
    pub(crate) x: View,
    pub(crate) w: &'a Weights,
    pub(crate) bias: Option<&'a mut Vector>,
    pub(crate) epilogue: Epilogue,
    pub(crate) out: View,
}

impl Matmul {
    pub(crate) fn new(blas: Blas) -> Self {
        Self { blas, clusters: Clusters::default(), rounded: None }
    }

    pub(crate) fn run(&mut self, device: &mut Device, mut product: Product<'_>) {
        let Product { x, w, out, epilogue, .. } = product;
        if x.rows == 0 {
            return;
        }
        if w.dtype.size() == 2 && (w.compute == w.dtype || x.dtype == w.dtype) {
            let key = Key {
                rows: x.rows,
                n: w.rows,
                k: w.cols,
                input: w.dtype,
                output: out.dtype,
                bias: product.bias.is_some(),
                epilogue,
            };
            let input = if x.dtype == w.dtype { x } else { self.round(device, x, w) };
            product.x = input;
            if matmul_few::run(device, &product) || self.clusters.run(device, &product) {
                return;
            }
            let once = rounds_once(&product);
            let bias = product.bias.as_deref_mut().map_or(0, |bias| bias.ptr_in(device, out.dtype));
            if once && self.blas.run(device, key, Operands { x: input.ptr, w: w.ptr(), bias, out: out.ptr }) {
                return;
            }
        }
        plain(device, &product);
    }

    /// `x` in the weights' element type.
    fn round(&mut self, device: &mut Device, x: View, w: &Weights) -> View {
        let bytes = x.elements() * w.dtype.size();
        if self.rounded.as_ref().is_none_or(|memory| memory.bytes < bytes) {
            self.rounded = None;
            self.rounded = device.allocate(bytes.next_power_of_two(), "a product's rounded input");
        }
        let ptr = self.rounded.as_ref().map_or(0, |memory| memory.ptr);
        cast(device, (x.ptr, x.dtype), (ptr, w.dtype), x.elements());
        View { ptr, dtype: w.dtype, ..x }
    }
}

/// Whether cuBLASLt rounds only what it writes. Where rows do not begin at multiples of 16 bytes it rounds products before it adds a bias.
fn rounds_once(product: &Product<'_>) -> bool {
    const PIECE: usize = 8;
    let Product { w, bias, out, .. } = product;
    bias.is_none() || out.dtype == DType::F32 || (w.rows.is_multiple_of(PIECE) && w.cols.is_multiple_of(PIECE))
}

fn plain(device: &mut Device, product: &Product<'_>) {
    let Product { x, w, bias, epilogue, out } = product;
    let shape = Shape { grid: [w.rows.div_ceil(TILE), x.rows.div_ceil(TILE)], block: THREADS, shared: 0 };
    let bias = bias.as_ref().map_or(0, |bias| bias.ptr());
    let [rows, n, k] = [x.rows, w.rows, w.cols].map(|number| number as u32);
    let accumulate = u32::from(*epilogue == Epilogue::Accumulate);
    let name = Name::of("matmul", &[x.dtype, w.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, w.ptr(), bias, out.ptr, rows, n, k, accumulate]);
}
