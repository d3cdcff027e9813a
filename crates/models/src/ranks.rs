//! What the ranks of a group exchange in a step: between their devices where those have met, else through the host.

use collectives::Collective;
use kernels::ops::{Act, Backend, DType};

use crate::error::ForwardError;

/// The ranks of a step.
pub(crate) struct Ranks<'a> {
    pub group: &'a mut dyn Collective,
    /// Their devices have met ([`Comm::init_comm`]).
    pub joined: bool,
    /// What parts of sums are rounded to between devices: see [`wire`].
    pub wire: DType,
}

/// What a step runs on.
pub(crate) struct Run<'a> {
    pub backend: &'a mut dyn Backend,
    pub ranks: Ranks<'a>,
}

impl Run<'_> {
    /// Adds up a buffer over the ranks of the group.
    pub(crate) fn all_reduce(&mut self, act: Act) -> Result<(), ForwardError> {
        self.ranks.sum(self.backend, act)
    }
}

/// What parts of sums are rounded to on their way, where this is computed in. A part is rounded when it is computed, in
/// most engines, so that rounding it here is as close to the model; half as many bytes travel. Sums of f16 stay in f32:
/// a part may be larger than any f16.
pub(crate) fn wire(compute: DType) -> DType {
    match compute {
        DType::Bf16 => DType::Bf16,
        DType::F16 | DType::F32 => DType::F32,
    }
}

impl Ranks<'_> {
    /// Adds up a buffer over the ranks.
    pub(crate) fn sum(&mut self, backend: &mut dyn Backend, act: Act) -> Result<(), ForwardError> {
        match (self.group.world_size(), self.joined) {
            (1, _) => {}
            (_, true) => backend.all_reduce(act, self.wire),
            (_, false) => self.group.all_reduce_sum(backend.host_mut(act))?,
        }
        Ok(())
    }

    /// The same ranks for a part of the step.
    pub(crate) fn reborrow(&mut self) -> Ranks<'_> {
        Ranks { group: &mut *self.group, joined: self.joined, wire: self.wire }
    }
}

/// Rows of logits, put together on the host from the parts of all ranks.
#[derive(Default)]
pub(crate) struct HostLogits {
    /// `[ranks, rows, width]`.
    parts: Vec<f32>,
    /// `[rows, vocab]`.
    whole: Vec<f32>,
    vocab: usize,
}

impl HostLogits {
    /// Room for `rows` rows of `vocab` logits, of which each of `ranks` ranks has `width` (the last ones may be
    /// padding).
    pub(crate) fn new(rows: usize, vocab: usize, ranks: usize, width: usize) -> Self {
        Self { parts: vec![0.0; ranks * rows * width], whole: vec![0.0; rows * vocab], vocab }
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.parts.len() + self.whole.len()) * size_of::<f32>()
    }

    /// The first `rows` rows of what was gathered last.
    pub(crate) fn rows(&self, rows: usize) -> &[f32] {
        &self.whole[..rows * self.vocab]
    }

    /// Puts the ranks' parts of each of `rows` rows side by side, without the padding at the end.
    pub(crate) fn gather(&mut self, mine: &[f32], rows: usize, group: &mut dyn Collective) -> Result<(), ForwardError> {
        let (vocab, width) = (self.vocab, mine.len() / rows);
        let all = &mut self.parts[..group.world_size() * mine.len()];
        group.all_gather(mine, all)?;
        for (rank, part) in all.chunks_exact(mine.len()).enumerate() {
            let columns = rank * width..vocab.min((rank + 1) * width);
            for (row, source) in part.chunks_exact(width).enumerate() {
                let target = &mut self.whole[row * vocab..(row + 1) * vocab];
                if let Some(target) = target.get_mut(columns.clone()) {
                    target.copy_from_slice(&source[..target.len()]);
                }
            }
        }
        Ok(())
    }
}
