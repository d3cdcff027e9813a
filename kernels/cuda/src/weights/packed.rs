//! Weights of 4 or 8 bits in the order of tensor-core operands (`csrc/gemm/packed.cuh`), and how they get into it:
//! codes and scales are sent as files have them, and `csrc/weights/pack.cu` moves them to their places.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use half::f16;
use kernels::decode::{IntegerFormat, IntegerRow, Offsets};
use kernels::ops::{
    self, ALL_COLUMNS, CodeBits, ColumnOrder, DType, E2M1, Encoding, GroupedCodes, GroupedFormat, HostMatrix,
    InputRounding, Levels, ScaledCodes, WeightFormat,
};

use crate::jit::layouts::twin;
use crate::moe::experts_codes;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Staging;

const FILE: &str = "pack";
/// Rows of a tile, columns of a chunk, and bytes of a chunk of a tile for each 4 bits of a code.
pub(crate) const TILE: usize = 16;
pub(crate) const CHUNK: usize = 64;
const PIECE: usize = 512;
/// Columns that a group of a specialised kernel is a multiple of.
pub(crate) const LEAST_GROUP: usize = 16;

/// What codes mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Code {
    Int4,
    Int8,
    E4m3,
    /// Of 16 numbers each.
    Levels,
    /// Floats of 4 bits: see [`E2M1`].
    E2m1,
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
    /// Whether a format can be kept packed.
    pub(crate) fn takes(format: WeightFormat) -> bool {
        match format {
            WeightFormat::Plain(_) => false,
            // A rank that begins inside a group may have short ones.
            WeightFormat::ScaledE4m3 { scale_cols, .. } => {
                scale_cols == ALL_COLUMNS || scale_cols.is_multiple_of(LEAST_GROUP)
            }
            WeightFormat::Grouped(GroupedFormat { levels, .. }) => levels != Levels::Rows,
            WeightFormat::Blocks(_) => {
                IntegerFormat::of(format).is_some_and(|format| format.group.is_multiple_of(LEAST_GROUP))
            }
        }
    }

    /// Whether experts of this format can be: their products do not put inputs into another order, and round them only
    /// in one way.
    pub(crate) fn takes_experts(format: WeightFormat) -> bool {
        let in_order = match format {
            WeightFormat::Grouped(GroupedFormat { order, .. }) => order == ColumnOrder::InOrder,
            WeightFormat::Plain(_) | WeightFormat::ScaledE4m3 { .. } | WeightFormat::Blocks(_) => true,
        };
        in_order && Self::takes(format) && (format.input() == InputRounding::None || Self::rounds_experts(format))
    }

    /// Whether they are rounded so.
    fn rounds_experts(format: WeightFormat) -> bool {
        matches!(format, WeightFormat::ScaledE4m3 { input, .. } if input == experts_codes::ROUNDING)
    }

    fn of_grouped(format: &GroupedFormat, cols: usize) -> Self {
        let code = match (format.levels, format.bits) {
            (Levels::Integers(_), CodeBits::Four) => Code::Int4,
            (Levels::Integers(_), CodeBits::Eight) => Code::Int8,
            (Levels::Shared(levels), _) if levels.map(f32::to_bits) == E2M1.map(f32::to_bits) => Code::E2m1,
            (Levels::Shared(_) | Levels::Rows, _) => Code::Levels,
        };
        let stored = format.levels == Levels::Integers(ops::Zeros::Stored);
        let zeros = if stored { Zeros::Points } else { Zeros::Middle };
        Self { code, scale: format.scales, zeros, group: group_of(format.group, cols) }
    }

    /// `compute`: what products are computed in.
    fn of_integers(format: IntegerFormat, cols: usize, compute: DType) -> Self {
        // Codes of four bits whose groups are shorter than 32 have not been run on a GPU.
        let code = match format.bits {
            CodeBits::Four if format.group.is_multiple_of(32) || format.group == ALL_COLUMNS => Code::Int4,
            _ => Code::Int8,
        };
        let zeros = match format.offsets {
            Offsets::Middle => Zeros::Middle,
            Offsets::Before => Zeros::Points,
            Offsets::After => Zeros::Offsets,
        };
        // Files have f16, those of two levels times a small integer, which f32 has exactly.
        let scale = if compute == DType::F32 { DType::F32 } else { DType::F16 };
        Self { code, scale, zeros, group: group_of(format.group, cols) }
    }

    /// Of a format that is kept packed, for products in 16 bits.
    pub(crate) fn of(format: WeightFormat, cols: usize) -> Option<Self> {
        match format {
            WeightFormat::Plain(_) => None,
            WeightFormat::ScaledE4m3 { scale_cols, .. } => Some(Self::of_floats(scale_cols, cols)),
            WeightFormat::Grouped(format) => Some(Self::of_grouped(&format, cols)),
            WeightFormat::Blocks(_) => {
                IntegerFormat::of(format).map(|format| Self::of_integers(format, cols, DType::F16))
            }
        }
    }

    /// What both sides of products with `cols` columns are, where inputs are rounded to such codes as weights are, with
    /// one scale a row each.
    pub(crate) fn both_codes(self, input: InputRounding, cols: usize) -> Option<Code> {
        let rounds = match (self.code, input) {
            (Code::E4m3, InputRounding::Static(_)) | (Code::Int8, InputRounding::StaticInt8(_)) => true,
            (Code::E4m3, InputRounding::Dynamic { cols: shared }) => shared >= cols,
            (Code::Int8, InputRounding::DynamicInt8 { outliers }) => outliers == f32::INFINITY,
            _ => false,
        };
        (rounds && self.group == 0 && self.zeros == Zeros::Middle).then_some(self.code)
    }

    fn of_floats(scale_cols: usize, cols: usize) -> Self {
        Self { code: Code::E4m3, scale: DType::F32, zeros: Zeros::Middle, group: group_of(scale_cols, cols) }
    }

    /// `FORMAT` and `GROUP` of packed_skinny.cuh.
    pub(crate) fn macros(self) -> [(&'static str, usize); 2] {
        let format = self.code as usize + 8 * self.scale_number() + 32 * self.zeros as usize;
        [("FORMAT", format), ("GROUP", self.group)]
    }

    /// The type of scales, as kernels number it.
    fn scale_number(self) -> usize {
        match self.scale {
            DType::F32 => 0,
            DType::F16 => 1,
            DType::Bf16 => 2,
        }
    }

    /// Pieces of a chunk.
    pub(crate) fn pieces(self) -> usize {
        match self.code {
            Code::Int4 | Code::Levels | Code::E2m1 => 1,
            Code::Int8 | Code::E4m3 => 2,
        }
    }

    /// Groups of a row.
    fn groups(self, cols: usize) -> usize {
        if self.group == 0 { 1 } else { cols.div_ceil(self.group) }
    }
}

