//! What a process says of itself: ready or not and why, and a counter that moves while it works.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// Whether a process can do its work now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can.
    Ready,
    /// It cannot; the reason is for a user to read.
    NotReady {
        /// "no worker connected".
        reason: String,
        /// Progress of what it waits for, 0 ..= 1000.
        permille: Option<u32>,
    },
    /// It refuses new work and finishes what runs.
    Draining,
}

/// Progress of loading a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes that are there.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Bytes a second so far; 0: not known yet.
    pub bytes_per_s: u64,
}

impl LoadProgress {
    /// After `elapsed`.
    pub fn after(elapsed: Duration, done: u64, total: u64) -> Self {
        let seconds = elapsed.as_secs_f64();
        Self { done, total, bytes_per_s: if seconds > 0.0 { (done as f64 / seconds) as u64 } else { 0 } }
    }
}

/// Shared by the process's tasks; cloning shares.
#[derive(Clone)]
pub struct Status {
    inner: Arc<Inner>,
}

struct Inner {
    service: &'static str,
    started: Instant,
    progress: AtomicU64,
    readiness: watch::Sender<Readiness>,
    decided: Mutex<Vec<String>>,
}

impl Status {
    /// A process that is starting.
    pub fn new(service: &'static str) -> Self {
        let (readiness, _) = watch::channel(Readiness::NotReady { reason: "starting".into(), permille: None });
        let (started, progress) = (Instant::now(), AtomicU64::new(0));
        Self { inner: Arc::new(Inner { service, started, progress, readiness, decided: Mutex::default() }) }
    }

    /// The process's name.
    pub fn service(&self) -> &'static str {
        self.inner.service
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        self.inner.started.elapsed()
    }

    /// Counts one unit of work.
    pub fn advance(&self) {
        self.inner.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Units of work so far.
    pub fn progress(&self) -> u64 {
        self.inner.progress.load(Ordering::Relaxed)
    }

    /// This start came to mean `flag` by a setting that left it open; one after a crash is to do the same.
    pub fn decide(&self, flag: impl Into<String>) {
        self.inner.decided.lock().unwrap_or_else(PoisonError::into_inner).push(flag.into());
    }

    /// All that was decided.
    pub fn decided(&self) -> Vec<String> {
        self.inner.decided.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It can do its work (unless it is draining, which is final).
    pub fn ready(&self) {
        self.set(Readiness::Ready);
    }

    /// It cannot, for this reason.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.set(Readiness::NotReady { reason: reason.into(), permille: None });
    }

    /// It is loading; how far that is.
    pub fn loading(&self, what: &str, progress: LoadProgress) {
        let LoadProgress { done, total, bytes_per_s } = progress;
        let permille = (done.saturating_mul(1000) / total.max(1)).min(1000) as u32;
        let pace = if bytes_per_s == 0 { String::new() } else { format!(", {:.1} GB/s", bytes_per_s as f64 * 1e-9) };
        let reason = format!("{what}: {} %{pace}", permille / 10);
        self.set(Readiness::NotReady { reason, permille: Some(permille) });
    }

    /// It refuses new work from now on.
    pub fn draining(&self) {
        self.inner.readiness.send_replace(Readiness::Draining);
    }

    /// What it says now.
    pub fn readiness(&self) -> Readiness {
        self.inner.readiness.borrow().clone()
    }

    /// Whether it can do its work now.
    pub fn is_ready(&self) -> bool {
        *self.inner.readiness.borrow() == Readiness::Ready
    }

    /// Whether it refuses new work.
    pub fn is_draining(&self) -> bool {
        *self.inner.readiness.borrow() == Readiness::Draining
    }

    /// Follows changes.
    pub fn subscribe(&self) -> watch::Receiver<Readiness> {
        self.inner.readiness.subscribe()
    }

    fn set(&self, next: Readiness) {
        self.inner.readiness.send_if_modified(|now| {
            let changes = *now != Readiness::Draining && *now != next;
            if changes {
                *now = next;
            }
            changes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_is_final() {
        let status = Status::new("test");
        assert!(!status.is_ready());
        status.ready();
        assert!(status.is_ready());
        status.draining();
        status.ready();
        assert!(status.is_draining());
    }

    #[test]
    fn loading_says_how_far() {
        let status = Status::new("test");
        status.loading("loading weights", LoadProgress { done: 1, total: 4, bytes_per_s: 0 });
        let expected = Readiness::NotReady { reason: "loading weights: 25 %".into(), permille: Some(250) };
        assert_eq!(status.readiness(), expected);
        status.loading("loading weights", LoadProgress::default());
        assert!(!status.is_ready());
        status.loading("loading weights", LoadProgress::after(Duration::from_secs(2), 15_000_000_000, 16_000_000_000));
        let Readiness::NotReady { reason, .. } = status.readiness() else { panic!("{:?}", status.readiness()) };
        assert_eq!(reason, "loading weights: 93 %, 7.5 GB/s");
    }
}
