//! How the engine ends in order: nothing new comes, what it has ends, and everybody has heard of it.
//!
//! ```text
//!  told to end   requests of tokenizers that have not read that it drains are still taken
//!  empty         the detokenizer takes in the last tokens; tokenizers read the last report, of what ended
//!  drained       nothing is lost with the process
//!  over          the workers finish the steps that they were sent, whose tokens are dropped
//! ```

use std::time::Duration;

use sched_core::Scheduler;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};
use tracing::info;

use super::Engine;
use crate::wire::Event;

/// How long the workers' last steps are waited for: shorter than a supervisor waits for this process to end.
const LAST_STEPS: Duration = Duration::from_secs(2);

impl Engine {
    /// What runs may finish until the deadline.
    pub(super) fn begin_to_drain(&mut self) {
        self.process.status.draining();
        let timeout = Duration::from_secs_f64(self.args.shutdown_timeout);
        self.drain_until = Some(Instant::now() + timeout);
        info!(requests = self.unfinished(), timeout_s = timeout.as_secs_f64(), "draining");
    }

    /// Whether nothing is left, nothing comes from those who have not heard yet, and all have heard of what ended. A
    /// tokenizer that has not would take it for lost, and say so, at times before the last tokens are with the gateway.
    pub(super) fn has_drained(&self) -> bool {
        let empty = self.core.as_ref().is_none_or(|core| !core.has_unfinished());
        empty
            && self.adapters.num_waiting().requests == 0
            && self.detokenizer.has_heard_all()
            && self.watchers.all_have_seen_the_last()
    }

    /// Lets the workers finish what they were sent: one whose scheduler leaves while it computes takes it for lost.
    pub(super) async fn finish_steps(&mut self, events: &mut mpsc::Receiver<Event>) -> anyhow::Result<()> {
        let finishing = async {
            while !self.group.has_finished() {
                match events.recv().await {
                    Some(event @ (Event::Worker { .. } | Event::WorkerLost { .. })) => self.apply(event)?,
                    // Requests that come now are dropped with their connections.
                    Some(_) => {}
                    None => break,
                }
            }
            Ok(())
        };
        timeout(LAST_STEPS, finishing).await.unwrap_or_else(|_| {
            info!("the workers' last steps take longer than {LAST_STEPS:?}");
            Ok(())
        })
    }

    /// Answers the control plane's `Drain`.
    pub(super) fn tell_who_awaits_the_drain(&mut self) {
        if !self.awaiting_empty.is_empty() && self.has_drained() {
            for done in self.awaiting_empty.drain(..) {
                // Who asked may be gone.
                let _ = done.send(());
            }
        }
    }

    /// Requests that have no end yet, those among them that wait for their adapters.
    pub(super) fn unfinished(&self) -> u32 {
        let stats = self.core.as_ref().map(Scheduler::stats).unwrap_or_default();
        let waiting = self.adapters.num_waiting().requests as u32;
        stats.running + stats.waiting_for_capacity + stats.waiting_deferred + waiting
    }
}