/// Rows of 8-bit codes, and a scale in f32 for each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodedRows {
    pub(crate) codes: CUdeviceptr,
    pub(crate) scales: CUdeviceptr,
    /// Bytes of a row: a multiple of [`STAGE`].
    pub(crate) pitch: usize,
}

/// Codes of 8 bits that a product takes at a time.
pub(crate) const STAGE: usize = 128;

impl CodedRows {
    /// Of `cols` codes, which lie before their scales in memory of [`Self::bytes`].
    pub(crate) fn at(memory: CUdeviceptr, rows: usize, cols: usize) -> Self {
        let pitch = cols.next_multiple_of(STAGE);
        Self { codes: memory, scales: memory + (rows * pitch) as u64, pitch }
    }

    /// Bytes that rows of `cols` codes take.
    pub(crate) fn bytes(rows: usize, cols: usize) -> usize {
        rows * (cols.next_multiple_of(STAGE) + size_of::<f32>())
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
    /// Whether rows of a tile share their scales.
    pub(crate) tiles_share: bool,
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
        let [code, scale, zero] = [kind.code as usize, kind.scale_number(), kind.zeros as usize];
        let [n, k, group, groups] = [rows, cols, kind.group, kind.groups(cols)].map(|number| number as u32);
        let [code, scale, zero] = [code, scale, zero].map(|number| number as u32);
        Self { codes: 0, scales: 0, zeros: 0, levels: 0, n, k, group, groups, code, scale, zero }
    }
}

