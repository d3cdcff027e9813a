//! Connecting again and again until it succeeds.

use std::time::{Duration, Instant};

use prost::Message;
use proto::Hello;

use crate::{address::Address, error::LinkError, link::Link, listener::connect, options::LinkOptions};

/// The first wait; each next one is twice as long.
const SHORTEST: Duration = Duration::from_millis(5);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(1);
/// The longest wait for a process on this host that is just starting (or starting again): a failed connection there
/// costs microseconds, and a user waits.
const LONGEST_AT_FIRST: Duration = Duration::from_millis(20);
/// How long "at first" is.
const AT_FIRST: Duration = Duration::from_secs(10);
/// A peer that is not there for less than this is not worth a line: processes that start together find each other in
/// turn.
const LOG_AFTER: Duration = Duration::from_secs(2);
/// How often an ongoing failure is logged again.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Connects, trying again with backoff until it succeeds. Cancel by dropping the future.
pub async fn redial<S: Message, R: Message + Default>(
    address: &Address,
    hello: Hello,
    options: &LinkOptions,
) -> Link<S, R> {
    let start = Instant::now();
    let is_local = !matches!(address, Address::Grpc(_));
    let mut wait = SHORTEST;
    let mut log = Log { start, failures: 0, logged: None };
    loop {
        match connect(address, hello.clone(), options).await {
            Ok(link) => {
                log.succeeded(address);
                return link;
            }
            Err(error) => log.failed(address, &error),
        }
        // Between half and the whole of it, so that many dialers do not come back in step.
        tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..=1.0))).await;
        let longest = if is_local && start.elapsed() < AT_FIRST { LONGEST_AT_FIRST } else { LONGEST };
        wait = (wait * 2).min(longest);
    }
}

/// Logs refusals at once and other failures after [`LOG_AFTER`], then one every [`LOG_EVERY`], then the success.
struct Log {
    start: Instant,
    failures: u64,
    logged: Option<Instant>,
}

impl Log {
    fn failed(&mut self, address: &Address, error: &LinkError) {
        self.failures += 1;
        let is_refusal = matches!(error, LinkError::Refused { .. } | LinkError::Tls { .. });
        let is_brief = self.start.elapsed() < LOG_AFTER && !is_refusal;
        if is_brief || self.logged.is_some_and(|at| at.elapsed() < LOG_EVERY) {
            return;
        }
        self.logged = Some(Instant::now());
        let failures = self.failures;
        if is_refusal {
            tracing::warn!(%address, failures, %error, "refused, still trying");
        } else {
            tracing::info!(%address, failures, %error, "cannot connect yet, still trying");
        }
    }

    fn succeeded(&self, address: &Address) {
        if self.logged.is_some() {
            tracing::info!(%address, failures = self.failures, "connected");
        }
    }
}
