//! What metrics are made of: gauges of now, counters since start, one record per ended choice.

use ids::SequenceId;
use proto::RequestKey;

/// The state of the scheduler in numbers. Gauges are of the moment of the call; counters only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Choices with a slot.
    pub running: u32,
    /// Choices that wait for a slot, blocks or budget.
    pub waiting_for_capacity: u32,
    /// Choices that wait for a sibling to compute their prompt.
    pub waiting_deferred: u32,
    /// Requests that never ran; what `max_num_queued_reqs` bounds.
    pub queued_requests: u32,
    /// Their prompt tokens; what `max_num_queued_tokens` bounds.
    pub queued_tokens: u64,
    /// Plans without a result.
    pub steps_in_flight: u32,
    /// KV blocks in all; 0 without a group.
    pub num_blocks: u32,
    /// KV blocks that running choices hold.
    pub used_blocks: u32,
    /// KV blocks that running choices do without because they hold blocks together: holders beyond each one's first.
    pub shared_blocks: u64,
    /// KV blocks without a holder that can be found again.
    pub cached_blocks: u32,
    /// Tokens of the latest plan, prompt and decode.
    pub iteration_tokens: u32,
    /// Counters since start.
    pub totals: Totals,
}

impl Stats {
    /// Share of the KV blocks in use, `0.0 ..= 1.0`.
    pub fn kv_cache_usage(&self) -> f64 {
        f64::from(self.used_blocks) / f64::from(self.num_blocks.max(1))
    }
}

/// Counters; they survive the loss of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Requests admitted.
    pub admitted: u64,
    /// Requests refused.
    pub refused: u64,
    /// Plans made.
    pub steps: u64,
    /// Tokens planned, recomputed ones included.
    pub scheduled_tokens: u64,
    /// Prompt tokens of choices at their first start, when they looked into the prefix cache.
    pub prefix_cache_queries: u64,
    /// How many of those were found.
    pub prefix_cache_hits: u64,
    /// Times a running choice gave its blocks up.
    pub preemptions: u64,
    /// Prompt tokens of started requests.
    pub prompt_tokens: u64,
    /// Tokens sampled and reported.
    pub generation_tokens: u64,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u64,
    /// How many of them were right.
    pub accepted_tokens: u64,
    /// Tokens that a grammar forced, and that were not sampled one by one.
    pub forced_tokens: u64,
    /// Choices ended.
    pub ended: EndCounts,
}

/// Choices by their end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EndCounts {
    /// End of text, stop token, stop string.
    pub stop: u64,
    /// `max_tokens` or end of the context.
    pub length: u64,
    /// Aborted.
    pub abort: u64,
    /// The text repeated itself.
    pub repetition: u64,
    /// Failed with the group or by the service.
    pub failed: u64,
}

impl EndCounts {
    pub(crate) fn count(&mut self, end: End) {
        match end {
            End::Stop => self.stop += 1,
            End::Length => self.length += 1,
            End::Abort => self.abort += 1,
            End::Repetition => self.repetition += 1,
            End::Failed => self.failed += 1,
        }
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.stop + self.length + self.abort + self.repetition + self.failed
    }
}

/// How a choice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// End of text, stop token, stop string.
    Stop,
    /// `max_tokens` or end of the context.
    Length,
    /// Aborted.
    Abort,
    /// The text repeated itself.
    Repetition,
    /// Failed with the group or by the service.
    Failed,
}

/// A choice that ended, for histograms. Durations in microseconds of the caller's clock; 0 for what was never reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FinishedChoice {
    /// Its request.
    pub key: RequestKey,
    /// Its handle.
    pub sequence: SequenceId,
    /// Which of the request's choices.
    pub choice: u32,
    /// How it ended.
    pub end: End,
    /// Whether its request ended with it: no other choice was left.
    pub is_last: bool,
    /// From admission to its first plan.
    pub queue_us: u64,
    /// From its first plan to its first token.
    pub prefill_us: u64,
    /// From its first to its last token.
    pub decode_us: u64,
    /// From its first plan to its last token.
    pub inference_us: u64,
    /// Times it was preempted.
    pub preemptions: u32,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Tokens it generated.
    pub generated_tokens: u32,
}
