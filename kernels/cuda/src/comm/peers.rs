//! Launches `kernels/cuda/csrc/comm/ranks.cu`: each rank writes its part straight into the memory of the others, which
//! CUDA IPC maps here. Messages of any size go in one launch; those of several chunks are sent and taken at once.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{self, CUdeviceptr, CUipcMem_flags};

use crate::fusion::op::AddNorm;
use crate::jit::layouts::twin;
use crate::jit::specialization::Special;
use crate::runtime::activations::View;
use crate::runtime::context::{Context, Memory};
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{DType, Exchange, ExchangeFailed, RankPlacement};

const MOST_RANKS: usize = 8;
/// Threads of a block.
const THREADS: usize = 512;
/// What numbers are, and what they travel as: normed rows are of that type too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Types {
    numbers: DType,
    wire: DType,
}

/// All that there are sums of, the usual ones first.
const TYPES: [Types; 4] = [
    Types { numbers: DType::Bf16, wire: DType::Bf16 },
    Types { numbers: DType::F32, wire: DType::Bf16 },
    Types { numbers: DType::F32, wire: DType::F16 },
    Types { numbers: DType::F32, wire: DType::F32 },
];
/// Blocks of a launch at most.
const BLOCKS: usize = 128;
/// Bytes of a packet, which are numbers and nothing else.
const PACKET: usize = 16;
/// `SLOTS` of the kernel.
const SLOTS: usize = 6;
/// Numbers and the sums of two shots come to places of their own.
const POSTS: usize = 2;

/// `struct Ranks` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    inbox: [CUdeviceptr; MOST_RANKS],
    chunks: CUdeviceptr,
    rank: u32,
    size: u32,
    blocks: u32,
    packets: u32,
}

twin!(Ranks = "Ranks" { inbox, chunks, rank, size, blocks, packets });

/// How often a number crosses: each rank sends all its numbers to all others, or a part to each, and then the sum of
/// its own part to all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shots {
    One = 1,
    Two = 2,
}

/// The kernels that add up: all that a group may need, since none may be compiled while a step is recorded.
pub(crate) fn specials() -> impl Iterator<Item = Special> {
    TYPES.into_iter().flat_map(|types| [sum(types, Shots::One), sum(types, Shots::Two), sum_add_norm(types)])
}

fn sum(types: Types, shots: Shots) -> Special {
    Special::new("ranks_sum", types.wire, &[types.is_short(), ("SHOTS", shots as usize)])
}

fn sum_add_norm(types: Types) -> Special {
    Special::new("ranks_sum_add_norm", types.wire, &[types.is_short()])
}

impl Types {
    /// The macro that says whether numbers are what they travel as.
    fn is_short(self) -> (&'static str, usize) {
        ("IS_SHORT", usize::from(self.numbers.size() == 2))
    }
}

/// This rank's inbox, and those of the others.
pub(crate) struct Peers {
    ranks: Ranks,
    _inbox: Memory,
    _chunks: Memory,
    _others: Vec<Mapped>,
}

/// Memory of another rank, mapped here.
struct Mapped {
    context: Arc<Context>,
    ptr: CUdeviceptr,
    /// Through CUDA IPC; otherwise it belongs to this process.
    foreign: bool,
}

/// What a rank tells of its inbox.
struct Address {
    /// Drawn by its process.
    process: u64,
    device: u32,
    ptr: CUdeviceptr,
    handle: [u8; HANDLE],
}

const HANDLE: usize = size_of::<sys::CUipcMemHandle>();
/// A yes and the inbox.
const TOLD_BYTES: usize = 1 + 8 + 4 + 8 + HANDLE;

impl Peers {
    /// Maps the inboxes of all ranks, for chunks of `bytes` bytes; `None`, on every rank, where some rank cannot.
    pub(crate) fn meet(
        device: &mut Device,
        placement: RankPlacement,
        bytes: usize,
        exchange: Exchange<'_>,
    ) -> Result<Option<Self>, ExchangeFailed> {
        let packets = (bytes / PACKET).div_ceil(BLOCKS).max(THREADS);
        specials().for_each(|special| device.order(special));
        let made = make(device, placement, packets).filter(|_| specials().all(|special| device.load(special)));
        let mine = made.as_ref().map(|(inbox, _)| Address::of(device, inbox));
        let told = exchange(&Address::told(mine.and_then(Result::ok).as_ref()))?;
        let inboxes: Option<Vec<Address>> = told.iter().map(|bytes| Address::heard(bytes)).collect();
        let mapped = inboxes.and_then(|inboxes| map(&device.context, placement, &inboxes).ok());
        // Only when all are mapped and cleared may anybody write.
        let all = exchange(&[u8::from(mapped.is_some())])?;
        let Some(((inbox, chunks), (inboxes, others))) =
            made.zip(mapped).filter(|_| all.iter().all(|mapped| *mapped == [1]))
        else {
            return Ok(None);
        };
        let [rank, size, blocks, packets_of_block] =
            [placement.rank, placement.size, BLOCKS, packets].map(|n| n as u32);
        let ranks = Ranks { inbox: inboxes, chunks: chunks.ptr, rank, size, blocks, packets: packets_of_block };
        Ok(Some(Self { ranks, _inbox: inbox, _chunks: chunks, _others: others }))
    }

