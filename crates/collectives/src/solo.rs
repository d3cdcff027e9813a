//! The group of one: nothing to add, nobody to wait for.

use crate::{Collective, CollectiveError};

/// A world of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub struct Solo;

impl Collective for Solo {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_reduce_sum(&mut self, _data: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }

    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        if mine.len() != all.len() {
            return Err(CollectiveError::Sizes { mine: mine.len(), all: all.len(), world_size: 1 });
        }
        all.copy_from_slice(mine);
        Ok(())
    }

    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        Ok(vec![mine.to_vec()])
    }
}
