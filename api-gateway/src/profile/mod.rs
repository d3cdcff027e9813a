//! Profiles of the whole engine: every process records what it does, and the gateway writes one trace of it.

pub mod settings;
mod trace;

use std::{
    fs::File,
    io::{self, BufWriter},
    path::PathBuf,
    time::SystemTime,
};

use parking_lot::Mutex;
use proto::StartProfileRequest;
use service_kit::{
    Process,
    profile::{Recorded, Steps},
};

use crate::{engine::peers::Peers, error::ApiError};
pub use settings::{Overrides, Settings};

/// Starts and ends profiles.
pub struct Profiler {
    settings: Option<Settings>,
    process: Process,
    /// The beginning of the name of the trace to come.
    prefix: Mutex<Option<String>>,
}

impl Profiler {
    /// Of this process and its peers; without settings there are no profiles.
    pub fn new(settings: Option<Settings>, process: &Process) -> Self {
        Self { settings, process: process.clone(), prefix: Mutex::new(None) }
    }

    /// Begins a profile in all processes.
    pub async fn start(&self, peers: &Peers, overrides: Overrides) -> Result<(), ApiError> {
        let settings = self.settings()?;
        if self.process.profile.is_on() {
            return Err(ApiError::body("A profile runs already: end it with POST /stop_profile."));
        }
        let folder = settings.folder.clone();
        let made = tokio::task::spawn_blocking(move || std::fs::create_dir_all(&folder)).await;
        made.map_err(io::Error::other).flatten().map_err(|error| unwritten(&settings.folder, &error))?;
        let steps = Steps {
            delay: overrides.delay_steps.unwrap_or(settings.steps.delay),
            most: overrides.max_steps.unwrap_or(settings.steps.most),
        };
        *self.prefix.lock() = overrides.prefix;
        self.process.profile.start(steps);
        let begun = peers.start_profile(StartProfileRequest { delay_steps: steps.delay, max_steps: steps.most }).await;
        if let Err(reason) = begun {
            peers.stop_profile().await;
            self.process.profile.stop();
            return Err(ApiError::unavailable(reason));
        }
        tracing::info!(?steps, "a profile runs");
        Ok(())
    }

    /// Ends it, and writes what was recorded. Where the trace lies.
    pub async fn stop(&self, peers: &Peers) -> Result<PathBuf, ApiError> {
        let settings = self.settings()?;
        if !self.process.profile.is_on() {
            return Err(ApiError::body("No profile runs: begin one with POST /start_profile."));
        }
        let mut replies = peers.stop_profile().await;
        let Recorded { spans, dropped } = self.process.profile.stop();
        let (service, pid) = (self.process.status.service().to_owned(), std::process::id());
        replies.push(proto::StopProfileReply { service, pid, spans, dropped });
        if settings.engine_only {
            let is_engine = |name: &str| name.starts_with("scheduler-svc") || name.starts_with("worker-svc");
            replies.retain(|reply| is_engine(&reply.service));
        }
        let path = settings.folder.join(self.file_name());
        for reply in replies.iter().filter(|reply| reply.dropped > 0) {
            let (service, dropped) = (&reply.service, reply.dropped);
            tracing::warn!(service, dropped, "the profile lacks its latest spans: there were too many");
        }
        let file = path.clone();
        let write = move || trace::write(BufWriter::new(File::create(&file)?), &replies);
        let written = tokio::task::spawn_blocking(write).await.map_err(io::Error::other).flatten();
        written.map_err(|error| unwritten(&path, &error))?;
        tracing::info!(path = %path.display(), "the profile is written");
        Ok(path)
    }

    fn settings(&self) -> Result<&Settings, ApiError> {
        self.settings.as_ref().ok_or_else(|| ApiError::body("Profiles need --profiler-config."))
    }

    fn file_name(&self) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let prefix = self.prefix.lock().take().unwrap_or_else(|| "quire".to_owned());
        format!("{prefix}.{}.pt.trace.json", now.as_millis())
    }
}

fn unwritten(path: &std::path::Path, error: &io::Error) -> ApiError {
    ApiError::new(
        crate::error::Fault::Internal,
        format!("The profile cannot be written to {}: {error}", path.display()),
    )
}
