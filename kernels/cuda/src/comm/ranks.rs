//! The other ranks of a group, as this device meets them: two ranks exchange everything in one shot ([`Peers`]), which
//! sends no number twice; more of them small sums, and larger ones in two shots. NCCL is for ranks that cannot reach each
//! other's memory, or where it is asked for.
//!
//! Two numbers give the same sum in either order. More than two ranks add in rank order; NCCL's order depends on the size
//! of the message, so there a row's last bits may depend on the batch's composition.
//!
//! Neighbouring stages of a pipeline have a communicator of two for each pair of ranks: rank 0 sends, rank 1 receives.

use crate::comm::nccl::{Communicator, ID_BYTES, Nccl};
use crate::comm::peers::{Inbox, Peers, Shots};
use crate::runtime::activations::{Elements, View};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{CommError, DType, Exchange, RankPlacement, StageLink};
use std::ffi::c_int;

/// Memory for gathering large parts, bytes; larger ones come in several pieces.
const STAGING: usize = 32 << 20;

/// How devices of several ranks add up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankOptions {
    /// Bytes of the largest sums that more than two ranks exchange in one shot, shared by a rank's peers. Two ranks
    /// exchange all sums in one shot, unless this is 0.
    pub one_shot_bytes: usize,
    /// Bytes of the largest sums that are exchanged in two shots. Larger ones go through NCCL.
    pub two_shot_bytes: usize,
}

impl RankOptions {
    /// Everything goes through NCCL.
    pub const NCCL_ALONE: Self = Self { one_shot_bytes: 0, two_shot_bytes: 0 };

    /// How often a number crosses at most.
    fn most_shots(self, ranks: usize) -> Shots {
        if ranks == 2 && self.one_shot_bytes > 0 { Shots::One } else { Shots::Two }
    }

    /// The way of a sum of as many bytes, by the sizes of message and group alone, so that every rank takes the same.
    fn way(self, bytes: usize, ranks: usize) -> Way {
        let one_shot = match ranks {
            2 => self.one_shot_bytes > 0,
            _ => bytes <= self.one_shot_bytes / (ranks - 1).max(1),
        };
        match one_shot {
            true => Way::Peers(Shots::One),
            false if bytes <= self.two_shot_bytes => Way::Peers(Shots::Two),
            false => Way::Nccl,
        }
    }
}

impl Default for RankOptions {
    /// Up to where one shot was the faster way (docs/benchmarks.md).
    fn default() -> Self {
        Self { one_shot_bytes: 1 << 20, two_shot_bytes: usize::MAX }
    }
}

/// How a sum is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Peers(Shots),
    Nccl,
}

/// Bytes of a chunk for all peers of a rank: between two H100, 64 MiB take 261 us with 4 MiB, 315 us with
/// 2 MiB and 250 us with 8 MiB; and a step of 256 rows of 8,192 is one chunk.
const CHUNK: usize = 4 << 20;

/// What a device needs to meet others, and then those others.
pub(crate) struct Ranks {
    nccl: Nccl,
    options: RankOptions,
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
    pub(crate) fn new(nccl: Nccl, options: RankOptions) -> Self {
        Self { nccl, options, met: None, before: None, after: None }
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
        let peers = match self.options {
            RankOptions::NCCL_ALONE => None,
            options => {
                let shots = options.most_shots(placement.size);
                Peers::meet(device, placement, Inbox { shots, bytes: CHUNK / (placement.size - 1).max(1) }, exchange)?
            }
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
        let options = self.options;
        let met = self.met();
        if x.elements() == 0 {
            return;
        }
        let way = options.way(x.elements() * wire.size(), met.placement.size);
        match (&met.peers, way) {
            (Some(peers), Way::Peers(shots)) if Peers::sums(x.dtype, wire) => peers.sum(device, x, wire, shots),
            _ => device.run(|stream| met.communicator.sum(x.ptr, x.elements(), x.dtype, stream)),
        }
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
        if staging.as_ref().is_none_or(|memory| memory.bytes < bytes) {
            *staging = None;
            *staging = device.allocate(bytes, "logits of all ranks");
        }
        let Some(staging) = staging.as_ref().map(|memory| memory.ptr) else { return };
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
    fn the_way_of_a_sum_follows_its_size_and_the_groups() {
        let options = RankOptions { one_shot_bytes: 3000, two_shot_bytes: 5000 };
        let ways = |ranks| [1, 1000, 1001, 5000, 5001].map(|bytes| options.way(bytes, ranks));
        let (one, two) = (Way::Peers(Shots::One), Way::Peers(Shots::Two));
        assert_eq!(ways(2), [one; 5]);
        assert_eq!(ways(4), [one, one, two, two, Way::Nccl]);
        let two_alone = RankOptions { one_shot_bytes: 0, ..options };
        assert_eq!([1, 5001].map(|bytes| two_alone.way(bytes, 2)), [two, Way::Nccl]);
        assert!([2, 3, 8].iter().all(|ranks| RankOptions::NCCL_ALONE.way(1, *ranks) == Way::Nccl));
    }
}