impl PackedWeights {
    /// As it lies in device memory.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { codes, scales, zeros, levels, n, k, group, groups, code, scale, zero } = *self;
        let addresses = [codes, scales, zeros, levels].into_iter().flat_map(CUdeviceptr::to_ne_bytes);
        let numbers = [n, k, group, groups, code, scale, zero].into_iter().flat_map(u32::to_ne_bytes);
        let mut bytes: Vec<u8> = addresses.chain(numbers).collect();
        bytes.resize(size_of::<Self>(), 0);
        bytes
    }
}

impl Packed {
    /// Those of a matrix in pieces, for products in `compute`; absent where it is one of numbers, or the device has
    /// failed.
    pub(crate) fn load(
        device: &mut Device,
        staging: &mut Staging,
        pieces: &[HostMatrix<'_>],
        compute: DType,
    ) -> Option<Self> {
        match pieces.first()?.encoding {
            Encoding::Plain(_) => None,
            Encoding::Scaled(first) => Self::load_scaled(device, staging, pieces, first),
            Encoding::Grouped(first) => Self::load_grouped(device, staging, pieces, first),
            Encoding::Blocks(_) => Self::load_blocks(device, staging, pieces, compute),
        }
    }

    /// Codes in groups.
    fn load_grouped(
        device: &mut Device,
        staging: &mut Staging,
        pieces: &[HostMatrix<'_>],
        GroupedCodes { format, columns, .. }: GroupedCodes<'_>,
    ) -> Option<Self> {
        let (rows, cols) = (pieces.iter().map(|piece| piece.rows).sum(), pieces.first()?.cols);
        let kind = Kind::of_grouped(&format, cols);
        let grouped: Vec<GroupedCodes<'_>> = (pieces.iter())
            .filter_map(|piece| if let Encoding::Grouped(codes) = piece.encoding { Some(codes) } else { None })
            .collect();
        let mut packing = Packing { device, staging, kind, rows, cols };
        let codes = packing.codes(&grouped.iter().map(|codes| codes.codes).collect::<Vec<_>>())?;
        let scales: Vec<&[u8]> = grouped.iter().map(|codes| codes.scales).collect();
        let scales = packing.sides(&scales, kind.scale.size())?;
        let zeros = match kind.zeros {
            Zeros::Points => Some(packing.sides(&grouped.iter().map(|codes| codes.zeros).collect::<Vec<_>>(), 1)?),
            Zeros::Middle | Zeros::Offsets => None,
        };
        let levels = if let Levels::Shared(levels) = format.levels { Some(packing.numbers(&levels)?) } else { None };
        let columns = if columns.is_empty() { None } else { Some(packing.columns(columns)?) };
        let [zeros, levels, columns] = [zeros, levels, columns].map(|memory| memory.map(Arc::new));
        let (codes, scales) = (Arc::new(codes), Arc::new(scales));
        Some(Self { kind, rows, cols, codes, scales, zeros, levels, columns, input: format.input, tiles_share: false })
    }

    /// GGUF's blocks, as integers with scales and offsets.
    fn load_blocks(
        device: &mut Device,
        staging: &mut Staging,
        pieces: &[HostMatrix<'_>],
        compute: DType,
    ) -> Option<Self> {
        let (rows, cols) = (pieces.iter().map(|piece| piece.rows).sum(), pieces.first()?.cols);
        let kind = Kind::of_integers(IntegerFormat::of(pieces.first()?.format())?, cols, compute);
        let planes = Planes::of(pieces, kind);
        let mut packing = Packing { device, staging, kind, rows, cols };
        let codes = Arc::new(packing.codes(&[&planes.codes])?);
        let scales = Arc::new(packing.sides(&[&planes.scales], kind.scale.size())?);
        let zeros = match kind.zeros {
            Zeros::Offsets => Some(Arc::new(packing.sides(&[&planes.offsets], kind.scale.size())?)),
            Zeros::Middle | Zeros::Points => None,
        };
        let input = InputRounding::None;
        let tiles_share = false;
        Some(Self { kind, rows, cols, codes, scales, zeros, levels: None, columns: None, input, tiles_share })
    }

    /// 8-bit floats.
    fn load_scaled(
        device: &mut Device,
        staging: &mut Staging,
        pieces: &[HostMatrix<'_>],
        ScaledCodes { scale_cols, input, .. }: ScaledCodes<'_>,
    ) -> Option<Self> {
        let (rows, cols) = (pieces.iter().map(|piece| piece.rows).sum(), pieces.first()?.cols);
        let kind = Kind::of_floats(scale_cols, cols);
        let (mut values, mut lines) = (Vec::new(), Vec::new());
        for piece in pieces {
            let Encoding::Scaled(ScaledCodes { scales, scale_rows, .. }) = piece.encoding else { return None };
            let first = (values.len() / size_of::<f32>() / kind.groups(cols)) as u32;
            values.extend(scales.iter().flat_map(|scale| scale.to_ne_bytes()));
            lines.extend(scale_rows.iter().map(|row| first + row));
        }
        let tiles_share = lines.chunks(TILE).all(|tile| tile.iter().all(|line| line == &tile[0]));
        let lines: Vec<u8> = lines.into_iter().flat_map(u32::to_ne_bytes).collect();
        let mut packing = Packing { device, staging, kind, rows, cols };
        let codes: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes()).collect();
        let codes = packing.codes(&codes)?;
        let scales = packing.shared_scales(&values, &lines)?;
        let (codes, scales) = (Arc::new(codes), Arc::new(scales));
        Some(Self { kind, rows, cols, codes, scales, zeros: None, levels: None, columns: None, input, tiles_share })
    }

    /// See [`Kind::both_codes`].
    pub(crate) fn both_codes(&self) -> Option<Code> {
        self.kind.both_codes(self.input, self.cols)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let Self { codes, scales, zeros, levels, columns, .. } = self;
        let others = [zeros, levels, columns].into_iter().flatten().map(|memory| memory.bytes);
        codes.bytes + scales.bytes + others.sum::<usize>()
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

    /// Queues the writing of its codes of 8 bits row by row, `[rows, pitch]`, and of the scale of each row.
    pub(crate) fn unpack_codes(&self, device: &mut Device, to: CodedRows) {
        let lanes = (self.codes.bytes / 16) as u64;
        let shape = Shape::elements(self.codes.bytes / 16);
        let name = Name::in_file("unpack", "unpack_codes", &[]);
        device.launch(name, shape, args![to.codes, to.scales, self.argument(), (to.pitch / 4) as u32, lanes]);
    }

    /// Queues the writing of the numbers that it stands for, `[rows, cols]` of a 16-bit type.
    pub(crate) fn unpack(&self, device: &mut Device, to: CUdeviceptr, dtype: DType) {
        let lanes = (self.codes.bytes / 16) as u64;
        let shape = Shape::elements(self.codes.bytes / 16);
        device.launch(Name::of("unpack", &[dtype]), shape, args![to, self.argument(), lanes]);
    }
}

/// Columns that share a scale, as kernels are told.
fn group_of(group: usize, cols: usize) -> usize {
    if group == ALL_COLUMNS || group >= cols { 0 } else { group }
}

/// Codes, scales and offsets of GGUF's blocks, each row by row.
#[derive(Default)]
struct Planes {
    codes: Vec<u8>,
    scales: Vec<u8>,
    offsets: Vec<u8>,
}

impl Planes {
    /// Those of all pieces: several threads unpack them.
    fn of(pieces: &[HostMatrix<'_>], kind: Kind) -> Self {
        let threads = super::staging::threads();
        let mut all = Self::default();
        for piece in pieces {
            let share = piece.rows.div_ceil(threads).max(1);
            let parts: Vec<Self> = std::thread::scope(|scope| {
                let unpack = |start: usize| move || Self::of_rows(piece, start..piece.rows.min(start + share), kind);
                let handles: Vec<_> = (0..piece.rows).step_by(share).map(|start| scope.spawn(unpack(start))).collect();
                handles.into_iter().map(|handle| handle.join().expect("blocks that were checked")).collect()
            });
            for part in parts {
                all.codes.extend(part.codes);
                all.scales.extend(part.scales);
                all.offsets.extend(part.offsets);
            }
        }
        all
    }

    fn of_rows(piece: &HostMatrix<'_>, rows: std::ops::Range<usize>, kind: Kind) -> Self {
        let (mut planes, mut row_of) = (Self::default(), IntegerRow::default());
        // Codes of four bits that are kept in eight count from another middle.
        let format = IntegerFormat::of(piece.format()).filter(|format| format.bits == CodeBits::Four);
        let lift = format.map_or(0, |format| CodeBits::Eight.middle() - format.base());
        for row in rows {
            row_of.read(piece, row);
            match kind.pieces() {
                1 => planes.codes.extend(row_of.codes.chunks(2).map(|two| two[0] | two.get(1).unwrap_or(&0) << 4)),
                _ => planes.codes.extend(row_of.codes.iter().map(|code| code + lift)),
            }
            put(&mut planes.scales, row_of.scales.iter().copied(), kind.scale);
            put(&mut planes.offsets, row_of.offsets.iter().map(|offset| -offset), kind.scale);
        }
        planes
    }
}

/// Appends numbers as f32, or as f16, which has no larger ones than 65,504.
fn put(to: &mut Vec<u8>, numbers: impl Iterator<Item = f32>, dtype: DType) {
    let most = f16::MAX.to_f32();
    match dtype {
        DType::F32 => to.extend(numbers.flat_map(f32::to_ne_bytes)),
        _ => to.extend(numbers.flat_map(|number| f16::from_f32(number.clamp(-most, most)).to_ne_bytes())),
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
        let bytes = self.tiles() * self.cols.div_ceil(CHUNK) * self.kind.pieces() * PIECE;
        let packed = self.staging.slabs.allocate(self.device, bytes, "weights")?;
        let source = self.staging.source(self.device, pieces)?;
        let pitch = (source.bytes / self.rows.max(1)) as u32;
        let words = (bytes / 4) as u64;
        let name = Name::in_file(FILE, "pack_codes", &[]);
        let shape = Shape::elements(bytes / 4);
        self.device.launch(name, shape, args![packed.ptr, source.ptr, self.argument(), pitch, words]);
        source.release(self.device);
        Some(packed)
    }

    /// Scales, zero points or offsets of `size` bytes each, `[rows, groups]`, in their places.
    fn sides(&mut self, pieces: &[&[u8]], size: usize) -> Option<Memory> {
        let count = self.tiles() * TILE * self.kind.groups(self.cols);
        let packed = self.staging.slabs.allocate(self.device, count * size, "scales")?;
        let source = self.staging.source(self.device, pieces)?;
        let name = Name::in_file(FILE, "pack_sides", &[]);
        let (shape, size, places) = (Shape::elements(count), size as u32, count as u64);
        self.device.launch(name, shape, args![packed.ptr, source.ptr, self.argument(), size, places]);
        source.release(self.device);
        Some(packed)
    }

    fn numbers(&mut self, values: &[f32]) -> Option<Memory> {
        self.load(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())
    }

    fn columns(&mut self, columns: &[u32]) -> Option<Memory> {
        self.load(&columns.iter().flat_map(|column| column.to_ne_bytes()).collect::<Vec<u8>>())
    }

    fn load(&mut self, bytes: &[u8]) -> Option<Memory> {
        let memory = self.staging.slabs.allocate(self.device, bytes.len(), "weights")?;
        self.staging.fill(self.device, &[bytes], memory.ptr)?;
        Some(memory)
    }

    /// Scales, one row of them for each number in `lines`.
    fn shared_scales(&mut self, values: &[u8], lines: &[u8]) -> Option<Memory> {
        let count = self.tiles() * TILE * self.kind.groups(self.cols);
        let packed = self.staging.slabs.allocate(self.device, count * size_of::<f32>(), "scales")?;
        let source = self.staging.source(self.device, &[values, lines])?;
        let name = Name::in_file(FILE, "pack_shared_scales", &[]);
        let (shape, places) = (Shape::elements(count), count as u64);
        let lines = source.ptr + values.len() as u64;
        self.device.launch(name, shape, args![packed.ptr, source.ptr, lines, self.argument(), places]);
        source.release(self.device);
        Some(packed)
    }
}
