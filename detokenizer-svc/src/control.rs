//! The detokenizer's control plane.

use std::time::Duration;

use service_kit::control::Handler;
use tokio::sync::watch;

/// Handles control calls of the detokenizer.
pub(crate) struct ControlHandler {
    /// Live requests.
    pub(crate) live: watch::Receiver<usize>,
}

#[tonic::async_trait]
impl Handler for ControlHandler {
    async fn drained(&self, deadline: Duration) -> u32 {
        let mut live = self.live.clone();
        let _ = tokio::time::timeout(deadline, live.wait_for(|live| *live == 0)).await;
        u32::try_from(*self.live.borrow()).unwrap_or(u32::MAX)
    }
}
