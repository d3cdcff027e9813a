//! Weights of 4 or 8 bits in the order of tensor-core operands (`csrc/gemm/packed.cuh`), and how they get into it:
//! codes and scales are sent as files have them, and `csrc/weights/pack.cu` moves them to their places.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{ALL_COLUMNS, DType, Encoding, HostMatrix, InputRounding, ScaledCodes};

use crate::jit::layouts::twin;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Staging;

const FILE: &str = "pack";
/// Rows of a tile, columns of a chunk, and bytes of a chunk of a tile for each 4 bits of a code.
pub(crate) const TILE: usize = 16;
pub(crate) const CHUNK: usize = 64;
const PIECE: usize = 512;

/// What codes mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Int4,
    Int8,
    E4m3,
    /// Of 16 numbers each.
    Levels,
}

/// What is subtracted from a code, or added to what it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Zeros {
    /// Half of what codes reach to.
    Middle,
    /// A byte a group.
    Points,
    /// A number a group, in the type of scales, added to the scaled code.
    Offsets,
}

/// What kernels are compiled for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    pub(crate) code: Code,
    pub(crate) scale: DType,
    pub(crate) zeros: Zeros,
    /// Columns that share a scale; 0: all of a row.
    pub(crate) group: usize,
}

impl Kind {
    /// `CODE`, `SCALE`, `ZEROS` and `GROUP` of packed_skinny.cuh.
    pub(crate) fn macros(self) -> [(&'static str, usize); 4] {
        let scale = match self.scale {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
        };
        [("CODE", self.code as usize), ("SCALE", scale), ("ZEROS", self.zeros as usize), ("GROUP", self.group)]
    }

    /// Pieces of a chunk.
    pub(crate) fn pieces(self) -> usize {
        match self.code {
            Code::Int4 | Code::Levels => 1,
            Code::Int8 | Code::E4m3 => 2,
        }
    }

    /// Groups of a row.
    fn groups(self, cols: usize) -> usize {
        if self.group == 0 { 1 } else { cols.div_ceil(self.group) }
    }
}

/// A packed matrix. Clones share it.
#[derive(Clone)]
pub(crate) struct Packed {
    pub(crate) kind: Kind,
    rows: usize,
    cols: usize,
    codes: Arc<Memory>,
    scales: Arc<Memory>,
    zeros: Option<Arc<Memory>>,
    levels: Option<Arc<Memory>>,
    /// Which column of an input each column of codes is for, if that is another one.
    pub(crate) columns: Option<Arc<Memory>>,
    /// How inputs are rounded first.
    pub(crate) input: InputRounding,
}

/// `struct PackedWeights` of packed.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedWeights {
    codes: CUdeviceptr,
    scales: CUdeviceptr,
    zeros: CUdeviceptr,
    levels: CUdeviceptr,
    n: u32,
    k: u32,
    group: u32,
    groups: u32,
    code: u32,
    scale: u32,
    zero: u32,
}

twin!(PackedWeights = "PackedWeights" { codes, scales, zeros, levels, n, k, group, groups, code, scale, zero });

impl PackedWeights {
    fn of(kind: Kind, [rows, cols]: [usize; 2]) -> Self {
        let [code, scale, zero, group] = kind.macros().map(|(_, value)| value as u32);
        let [n, k, groups] = [rows, cols, kind.groups(cols)].map(|number| number as u32);
        Self { codes: 0, scales: 0, zeros: 0, levels: 0, n, k, group, groups, code, scale, zero }
    }
}

