//! Runs an engine: starts its processes, tells when they are ready, and ends them in order.

mod backoff;
mod crash_reason;
mod process;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::bail;
use service_kit::control::ControlClient;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::screen::Screen;
use process::{Event, Probe, Readiness, Shared, supervise};

pub use process::Spec;

/// A process and how to ask it whether it is ready.
pub struct Member<P> {
    /// How it is run.
    pub spec: Spec,
    /// Answers for it.
    pub probe: P,
    /// Processes of a lower stage end first, and a stage is over before the next one ends.
    pub stage: usize,
}

/// How long each process took to be ready, in the order in which they were.
pub type StartReport = Vec<(String, Duration)>;

/// A running engine.
pub struct Supervisor {
    stages: Vec<(CancellationToken, JoinSet<()>)>,
    events: mpsc::Receiver<Event>,
    shared: Shared,
    waiting: Vec<String>,
}

impl Supervisor {
    /// Starts all processes.
    pub fn start<P: Probe>(members: Vec<Member<P>>, screen: Arc<Screen>) -> Self {
        // Each process has few events on their way at a time.
        let (send, events) = mpsc::channel(64);
        let starting = Arc::new(AtomicBool::new(true));
        let shared = Shared { screen, events: send, starting, hurry: CancellationToken::new() };
        let waiting = members.iter().map(|member| member.spec.name.clone()).collect();
        let mut stages = Vec::<(CancellationToken, JoinSet<()>)>::new();
        for member in members {
            if stages.len() <= member.stage {
                stages.resize_with(member.stage + 1, Default::default);
            }
            let (stop, processes) = &mut stages[member.stage];
            processes.spawn(supervise(member.spec, member.probe, shared.clone(), stop.clone()));
        }
        Self { stages, events, shared, waiting }
    }

    /// Waits until every process is ready; `None` when the user ends the engine before that.
    pub async fn ready(&mut self, shutdown: &CancellationToken) -> anyhow::Result<Option<StartReport>> {
        let mut report = StartReport::new();
        while !self.waiting.is_empty() {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::Ready { name, after }) => {
                        self.waiting.retain(|waiting| *waiting != name);
                        report.push((name, after));
                    }
                    Some(Event::Failed { message }) => bail!(message),
                    None => bail!("all processes are gone"),
                },
                () = shutdown.cancelled() => return Ok(None),
            }
        }
        self.shared.starting.store(false, Ordering::Relaxed);
        Ok(Some(report))
    }

    /// Watches until the user ends the engine or a process cannot be kept running.
    pub async fn watch(&mut self, shutdown: &CancellationToken) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::Ready { name, after }) => {
                        tracing::info!(process = name, "{name} is back after {:.2} s", after.as_secs_f64());
                    }
                    Some(Event::Failed { message }) => bail!(message),
                    None => bail!("all processes are gone"),
                },
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }

    /// Ends all processes, stage by stage. A second Ctrl-C ends them at once.
    pub async fn end(mut self) -> anyhow::Result<()> {
        let mut interrupts = signal(SignalKind::interrupt())?;
        let mut terminates = signal(SignalKind::terminate())?;
        let hurry = self.shared.hurry.clone();
        let (start, events) = (Instant::now(), &mut self.events);
        let stages = async {
            for (stop, processes) in &mut self.stages {
                stop.cancel();
                while processes.join_next().await.is_some() {}
            }
        };
        tokio::pin!(stages);
        loop {
            tokio::select! {
                () = &mut stages => break,
                // The tasks must never wait for a listener.
                _ = events.recv() => {}
                _ = interrupts.recv() => hurry.cancel(),
                _ = terminates.recv() => hurry.cancel(),
            }
        }
        tracing::debug!("ended within {:.2} s", start.elapsed().as_secs_f64());
        if hurry.is_cancelled() {
            bail!("ended at once: running requests were cut off");
        }
        Ok(())
    }

    /// Ends all processes without grace, after a start that failed.
    pub async fn abort(mut self) {
        self.shared.hurry.cancel();
        // Tasks that report more find the channel closed and go on.
        self.events.close();
        for (stop, _) in &self.stages {
            stop.cancel();
        }
        for (_, processes) in &mut self.stages {
            while processes.join_next().await.is_some() {}
        }
    }
}

impl Probe for ControlClient {
    async fn ask(&self) -> Readiness {
        match self.ready().await {
            Ok(reply) if reply.ready => Readiness::Ready { decided: reply.decided },
            Ok(reply) => Readiness::Waiting { reason: reply.reason, permille: reply.progress_permille },
            Err(_) => Readiness::Silent,
        }
    }
}
