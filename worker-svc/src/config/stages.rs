//! Flags of pipeline stages, and of workers on several machines.

use std::str::FromStr;

use anyhow::bail;
use kernels::ops::RankPlacement;
use models::{Placement, Stage};
use service_kit::{Address, values::count};

use super::Args;

/// A worker's place on its machine, and between other stages.
#[derive(clap::Args, Clone, Debug)]
pub struct StageArgs {
    /// This worker's number on its machine, which is its GPU's too [default: --rank]
    #[arg(long, value_name = "N")]
    pub local_rank: Option<u32>,

    /// Workers on this machine, which share its cores and memory [default: all of the group]
    #[arg(long, value_name = "N", value_parser = count(1..=4096_u32))]
    pub local_world_size: Option<u32>,

    /// Where the pipeline stage before this one sends its rows; all stages but the first need it
    #[arg(long, value_name = "ADDRESS")]
    pub listen_stage: Option<Address>,

    /// Numbers of layers of the pipeline stages (10,12,10) [default: even, by bytes]
    #[arg(long, value_name = "N,N,…")]
    pub pipeline_layer_partition: Option<LayerPartition>,
}

/// Layers of each stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPartition(Vec<usize>);

impl FromStr for LayerPartition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |word: &str| word.trim().parse().ok().filter(|count| (1..=1 << 16).contains(count));
        let counts: Option<Vec<usize>> = text.split(',').map(count).collect();
        counts.map(Self).ok_or_else(|| "expected numbers of layers, at least 1 each, separated by commas".to_owned())
    }
}

impl StageArgs {
    /// The partition for display, to be compared between ranks.
    pub(crate) fn partition_text(&self) -> String {
        self.pipeline_layer_partition.as_ref().map_or("even".to_owned(), |partition| format!("{:?}", partition.0))
    }
}

/// A worker's place among the ranks of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub rank: u32,
    /// Ranks of a stage.
    pub ranks: u32,
    pub stages: u32,
}

impl Place {
    pub(crate) fn stage(self) -> u32 {
        self.rank / self.ranks
    }

    /// Its rank within the stage.
    pub(crate) fn in_stage(self) -> u32 {
        self.rank % self.ranks
    }

    /// Whether it samples.
    pub(crate) fn is_last(self) -> bool {
        self.stage() + 1 >= self.stages
    }

    /// The rank that gives it rows; absent in the first stage.
    pub(crate) fn before(self) -> Option<u32> {
        self.rank.checked_sub(self.ranks)
    }

    /// The rank that it gives rows to; absent in the last stage.
    pub(crate) fn after(self) -> Option<u32> {
        (!self.is_last()).then_some(self.rank + self.ranks)
    }
}

impl Args {
    /// This worker's number on its machine.
    pub(crate) fn local_rank(&self) -> u32 {
        self.stages.local_rank.unwrap_or(self.rank)
    }

    /// Workers on this machine.
    pub(crate) fn local_world_size(&self) -> u32 {
        self.stages.local_world_size.unwrap_or_else(|| self.group.world_size())
    }

    /// Where it is in its group.
    pub(crate) fn place(&self) -> Place {
        Place { rank: self.rank, ranks: self.group.tensor_parallel_size, stages: self.group.pipeline_parallel_size }
    }

    /// Its part of the model. [`Args::check_stages`] has looked at the flags.
    pub(super) fn placement(&self) -> Placement {
        let (place, count) = (self.place(), self.group.pipeline_parallel_size as usize);
        let index = place.stage() as usize;
        let layers = self.stages.pipeline_layer_partition.as_ref().filter(|_| count > 1).and_then(|partition| {
            let first = partition.0.iter().take(index).sum();
            Some(first..first + partition.0.get(index)?)
        });
        let tp = RankPlacement { rank: place.in_stage() as usize, size: place.ranks as usize };
        Placement { tp, stage: Stage { index, count, layers } }
    }

    /// Refuses what cannot be done in stages.
    pub(crate) fn check_stages(&self) -> anyhow::Result<()> {
        let (stages, world_size) = (self.group.pipeline_parallel_size, self.group.world_size());
        if self.rank >= world_size {
            bail!(
                "--rank {}: a group of --tensor-parallel-size {} and --pipeline-parallel-size {stages} has ranks 0 to \
                 {}",
                self.rank,
                self.group.tensor_parallel_size,
                world_size - 1
            );
        }
        if let Some(partition) = &self.stages.pipeline_layer_partition
            && partition.0.len() != stages as usize
        {
            bail!(
                "--pipeline-layer-partition (VLLM_PP_LAYER_PARTITION) has layers of {} stages; \
                 --pipeline-parallel-size is {stages}",
                partition.0.len()
            );
        }
        if stages == 1 {
            return Ok(());
        }
        if self.place().stage() > 0 && self.stages.listen_stage.is_none() {
            bail!("--listen-stage: stage {} needs an address for the rows of the stage before", self.place().stage());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use service_kit::parse_flags;

    use super::*;

    fn args(flags: &str) -> Args {
        let required = ["worker", "--model", "m", "--scheduler", "ring:/x"];
        parse_flags(required.into_iter().chain(flags.split_whitespace())).expect("flags")
    }

    #[test]
    fn ranks_of_a_stage_are_neighbours() {
        let place = |rank| Place { rank, ranks: 2, stages: 3 };
        assert_eq!((place(0).before(), place(0).after(), place(0).stage()), (None, Some(2), 0));
        assert_eq!((place(3).before(), place(3).after(), place(3).in_stage()), (Some(1), Some(5), 1));
        assert_eq!((place(4).before(), place(4).after(), place(4).is_last()), (Some(2), None, true));
    }

    #[test]
    fn a_partition_says_which_layers() {
        let flags = "--pipeline-parallel-size 3 --pipeline-layer-partition 2,5,1 --listen-stage ring:/s --rank";
        let layers = |rank| args(&format!("{flags} {rank}")).placement().stage.layers;
        assert_eq!([layers(0), layers(1), layers(2)], [Some(0..2), Some(2..7), Some(7..8)]);
        assert_eq!(args("--pipeline-parallel-size 3").placement().stage.layers, None);
        for wrong in ["", "2,", "0,3", "2;3", "-1"] {
            assert!(wrong.parse::<LayerPartition>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_stages_cannot_do_is_refused_by_name() {
        let refused = |flags: &str| args(flags).check_stages().unwrap_err().to_string();
        assert!(refused("--rank 2 --tensor-parallel-size 2").contains("--rank 2"));
        assert!(refused("--pipeline-layer-partition 1,1").contains("--pipeline-parallel-size is 1"));
        assert!(refused("--pipeline-parallel-size 2 --rank 1").contains("--listen-stage"));
        assert!(args("--pipeline-parallel-size 2 --rank 1 --listen-stage ring:/s").check_stages().is_ok());
    }
}
