//! Warns when running sequences are preempted, with their number and what helps.

use tracing::warn;

/// Preemptions between two warnings, as in vLLM.
const EVERY: u64 = 50;

/// Counts preemptions since the start.
#[derive(Default)]
pub(crate) struct PreemptionWarning {
    /// The total at which the next warning is due.
    due: u64,
    seen: u64,
}

impl PreemptionWarning {
    /// Looks at the total. The first preemption is warned of, then every fiftieth.
    pub(crate) fn look(&mut self, total: u64) {
        if self.is_due(total) {
            warn!(
                preemptions = total,
                "a sequence was preempted for lack of KV blocks and will be computed again, which costs time; raise \
                 --gpu-memory-utilization, --kv-cache-memory-bytes or --tensor-parallel-size, or lower --max-num-seqs"
            );
        }
    }

    fn is_due(&mut self, total: u64) -> bool {
        let more = total > self.seen;
        self.seen = total;
        if !more || total < self.due {
            return false;
        }
        self.due = (total / EVERY + 1) * EVERY;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_every_fiftieth_are_warned_of() {
        let mut warning = PreemptionWarning::default();
        let totals = [0, 1, 1, 2, 49, 50, 51, 120, 120, 149, 150];
        let due: Vec<_> = totals.into_iter().filter(|total| warning.is_due(*total)).collect();
        assert_eq!(due, [1, 50, 120, 150]);
    }
}
