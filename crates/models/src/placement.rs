//! [`Placement`]: which part of a model a process holds.

use std::ops::Range;

use kernels::ops::RankPlacement;

use crate::error::LoadError;

/// A process's part of a model: a slice of every layer of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Its rank in the tensor-parallel group that shares the stage's layers.
    pub tp: RankPlacement,
    /// Its stage in the pipeline.
    pub stage: Stage,
}

impl Placement {
    /// The whole model.
    pub const WHOLE: Self = Self::rank(0, 1);

    /// A rank of a tensor-parallel group that holds all layers.
    pub const fn rank(rank: usize, size: usize) -> Self {
        Self { tp: RankPlacement { rank, size }, stage: Stage::WHOLE }
    }
}

/// A stage of a pipeline: consecutive layers. The first one embeds tokens, the last one has the head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Which one.
    pub index: usize,
    /// Stages of the pipeline.
    pub count: usize,
    /// Its layers; absent: an even share.
    pub layers: Option<Range<usize>>,
}

impl Stage {
    /// All layers.
    pub const WHOLE: Self = Self { index: 0, count: 1, layers: None };

    /// The layers of this stage among `total`.
    pub(crate) fn layers_of(&self, total: usize) -> Result<Range<usize>, LoadError> {
        let Self { index, count, ref layers } = *self;
        let refused = |what, value, reason| Err(LoadError::Option { what, value, reason });
        if index >= count {
            return refused("pipeline stage", index, "it must be below the number of stages");
        }
        let even = || total * index / count..total * (index + 1) / count;
        let layers = layers.clone().unwrap_or_else(even);
        let is_end = (layers.start == 0, layers.end == total);
        if layers.end > total || is_end != (index == 0, index + 1 == count) {
            return refused(
                "last layer of the stage",
                layers.end,
                "the stages of a pipeline must cover all layers once",
            );
        }
        // A model without layers is one stage.
        if layers.is_empty() && total > 0 {
            return refused("pipeline stages", count, "each must have a layer");
        }
        Ok(layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_stages_cover_all_layers_once() {
        for (total, count) in [(1, 1), (32, 4), (7, 3), (62, 5)] {
            let stages = (0..count).map(|index| Stage { index, count, layers: None }.layers_of(total).unwrap());
            let covered: Vec<usize> = stages.flatten().collect();
            assert_eq!(covered, (0..total).collect::<Vec<_>>(), "{total} over {count}");
        }
    }

    #[test]
    fn impossible_stages_are_refused() {
        let stage = |index, count, layers| Stage { index, count, layers }.layers_of(4);
        assert_eq!(stage(0, 2, Some(0..3)).unwrap(), 0..3);
        assert_eq!(stage(1, 2, Some(3..4)).unwrap(), 3..4);
        for refused in [
            stage(2, 2, None),
            stage(0, 5, None),
            stage(0, 2, Some(0..4)),
            stage(1, 2, Some(3..5)),
            stage(1, 2, Some(0..4)),
            stage(1, 3, Some(2..2)),
        ] {
            assert!(refused.is_err(), "{refused:?}");
        }
    }
}