    /// Whether numbers of a type travel as `wire`.
    pub(crate) fn sums(dtype: DType, wire: DType) -> bool {
        TYPES.contains(&Types { numbers: dtype, wire })
    }

    /// `x = sum over ranks of x`, each rounded to `wire`, as is the sum, which has the same bits in one shot and in
    /// two: see [`Peers::sums`].
    pub(crate) fn sum(&self, device: &mut Device, x: View, wire: DType, shots: Shots) {
        let (ranks, count) = (self.ranks, x.elements());
        let special = sum(Types { numbers: x.dtype, wire }, shots);
        // Loaded when the ranks met.
        device.launch_special(special, shape(count, wire), args![ranks, x.ptr, count as u64]);
    }

    /// The same of the rows of `delta` in two shots, and `residual += delta; out = norm(residual)`, in one launch;
    /// false, and nothing done, where no kernel does that.
    pub(crate) fn sum_add_norm(&self, device: &mut Device, norm: AddNorm, wire: DType) -> bool {
        let AddNorm { residual, delta, params, out } = norm;
        if out.dtype != wire || !Self::sums(delta.dtype, wire) || !self.has_room_for_rows(delta.width, wire) {
            return false;
        }
        let shape = Shape { grid: [delta.rows.min(BLOCKS), 1], block: THREADS, shared: 0 };
        let (ranks, count) = (self.ranks, delta.elements() as u64);
        device.launch_special(
            sum_add_norm(Types { numbers: delta.dtype, wire }),
            shape,
            args![ranks, delta.ptr, count, residual.ptr, params, out.ptr, delta.width as u32],
        )
    }

    /// Whether rows are whole packets, and a chunk has a row at least.
    fn has_room_for_rows(&self, width: usize, wire: DType) -> bool {
        let (numbers, room) = (PACKET / wire.size(), self.ranks.size * self.ranks.packets);
        width.is_multiple_of(numbers) && width / numbers <= room as usize
    }

    /// `out[row] = [x[row] of rank 0 | ...]`, in f32.
    pub(crate) fn gather(&self, device: &mut Device, x: View, out: View) {
        let name = Name::in_file("ranks", "ranks_gather", &[]);
        let (ranks, [rows, width, out_width]) = (self.ranks, [x.rows, x.width, out.width].map(|number| number as u32));
        device.launch_early(
            name,
            shape(x.elements(), DType::F32),
            args![ranks, x.ptr, out.ptr, rows, width, out_width],
        );
    }
}

/// The same on all ranks: blocks of one number talk to each other. Each has a packet at least.
fn shape(count: usize, wire: DType) -> Shape {
    let packets = count.div_ceil(PACKET / wire.size());
    Shape { grid: [packets.div_ceil(THREADS).clamp(1, BLOCKS), 1], block: THREADS, shared: 0 }
}

/// An inbox for all ranks and the counters, cleared. `None` where this cannot work.
fn make(device: &mut Device, placement: RankPlacement, packets: usize) -> Option<(Memory, Memory)> {
    /// CUDA shares memory in such pieces.
    const PIECE: usize = 2 << 20;
    if placement.size > MOST_RANKS {
        return None;
    }
    let bytes = POSTS * SLOTS * (placement.size - 1) * BLOCKS * packets * PACKET;
    let inbox = device.allocate(bytes.next_multiple_of(PIECE), "an inbox for other ranks")?;
    let chunks = device.allocate(BLOCKS * size_of::<u32>(), "counters of chunks")?;
    device.clear(&inbox);
    device.clear(&chunks);
    device.synchronize();
    device.fault().is_none().then_some((inbox, chunks))
}

