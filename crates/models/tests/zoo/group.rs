//! A group of ranks within a process: channels from every rank to every other.

use std::sync::mpsc::{Receiver, Sender, channel};

use collectives::{Collective, CollectiveError};

/// One rank; it dies with its thread, which the others see as a closed channel.
pub struct Channels {
    rank: usize,
    /// By rank; this rank's own entry loops back.
    to: Vec<Sender<Vec<f32>>>,
    from: Vec<Receiver<Vec<f32>>>,
}

/// All ranks of a group of `size`.
pub fn group(size: usize) -> Vec<Channels> {
    let mut ranks: Vec<Channels> = (0..size).map(|rank| Channels { rank, to: Vec::new(), from: Vec::new() }).collect();
    for source in 0..size {
        for target in 0..size {
            let (sender, receiver) = channel();
            ranks[source].to.push(sender);
            ranks[target].from.push(receiver);
        }
    }
    ranks
}

impl Channels {
    /// What every rank has, in rank order.
    fn tell(&mut self, mine: &[f32]) -> Result<Vec<Vec<f32>>, CollectiveError> {
        for (rank, to) in self.to.iter().enumerate() {
            to.send(mine.to_vec()).map_err(|_| CollectiveError::PeerGone { rank })?;
        }
        self.from
            .iter()
            .enumerate()
            .map(|(rank, from)| from.recv().map_err(|_| CollectiveError::PeerGone { rank }))
            .collect()
    }
}

impl Collective for Channels {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.to.len()
    }

    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        let all = self.tell(data)?;
        data.fill(0.0);
        for part in all {
            data.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
        }
        Ok(())
    }

    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        let parts = self.tell(mine)?;
        all.copy_from_slice(&parts.concat());
        Ok(())
    }

    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let numbers: Vec<f32> = mine.iter().map(|byte| f32::from(*byte)).collect();
        let all = self.tell(&numbers)?;
        Ok(all.into_iter().map(|part| part.into_iter().map(|number| number as u8).collect()).collect())
    }
}
