//! Supervises one process: starts it, forwards its log lines, waits until it is ready, restarts it, ends it.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use service_kit::TRY_AGAIN;
use tokio::{
    process::{Child, Command},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{backoff::Backoff, crash_reason};
use crate::serve::screen::Screen;

/// A process to keep running.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What people call it: "worker 1".
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Environment variables on top of the supervisor's.
    pub env: Vec<(String, String)>,
    /// What to look at when it does not start.
    pub remedy: &'static str,
    /// How long it may take to end after SIGTERM.
    pub grace: Duration,
}

/// Whether a process can do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It can. When it is started again it is to have these flags too.
    Ready { decided: Vec<String> },
    /// It cannot yet, for this reason; progress from 0 to 1000.
    Waiting { reason: String, permille: Option<u32> },
    /// It cannot be asked yet.
    Silent,
}

/// Asks a process whether it is ready.
pub trait Probe: Send + Sync + 'static {
    /// Asks once.
    fn ask(&self) -> impl Future<Output = Readiness> + Send;
}

/// What the engine's supervisor hears of a process.
#[derive(Debug)]
pub enum Event {
    /// The process is ready, this long after it was started.
    Ready { name: String, after: Duration },
    /// The process cannot be kept running.
    Failed { message: String },
}

/// What the tasks that supervise processes share.
#[derive(Clone)]
pub struct Shared {
    /// Where lines go.
    pub screen: Arc<Screen>,
    /// Where events go.
    pub events: mpsc::Sender<Event>,
    /// The engine has never been ready: what fails now is wrong, not unlucky.
    pub starting: Arc<AtomicBool>,
    /// End without grace.
    pub hurry: CancellationToken,
}

/// How one life of the process ended.
enum End {
    /// It was told to.
    Stopped,
    /// By itself.
    Died { status: ExitStatus, ready: Option<Vec<String>>, lived: Duration, cause: Option<String> },
}

/// Keeps the process running until `stop` is cancelled or it cannot be kept running.
pub async fn supervise(mut spec: Spec, probe: impl Probe, shared: Shared, stop: CancellationToken) {
    let mut backoff = Backoff::default();
    loop {
        let failure = match live(&spec, &probe, &shared, &stop).await {
            Ok(End::Stopped) => return,
            Ok(End::Died { status, ready, lived, cause }) => {
                let was_ready = ready.is_some();
                let new = ready.into_iter().flatten().filter(|flag| !spec.args.contains(flag)).collect::<Vec<_>>();
                spec.args.extend(new);
                let how = cause.map_or_else(|| how_ended(status), |cause| format!("{cause} ({})", how_ended(status)));
                // A refusal to start is not worth a second try; a kill may be, and who only misses one that was killed.
                let code = status.code().filter(|&code| code != 0 && code != i32::from(TRY_AGAIN));
                let refused = shared.starting.load(Ordering::Relaxed) && code.is_some();
                match backoff.died(was_ready, lived).filter(|_| !refused) {
                    Some(wait) => {
                        tracing::warn!(process = spec.name, "{} died: {how}; starting it again", spec.name);
                        tokio::select! {
                            () = tokio::time::sleep(wait) => continue,
                            () = stop.cancelled() => return,
                        }
                    }
                    None => format!("the {} cannot start: {how}; {}", spec.name, spec.remedy),
                }
            }
            Err(error) => format!("cannot run {}: {error}", spec.program.display()),
        };
        // The supervisor listens for as long as it has not given up, and then this does not matter.
        let _ = shared.events.send(Event::Failed { message: failure }).await;
        return;
    }
}

/// One life of the process.
async fn live(spec: &Spec, probe: &impl Probe, shared: &Shared, stop: &CancellationToken) -> std::io::Result<End> {
    let started = Instant::now();
    let mut child = spawn(spec)?;
    let stderr = child.stderr.take().ok_or_else(|| std::io::Error::other("no pipe for its log lines"))?;
    let lines = {
        let (name, screen, starting) = (spec.name.clone(), shared.screen.clone(), shared.starting.clone());
        let hold = move || starting.load(Ordering::Relaxed);
        tokio::spawn(async move { crash_reason::follow(stderr, &name, &screen, hold).await })
    };
    let mut ready = None;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            () = stop.cancelled() => {
                end(&mut child, spec, shared).await;
                // All lines are shown before the process counts as ended.
                let _ = lines.await;
                shared.screen.settle(&spec.name);
                return Ok(End::Stopped);
            }
            decided = until_ready(spec, probe, shared, started), if ready.is_none() => {
                ready = Some(decided);
                shared.screen.settle(&spec.name);
                let event = Event::Ready { name: spec.name.clone(), after: started.elapsed() };
                let _ = shared.events.send(event).await;
            }
        }
    };
    let cause = lines.await.ok().flatten().filter(|_| status.code().unwrap_or(0) != 0);
    Ok(End::Died { status, ready, lived: started.elapsed(), cause })
}

/// Asks until the answer is yes; returns what the process decided. Readiness is another process's, so it can only be
/// seen by asking again.
async fn until_ready(spec: &Spec, probe: &impl Probe, shared: &Shared, started: Instant) -> Vec<String> {
    loop {
        match probe.ask().await {
            Readiness::Ready { decided } => return decided,
            Readiness::Waiting { reason, permille } => shared.screen.progress(&spec.name, &reason, permille),
            Readiness::Silent => {}
        }
        let patience = if started.elapsed() < Duration::from_secs(5) { 10 } else { 100 };
        tokio::time::sleep(Duration::from_millis(patience)).await;
    }
}

fn spawn(spec: &Spec) -> std::io::Result<Child> {
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).envs(spec.env.iter().map(|(name, value)| (name, value)));
    // Ctrl-C at the terminal is for the supervisor, which ends the others in order.
    command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    command.spawn()
}

/// Ends the process: asked first, then made to.
async fn end(child: &mut Child, spec: &Spec, shared: &Shared) {
    signal(child, Signal::TERM);
    tokio::select! {
        _ = child.wait() => return,
        () = shared.hurry.cancelled() => {}
        () = tokio::time::sleep(spec.grace) => {
            tracing::warn!(process = spec.name, "{} does not end; killing it", spec.name);
        }
    }
    // It has been told twice; that it is gone already is no error.
    let _ = child.kill().await;
}

fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // The child has not been waited for, so the id is still its own.
        let _ = kill_process(pid, signal);
    }
}

fn how_ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests;
