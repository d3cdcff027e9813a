//! The waiting queue and the order that both policies give.

use crate::config::Policy;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A sequence's place in every order: smaller runs first, the largest is preempted first.
///
/// Sequence numbers grow with arrival, so a preempted sequence, which keeps its key, comes back in front of all of its
/// class that never ran.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct QueueKey {
    class: i32,
    sequence: u64,
}

impl QueueKey {
    pub fn new(policy: Policy, priority: i32, sequence: u64) -> Self {
        let class = match policy {
            Policy::Fcfs => 0,
            Policy::Priority => priority,
        };
        Self { class, sequence }
    }
}

/// Sequences that wait for a slot and blocks, as indices into the sequence table.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    by_key: BTreeMap<QueueKey, u32>,
}

impl Queue {
    pub fn push(&mut self, key: QueueKey, index: u32) {
        self.by_key.insert(key, index);
    }

    /// The first that comes after `key`; absent: the first of all.
    pub fn first_after(&self, key: Option<QueueKey>) -> Option<(QueueKey, u32)> {
        let beyond = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_key.range((beyond, Bound::Unbounded)).next().map(|(key, index)| (*key, *index))
    }

    pub fn remove(&mut self, key: QueueKey) -> bool {
        self.by_key.remove(&key).is_some()
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(policy: Policy, arrivals: &[i32], expected: &[u32]) {
        let mut queue = Queue::default();
        for (number, priority) in arrivals.iter().enumerate() {
            queue.push(QueueKey::new(policy, *priority, number as u64), number as u32);
        }
        let mut order = Vec::new();
        while let Some((_, index)) = queue.first_after(None) {
            queue.remove(QueueKey::new(policy, arrivals[index as usize], u64::from(index)));
            order.push(index);
        }
        assert_eq!(order, expected);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn order_of_both_policies() {
        check(Policy::Fcfs, &[5, -1, 3], &[0, 1, 2]);
        check(Policy::Priority, &[5, -1, 3, -1], &[1, 3, 2, 0]);
    }

    #[test]
    fn a_preempted_sequence_comes_back_to_the_front_of_its_class() {
        let mut queue = Queue::default();
        let key = |priority, number| QueueKey::new(Policy::Priority, priority, number);
        queue.push(key(1, 7), 7);
        queue.push(key(0, 9), 9);
        queue.push(key(1, 3), 3); // ran before 7 arrived
        assert_eq!(queue.first_after(None), Some((key(0, 9), 9)));
        queue.remove(key(0, 9));
        assert_eq!(queue.first_after(None), Some((key(1, 3), 3)));
        assert_eq!(queue.first_after(Some(key(1, 3))), Some((key(1, 7), 7)));
        assert_eq!(queue.first_after(Some(key(1, 7))), None);
    }
}
