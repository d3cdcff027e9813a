//! Chooses who multiplies: `kernels/cuda/matmul_few.cu` for few rows, on Hopper `kernels/cuda/matmul_cluster.cu` for some more, for other 16-bit
//! weights and inputs whichever way is the fastest (cuBLASLt with one of its algorithms, on Hopper `kernels/cuda/matmul_hopper.cu`), the plain
//! kernel `kernels/cuda/matmul.cu` for the rest.

use super::acts::{View, cast};
use super::blas::{Blas, Key, Operands};
use super::context::Memory;
use super::device::{Device, Name, Shape, args};
use super::elementwise::{self, Function};
use super::matmul_cluster;
use super::special::LOWEST;
use super::ways::{Kind, Way, Ways, bucket};
use super::weights::{Vector, Weights};
use super::{matmul_few, matmul_hopper, measure};
use kernels::ops::{Activation, DType, Epilogue};

/// Tile of the plain kernel, and its threads.
const TILE: usize = 64;
const THREADS: usize = 256;

/// Algorithms of cuBLASLt that are tried.
const CANDIDATES: usize = 8;
/// Products of more rows may be our own kernel's without a gate too: fewer gain 1 to 2 % by it on an H200, and it takes a second to compile.
pub(crate) const MANY_ROWS: usize = 1024;

/// What products need beside their operands.
pub(crate) struct Matmul {
    blas: Blas,
    ways: Ways,
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

/// What every own kernel for products is told first, in this order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProductShape {
    rows: u32,
    n: u32,
    k: u32,
    accumulate: u32,
    wide: u32,
}

impl Product<'_> {
    /// Its shape, where results go to `out`: what a gate leaves of a product goes elsewhere.
    pub(crate) fn shape(&self, out: View) -> ProductShape {
        ProductShape {
            rows: self.x.rows as u32,
            n: self.w.rows as u32,
            k: self.w.cols as u32,
            accumulate: u32::from(self.epilogue == Epilogue::Accumulate),
            wide: u32::from(out.dtype == DType::F32),
        }
    }
}

impl Matmul {
    pub(crate) fn new(blas: Blas, ways: Ways) -> Self {
        Self { blas, ways, rounded: None }
    }

    pub(crate) fn run(&mut self, device: &mut Device, mut product: Product<'_>) {
        let Product { x, w, .. } = product;
        if x.rows == 0 {
            return;
        }
        if w.dtype.size() == 2 && (w.compute == w.dtype || x.dtype == w.dtype) {
            product.x = if x.dtype == w.dtype { x } else { self.round(device, x, w) };
            if matmul_few::run(device, &product)
                || matmul_cluster::run(device, &product)
                || self.run_many(device, &mut product)
            {
                return;
            }
        }
        plain(device, &product);
    }

    /// Queues a product of 16-bit operands in the way that is the fastest; false where there is none.
    fn run_many(&mut self, device: &mut Device, product: &mut Product<'_>) -> bool {
        let (key, out) = (product.key(), product.out);
        let wanted = match self.way(device, product) {
            Way::Own if matmul_hopper::fits(device, product) => return matmul_hopper::run(device, product, None, out),
            Way::Library(algorithm) => Some(algorithm),
            Way::Own | Way::Usual => None,
        };
        rounds_once(product) && {
            let operands = product.operands(device);
            self.blas.run(device, key, wanted, operands)
        }
    }

    /// The way of such a product. One that is added to its output can only be measured as one that overwrites it ([`Self::run_added`]).
    fn way(&mut self, device: &mut Device, product: &mut Product<'_>) -> Way {
        let kind = Kind::of(&product.key(), None);
        if let Some(way) = self.ways.get(kind) {
            return way;
        }
        if product.epilogue == Epilogue::Accumulate || !rounds_once(product) {
            self.ways.settle(kind, Way::Usual, None);
            return Way::Usual;
        }
        let rows = product.stretch(&[]);
        let own = rows > MANY_ROWS && matmul_hopper::fits(device, product);
        let (key, out, operands) = (product.key(), product.out, product.operands(device));
        let candidates = self.blas.candidates(key, CANDIDATES);
        let algorithms = candidates.as_ref().map_or(&[][..], |candidates| &candidates.algorithms);
        let count = algorithms.len() + usize::from(own);
        let measured = measure::fastest(device, self.blas.workspace(), count, |device, way| {
            match (&candidates, algorithms.get(way)) {
                (Some(candidates), Some(algorithm)) => candidates.run(device, algorithm, operands),
                _ => matmul_hopper::run(device, product, None, out),
            }
        });
        let way = measured.as_ref().map_or(Way::Usual, |measured| {
            algorithms.get(measured.best).map_or(Way::Own, |algorithm| Way::Library(*algorithm))
        });
        let times = measured.map(|measured| measured.text());
        self.ways.settle(kind, way, times.as_deref());
        product.set_rows(rows);
        way
    }

