//! What the process answers on its control plane.

use std::time::Duration;

use service_kit::control::Handler;
use tokio::sync::watch;

/// Answers for the detokenizer.
pub(crate) struct Answers {
    pub(crate) fingerprint: String,
    pub(crate) config_json: String,
    /// Live requests.
    pub(crate) live: watch::Receiver<usize>,
}

#[tonic::async_trait]
impl Handler for Answers {
    fn model_fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn config_json(&self) -> String {
        self.config_json.clone()
    }

    async fn drained(&self, deadline: Duration) -> u32 {
        let mut live = self.live.clone();
        let _ = tokio::time::timeout(deadline, live.wait_for(|live| *live == 0)).await;
        u32::try_from(*self.live.borrow()).unwrap_or(u32::MAX)
    }
}