/// Where the inboxes of all ranks are for this device.
fn map(
    context: &Arc<Context>,
    placement: RankPlacement,
    inboxes: &[Address],
) -> Result<([CUdeviceptr; MOST_RANKS], Vec<Mapped>), String> {
    let (mut places, mut others) = ([0; MOST_RANKS], Vec::new());
    for (rank, inbox) in inboxes.iter().enumerate() {
        places[rank] = inbox.ptr;
        if rank != placement.rank {
            let mapped = if inbox.process == process() { inbox.reach(context) } else { inbox.open(context) }?;
            places[rank] = mapped.ptr;
            others.push(mapped);
        }
    }
    Ok((places, others))
}

impl Address {
    fn of(device: &Device, memory: &Memory) -> Result<Self, String> {
        let mut handle = MaybeUninit::<sys::CUipcMemHandle>::zeroed();
        // SAFETY: the memory is an allocation of its own; the pointer is to room for a handle, which any bytes are.
        let handle = unsafe {
            sys::cuIpcGetMemHandle(handle.as_mut_ptr(), memory.ptr)
                .result()
                .map_err(crate::runtime::context::explain)?;
            handle.assume_init()
        };
        let handle = handle.reserved.map(|byte| byte.cast_unsigned());
        Ok(Self { process: process(), device: device.context.ordinal(), ptr: memory.ptr, handle })
    }

    /// As it is told; absent: this rank cannot.
    fn told(inbox: Option<&Self>) -> [u8; TOLD_BYTES] {
        let mut told = [0; TOLD_BYTES];
        if let Some(Self { process, device, ptr, handle }) = inbox {
            let parts: [&[u8]; 5] =
                [&[1], &process.to_le_bytes(), &device.to_le_bytes(), &ptr.to_le_bytes(), handle.as_slice()];
            told.copy_from_slice(&parts.concat());
        }
        told
    }

    fn heard(told: &[u8]) -> Option<Self> {
        let (&yes, rest) = told.split_first()?;
        let (process, rest) = rest.split_first_chunk()?;
        let (device, rest) = rest.split_first_chunk()?;
        let (ptr, rest) = rest.split_first_chunk()?;
        let handle = *rest.first_chunk()?;
        let [process, ptr] = [process, ptr].map(|bytes| u64::from_le_bytes(*bytes));
        (yes == 1).then(|| Self { process, device: u32::from_le_bytes(*device), ptr, handle })
    }

    /// Memory of another process.
    fn open(&self, context: &Arc<Context>) -> Result<Mapped, String> {
        let handle = sys::CUipcMemHandle { reserved: self.handle.map(u8::cast_signed) };
        let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut ptr = 0;
        // SAFETY: the handle is of a living rank's memory; the pointer is to room for an address.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut ptr, handle, flags) }
            .result()
            .map_err(crate::runtime::context::explain)?;
        Ok(Mapped { context: context.clone(), ptr, foreign: true })
    }

    /// Memory of this process on another of its devices.
    fn reach(&self, context: &Arc<Context>) -> Result<Mapped, String> {
        context.reach(self.device)?;
        Ok(Mapped { context: context.clone(), ptr: self.ptr, foreign: false })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.foreign && self.context.bind().is_ok() {
            // SAFETY: opened by `Address::open`, and not used again.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.ptr) };
        }
    }
}

/// A number that tells this process from all others, whatever namespace they count their ids in.
fn process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    // The hasher's keys are random.
    *NUMBER.get_or_init(|| RandomState::new().build_hasher().finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inbox_is_heard_as_it_was_told() {
        let inbox = Address { process: 7, device: 1, ptr: 0xdead_beef_0000, handle: std::array::from_fn(|i| i as u8) };
        let heard = Address::heard(&Address::told(Some(&inbox))).expect("told");
        assert_eq!((heard.process, heard.device, heard.ptr, heard.handle), (7, 1, inbox.ptr, inbox.handle));
        assert!(Address::heard(&Address::told(None)).is_none() && Address::heard(&[1, 2]).is_none());
        assert_eq!(process(), process());
    }

    #[test]
    fn every_block_has_a_packet() {
        let around = |number: usize| [number - 1, number, number + 1];
        for wire in [DType::F32, DType::Bf16] {
            let numbers = PACKET / wire.size();
            let full = [1, 2, 7, BLOCKS - 1, BLOCKS].map(|blocks| around(blocks * THREADS * numbers));
            for count in full.into_iter().flatten().chain([1, 2, 10_000_019]) {
                let (blocks, packets) = (shape(count, wire).grid[0], count.div_ceil(numbers));
                assert!((blocks - 1) * packets.div_ceil(blocks) < packets, "{count} numbers for {blocks} blocks");
            }
        }
    }
}
