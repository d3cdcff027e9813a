//! A group of threads of one process, for tests and benchmarks: a channel from every rank to every other.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::{Collective, CollectiveError};

/// A rank of a group of threads. Its end closes its channels, which ends the waits of the others.
pub struct Threads {
    rank: usize,
    /// By rank; this rank's own entry loops back.
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl Threads {
    /// All ranks of a group, in order.
    pub fn group(world_size: usize) -> Vec<Self> {
        let mut ranks: Vec<_> = (0..world_size).map(|rank| Self { rank, to: Vec::new(), from: Vec::new() }).collect();
        for source in 0..world_size {
            for target in 0..world_size {
                let (sender, receiver) = channel();
                ranks[source].to.push(sender);
                ranks[target].from.push(receiver);
            }
        }
        ranks
    }

    /// What each rank gave, in rank order.
    fn publish(&self, mine: &[f32]) -> Result<Vec<Vec<f32>>, CollectiveError> {
        let bytes: Vec<u8> = mine.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let floats = |bytes: Vec<u8>| bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect();
        Ok(self.publish_bytes(&bytes)?.into_iter().map(floats).collect())
    }

    fn publish_bytes(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        for (rank, to) in self.to.iter().enumerate() {
            to.send(mine.to_vec()).map_err(|_| CollectiveError::PeerGone { rank })?;
        }
        let heard = |(rank, from): (usize, &Receiver<_>)| from.recv().map_err(|_| CollectiveError::PeerGone { rank });
        self.from.iter().enumerate().map(heard).collect()
    }
}

impl Collective for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.to.len()
    }

    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        for (rank, part) in self.publish(data)?.into_iter().enumerate() {
            if rank == 0 {
                data.copy_from_slice(&part);
            } else {
                data.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        }
        Ok(())
    }

    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        let world_size = self.world_size();
        if mine.len() * world_size != all.len() {
            return Err(CollectiveError::Sizes { mine: mine.len(), all: all.len(), world_size });
        }
        all.copy_from_slice(&self.publish(mine)?.concat());
        Ok(())
    }

    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.publish_bytes(mine)
    }
}
