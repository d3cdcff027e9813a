//! The warning that requests lost their KV cache to others: once when it begins, then at most every ten seconds.

use std::time::{Duration, Instant};

use tracing::warn;

const EVERY: Duration = Duration::from_secs(10);

/// How many preemptions were told of, and when.
#[derive(Default)]
pub(crate) struct PreemptionWarning {
    told: u64,
    last: Option<Instant>,
}

impl PreemptionWarning {
    /// Warns if there are more than were told of, and the last warning is long ago. `total`: all since the start.
    pub(crate) fn look(&mut self, total: u64, now: Instant) {
        if let Some(new) = self.due(total, now) {
            warn!(
                new,
                total,
                "preempted for lack of KV cache: requests are computed anew, which costs time; raise \
                 gpu_memory_utilization or tensor_parallel_size for more KV cache, or lower max_num_seqs"
            );
        }
    }

    fn due(&mut self, total: u64, now: Instant) -> Option<u64> {
        if total <= self.told || self.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        self.last = Some(now);
        Some(total - std::mem::replace(&mut self.told, total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_at_once_and_then_now_and_again() {
        let (mut warning, start) = (PreemptionWarning::default(), Instant::now());
        let mut due = |total, seconds| warning.due(total, start + Duration::from_secs(seconds));
        assert_eq!(due(0, 0), None);
        assert_eq!(due(1, 1), Some(1));
        assert_eq!(due(4, 5), None);
        assert_eq!(due(5, 12), Some(4));
        assert_eq!(due(5, 40), None, "nothing new");
        assert_eq!(due(6, 41), Some(1));
    }
}