    /// Queues a product and the gate of its outputs, into `out`: together where that is the fastest. What `product` leaves in its own output
    /// nobody may read. False where it is no product for that: nothing happens then.
    pub(crate) fn run_gated(
        &mut self,
        device: &mut Device,
        product: &mut Product<'_>,
        activation: Activation,
        out: View,
    ) -> bool {
        if matmul_few::may_gate(device, product) && matmul_few::run_gated(device, product, activation, out) {
            return true;
        }
        if !matmul_hopper::may_gate(device, product) || out.dtype != product.w.dtype {
            return false;
        }
        let function = Function::from(activation);
        match self.gated_way(device, product, activation, out) {
            Way::Own => matmul_hopper::run(device, product, Some(function), out),
            Way::Usual | Way::Library(_) => false,
        }
    }

    fn gated_way(&mut self, device: &mut Device, product: &mut Product<'_>, activation: Activation, out: View) -> Way {
        let function = Function::from(activation);
        let kind = Kind::of(&product.key(), Some(function));
        if let Some(way) = self.ways.get(kind) {
            return way;
        }
        // Measured first, if it was not: what it is compared with is the product in its own best way.
        let apart = self.way(device, product);
        let rows = product.stretch(&[out]);
        let out = View { rows: product.x.rows, ..out };
        let (key, gate_up, operands) = (product.key(), product.out, product.operands(device));
        let candidates = self.blas.candidates(key, 1);
        let measured = measure::fastest(device, self.blas.workspace(), 2, |device, way| {
            if way == 1 {
                return matmul_hopper::run(device, product, Some(function), out);
            }
            let multiplied = match (apart, &candidates) {
                (Way::Own, _) => matmul_hopper::run(device, product, None, gate_up),
                (Way::Library(algorithm), Some(candidates)) => candidates.run(device, &algorithm, operands),
                (_, Some(candidates)) => {
                    candidates.algorithms.first().is_some_and(|first| candidates.run(device, first, operands))
                }
                (_, None) => false,
            };
            elementwise::gated(device, gate_up, activation, out);
            multiplied
        });
        let way = measured.as_ref().filter(|measured| measured.best == 1).map_or(Way::Usual, |_| Way::Own);
        let times = measured.map(|measured| measured.text());
        self.ways.settle(kind, way, times.as_deref());
        product.set_rows(rows);
        way
    }

    /// Whether it pays to wait for what a product may be added to: one launch less to read and write what it gave.
    pub(crate) fn may_add(device: &Device, product: &Product<'_>) -> bool {
        /// Fewer rows are in the device's cache when they are added.
        const LEAST_ROWS: usize = 512;
        let Product { x, w, epilogue, out, .. } = product;
        device.context.arch >= LOWEST
            && w.dtype.size() == 2
            && x.dtype == w.dtype
            && out.dtype == DType::F32
            && *epilogue == Epilogue::Store
            && x.rows >= LEAST_ROWS
    }

    /// Queues a product that [`Self::may_add`] and adds it to `sum` instead of writing it to its own output, whose content is lost.
    pub(crate) fn run_added(&mut self, device: &mut Device, mut product: Product<'_>, sum: View) {
        // Measured, if it was not, where that harms nobody.
        self.way(device, &mut product);
        self.run(device, Product { epilogue: Epilogue::Accumulate, out: sum, ..product });
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
        View { ptr, dtype: w.dtype, most_rows: x.rows, ..x }
    }
}

impl Product<'_> {
    fn key(&self) -> Key {
        let Self { x, w, bias, epilogue, out } = self;
        let (rows, n, k, bias) = (x.rows, w.rows, w.cols, bias.is_some());
        Key { rows, n, k, input: w.dtype, output: out.dtype, bias, epilogue: *epilogue }
    }

    /// Takes as many rows as its kind goes up to, as far as its buffers and these have room; returns its own number. A way that is the fastest
    /// for some rows may be far from it for a few more, with which a tile more begins.
    fn stretch(&mut self, others: &[View]) -> usize {
        let (rows, all) = (self.x.rows, [self.x, self.out]);
        let room = all.iter().chain(others).map(|view| view.most_rows).min();
        self.set_rows(bucket(rows).min(room.unwrap_or(rows)));
        rows
    }

    fn set_rows(&mut self, rows: usize) {
        (self.x.rows, self.out.rows) = (rows, rows);
    }

    /// For cuBLASLt, which wants a bias in the output's type.
    fn operands(&mut self, device: &mut Device) -> Operands {
        let output = self.out.dtype;
        let bias = self.bias.as_deref_mut().map_or(0, |bias| bias.ptr_in(device, output));
        Operands { x: self.x.ptr, w: self.w.ptr(), bias, out: self.out.ptr }
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