impl Packed {
    /// Those of a matrix in pieces; absent where it is one of numbers, or the device has failed.
    pub(crate) fn load(device: &mut Device, staging: &mut Staging, pieces: &[HostMatrix<'_>]) -> Option<Self> {
        match pieces.first()?.encoding {
            Encoding::Plain(_) => None,
            Encoding::Scaled(first) => Self::load_scaled(device, staging, pieces, first),
        }
    }

    /// 8-bit floats.
    fn load_scaled(
        device: &mut Device,
        staging: &mut Staging,
        pieces: &[HostMatrix<'_>],
        ScaledCodes { scale_cols, input, .. }: ScaledCodes<'_>,
    ) -> Option<Self> {
        let (rows, cols) = (pieces.iter().map(|piece| piece.rows).sum(), pieces.first()?.cols);
        let group = if scale_cols == ALL_COLUMNS || scale_cols >= cols { 0 } else { scale_cols };
        let kind = Kind { code: Code::E4m3, scale: DType::F32, zeros: Zeros::Middle, group };
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        for piece in pieces {
            let Encoding::Scaled(ScaledCodes { scales, scale_rows, .. }) = piece.encoding else { return None };
            let first = (values.len() / size_of::<f32>() / kind.groups(cols)) as u32;
            values.extend(scales.iter().flat_map(|scale| scale.to_ne_bytes()));
            lines.extend(scale_rows.iter().flat_map(|row| (first + row).to_ne_bytes()));
        }
        let mut packing = Packing { device, staging, kind, rows, cols };
        let codes: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes()).collect();
        let codes = packing.codes(&codes)?;
        let scales = packing.shared_scales(&values, &lines)?;
        let (codes, scales) = (Arc::new(codes), Arc::new(scales));
        Some(Self { kind, rows, cols, codes, scales, zeros: None, levels: None, columns: None, input })
    }

    pub(crate) fn argument(&self) -> PackedWeights {
        let at = |memory: &Option<Arc<Memory>>| memory.as_ref().map_or(0, |memory| memory.ptr);
        PackedWeights {
            codes: self.codes.ptr,
            scales: self.scales.ptr,
            zeros: at(&self.zeros),
            levels: at(&self.levels),
            ..PackedWeights::of(self.kind, [self.rows, self.cols])
        }
    }

    /// Queues the writing of the numbers that it stands for, `[rows, cols]` of a 16-bit type.
    pub(crate) fn unpack(&self, device: &mut Device, to: CUdeviceptr, dtype: DType) {
        let lanes = (self.codes.bytes / 16) as u64;
        let shape = Shape::elements(self.codes.bytes / 16);
        device.launch(Name::of("unpack", &[dtype]), shape, args![to, self.argument(), lanes]);
    }
}

/// A matrix on its way.
struct Packing<'a> {
    device: &'a mut Device,
    staging: &'a mut Staging,
    kind: Kind,
    rows: usize,
    cols: usize,
}

impl Packing<'_> {
    fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    fn argument(&self) -> PackedWeights {
        PackedWeights::of(self.kind, [self.rows, self.cols])
    }

    /// Row-major codes in their places.
    fn codes(&mut self, pieces: &[&[u8]]) -> Option<Memory> {
        let source = self.staging.load_pieces(self.device, pieces)?;
        let bytes = self.tiles() * self.cols.div_ceil(CHUNK) * self.kind.pieces() * PIECE;
        let packed = self.device.allocate(bytes, "weights")?;
        let pitch = (source.bytes / self.rows.max(1)) as u32;
        let words = (bytes / 4) as u64;
        let name = Name::in_file(FILE, "pack_codes", &[]);
        let shape = Shape::elements(bytes / 4);
        self.device.launch(name, shape, args![packed.ptr, source.ptr, self.argument(), pitch, words]);
        self.device.synchronize();
        Some(packed)
    }

    /// Scales, one row of them for each number in `lines`.
    fn shared_scales(&mut self, values: &[u8], lines: &[u8]) -> Option<Memory> {
        let [values, lines] = [values, lines].map(|bytes| self.staging.load(self.device, bytes));
        let (values, lines) = (values?, lines?);
        let count = self.tiles() * TILE * self.kind.groups(self.cols);
        let packed = self.device.allocate(count * size_of::<f32>(), "scales")?;
        let name = Name::in_file(FILE, "pack_shared_scales", &[]);
        let (shape, places) = (Shape::elements(count), count as u64);
        self.device.launch(name, shape, args![packed.ptr, values.ptr, lines.ptr, self.argument(), places]);
        self.device.synchronize();
        Some(packed)
    }
}
