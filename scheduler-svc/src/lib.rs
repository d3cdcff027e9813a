//! The central scheduler and KV block manager, around sched-core.
