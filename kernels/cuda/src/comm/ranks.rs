//! The other ranks of a group, as this device meets them: they write to each other's memory ([`Peers`]), small sums in
//! one shot and larger ones in two. NCCL is for ranks that cannot reach each other's memory, or where it is asked for.
//!
//! Ranks add in rank order, so a row's sum does not depend on the batch; NCCL's order depends on the message's size.
//!
//! Neighbouring stages of a pipeline have a communicator of two for each pair of ranks: rank 0 sends, rank 1 receives.

use crate::comm::nccl::{Communicator, ID_BYTES, Nccl};
use crate::comm::peers::{Peers, Shots};
use crate::fusion::op::AddNorm;
use crate::runtime::activations::{Elements, View};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{CommError, DType, Exchange, RankPlacement, StageLink};
use std::ffi::c_int;

/// Memory for gathering large parts, bytes; larger ones come in several pieces.
const STAGING: usize = 32 << 20;

/// How ranks add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AllReduce {
    /// In one shot or in two, by the size of the sum.
    #[default]
    Auto,
    /// Each rank sends all its numbers to all others.
    OneShot,
    /// Each sends every other rank its part, and then the sum of its own part.
    TwoShots,
    /// Through NCCL, as gatherings then go, too.
    Nccl,
}

impl AllReduce {
    /// How often numbers of a sum cross; `None`: through NCCL. By the sizes of message and group alone, so that every
    /// rank takes the same way.
    fn shots(self, bytes: usize, ranks: usize) -> Option<Shots> {
        match self {
            Self::Auto if bytes <= most_in_one_shot(ranks) => Some(Shots::One),
            Self::Auto | Self::TwoShots => Some(Shots::Two),
            Self::OneShot => Some(Shots::One),
            Self::Nccl => None,
        }
    }
}

/// Bytes up to which one shot is the faster way: on H200 between two and between four ranks (docs/benchmarks.md), with
/// more as the numbers that are sent grow.
fn most_in_one_shot(ranks: usize) -> usize {
    match ranks {
        0..=2 => 16 << 20,
        3..=4 => 256 << 10,
        _ => 128 << 10,
    }
}

/// Bytes of a sum from which on its rows are added and normed in its launch, where it takes two shots: below, a norm by
/// itself is hidden as well behind what comes before and after it (docs/several-gpus.md).
const LEAST_OF_ROWS: usize = 4 << 20;

/// Bytes of a chunk for all peers of a rank. Between two H200, 128 MiB of bf16 take 402 us in two shots, with 16 MiB
/// 452; and a step of 256 rows of 8,192 is one chunk in one shot.
const CHUNK: usize = 4 << 20;

/// What a device needs to meet others, and then those others.
pub(crate) struct Ranks {
    nccl: Nccl,
    way: AllReduce,
    met: Option<Met>,
    /// From the stage before, and to the stage after.
    before: Option<Communicator>,
    after: Option<Communicator>,
}

/// Ranks of a link between stages.
const SENDER: usize = 0;
const RECEIVER: usize = 1;

struct Met {
    placement: RankPlacement,
    communicator: Communicator,
    /// Whose memory this rank reaches, and they this one's.
    peers: Option<Peers>,
    /// `[ranks, rows, width]` of a piece of a gathering.
    staging: Option<Memory>,
}

impl Ranks {
    pub(crate) fn new(nccl: Nccl, way: AllReduce) -> Self {
        Self { nccl, way, met: None, before: None, after: None }
    }

    /// Initialises the communicator: see [`kernels::ops::Comm::init_comm`].
    pub(crate) fn init(
        &mut self,
        device: &mut Device,
        placement: RankPlacement,
        exchange: Exchange<'_>,
    ) -> Result<(), CommError> {
        if self.met.is_some() {
            return Err(CommError::InitialisedBefore);
        }
        let version = self.nccl.version.to_le_bytes();
        if exchange(&version)?.iter().any(|other| *other != version) {
            return Err(CommError::DifferentVersions("NCCL"));
        }
        let id = if placement.rank == 0 { self.nccl.unique_id().map_err(CommError::Library)? } else { [0; ID_BYTES] };
        let ids = exchange(&id)?;
        let id = ids[0].as_slice().try_into().map_err(|_| CommError::Protocol("rank 0 gave no id of a group"))?;
        let communicator = self.nccl.meet(id, placement).map_err(CommError::Library)?;
        let peers = match self.way {
            AllReduce::Nccl => None,
            _ => Peers::meet(device, placement, CHUNK / (placement.size - 1).max(1), exchange)?,
        };
        self.met = Some(Met { placement, communicator, peers, staging: None });
        device.fault().map_or(Ok(()), |fault| Err(CommError::Device(fault.to_owned())))
    }

    /// Initialises a link between stages: see [`kernels::ops::Comm::init_stage_link`]. The sender's first word is
    /// NCCL's version and the link's id.
    pub(crate) fn init_stage_link(&mut self, link: StageLink<'_>) -> Result<(), CommError> {
        let mut word = [0; size_of::<c_int>() + ID_BYTES];
        let (version, id) = word.split_at_mut(size_of::<c_int>());
        let (end, rank) = match link {
            StageLink::After(give) => {
                version.copy_from_slice(&self.nccl.version.to_le_bytes());
                id.copy_from_slice(&self.nccl.unique_id().map_err(CommError::Library)?);
                give(&word)?;
                (&mut self.after, SENDER)
            }
            StageLink::Before(wait_for) => {
                wait_for(&mut word)?;
                (&mut self.before, RECEIVER)
            }
        };
        if end.is_some() {
            return Err(CommError::InitialisedBefore);
        }
        let (version, id) = word.split_at(size_of::<c_int>());
        if version != self.nccl.version.to_le_bytes() {
            return Err(CommError::DifferentVersions("NCCL"));
        }
        let id = id.try_into().expect("the rest of the word");
        *end = Some(self.nccl.meet(id, RankPlacement { rank, size: 2 }).map_err(CommError::Library)?);
        Ok(())
    }

    /// Whether these ranks have met.
    pub(crate) fn have_met(&self) -> bool {
        self.met.is_some()
    }

    pub(crate) fn send(&self, device: &mut Device, rows: Elements, count: usize) {
        let after = self.after.as_ref().expect("a stage after this one");
        device.run(|stream| after.send(rows, count, RECEIVER, stream));
    }

    pub(crate) fn receive(&self, device: &mut Device, rows: Elements, count: usize) {
        let before = self.before.as_ref().expect("a stage before this one");
        device.run(|stream| before.receive(rows, count, SENDER, stream));
    }

    /// `wire`: what a rank's part may be rounded to on its way.
    pub(crate) fn sum(&mut self, device: &mut Device, x: View, wire: DType) {
        let way = self.way;
        let met = self.met();
        if x.elements() == 0 {
            return;
        }
        let shots = way.shots(x.elements() * wire.size(), met.placement.size);
        match met.peers.as_ref().zip(shots) {
            Some((peers, shots)) if Peers::sums(x.dtype, wire) => peers.sum(device, x, wire, shots),
            _ => device.run(|stream| met.communicator.sum(x.ptr, x.elements(), x.dtype, stream)),
        }
    }

    /// `residual += delta; out = norm(residual)`, `delta` being summed over ranks first, as [`Self::sum`] does; false,
    /// and nothing done, where that is not one launch.
    pub(crate) fn sum_add_norm(&mut self, device: &mut Device, norm: AddNorm, wire: DType) -> bool {
        let way = self.way;
        let met = self.met();
        let bytes = norm.delta.elements() * wire.size();
        let is_large = way == AllReduce::TwoShots || bytes >= LEAST_OF_ROWS;
        let peers = met.peers.as_ref().filter(|_| bytes > 0 && is_large);
        way.shots(bytes, met.placement.size) == Some(Shots::Two)
            && peers.is_some_and(|peers| peers.sum_add_norm(device, norm, wire))
    }

    pub(crate) fn gather(&mut self, device: &mut Device, x: View, out: View) {
        assert_eq!((x.dtype, out.dtype), (DType::F32, DType::F32), "element types of what is gathered");
        match &self.met().peers {
            Some(peers) if x.elements() > 0 => peers.gather(device, x, out),
            _ => self.gather_in_pieces(device, x, out),
        }
    }

    /// All parts come to one placement, some rows at a time, and from there to their columns.
    fn gather_in_pieces(&mut self, device: &mut Device, x: View, out: View) {
        let Met { placement, communicator, staging, .. } = self.met();
        let row = x.width * size_of::<f32>();
        let rows = (STAGING / (placement.size * row)).max(1);
        let bytes = placement.size * rows * row;
        let staging = device.reserve(staging, bytes, "logits of all ranks");
        if staging == 0 {
            return;
        }
        for first in (0..x.rows).step_by(rows) {
            let rows = rows.min(x.rows - first);
            let from = x.ptr + (first * row) as u64;
            let to = out.ptr + (first * out.width * size_of::<f32>()) as u64;
            device.run(|stream| communicator.gather(from, staging, rows * x.width, stream));
            let shape = Shape::elements(placement.size * rows * x.width);
            let [size, rows, width, out_width] = [placement.size, rows, x.width, out.width].map(|number| number as u32);
            let name = Name::in_file("ranks", "ranks_place", &[]);
            device.launch(name, shape, args![staging, to, size, rows, width, out_width]);
        }
    }

    fn met(&mut self) -> &mut Met {
        self.met.as_mut().expect("ranks that have joined")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_sums_cross_twice_and_the_more_ranks_the_sooner() {
        let shots = |bytes, ranks| AllReduce::Auto.shots(bytes, ranks);
        for ranks in [2, 3, 4, 8] {
            let most = most_in_one_shot(ranks);
            assert_eq!([most, most + 1].map(|bytes| shots(bytes, ranks)), [Some(Shots::One), Some(Shots::Two)]);
            assert!(most <= most_in_one_shot(ranks - 1));
        }
        assert_eq!(AllReduce::Nccl.shots(1, 4), None);
    }
}
