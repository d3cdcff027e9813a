//! The life of a process, told in order.

use std::{future::Future, io, process::ExitCode, time::Duration};

use link::LinkOptions;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{CommonArgs, Status, log, metrics::Metrics, profile::Recorder};

/// What a service's body gets to work with; cloning shares.
#[derive(Clone)]
pub struct Process {
    /// What the process says of itself.
    pub status: Status,
    /// Its metrics.
    pub metrics: Metrics,
    /// Cancelled by SIGTERM and SIGINT: end in order.
    pub shutdown: CancellationToken,
    /// Records what it does while a profile runs.
    pub profile: Recorder,
    /// What it shows to peers on other hosts and asks of them, on links and control planes.
    pub links: LinkOptions,
}

impl Process {
    /// A process that is starting, outside of [`run`].
    pub fn new(service: &'static str) -> Self {
        Self {
            status: Status::new(service),
            metrics: Metrics::default(),
            shutdown: CancellationToken::new(),
            profile: Recorder::default(),
            links: LinkOptions::default(),
        }
    }
}

/// How many threads run the process's tasks.
#[derive(Clone, Copy, Debug)]
pub enum Threads {
    /// All tasks on the main thread: no locks contended, no tasks stolen.
    One,
    /// A pool.
    Pool(usize),
}

/// How long a process may take to be gone once its work has ended.
const END: Duration = Duration::from_secs(10);

/// What a process ends with that did nothing wrong and is to be started again: `EX_TEMPFAIL` of BSD's `sysexits.h`.
pub const TRY_AGAIN: u8 = 75;

/// Why a process ends that is to be started again: its error has this kind.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartAgain(pub String);

/// Sets the stage (logging, traces, TLS provider, runtime, signals), runs `body`, and turns its end into an exit code.
///
/// An error is the last line the process logs, and the exit code is 1; or [`TRY_AGAIN`] for [`StartAgain`].
pub fn run<Body, Ended>(service: &'static str, args: &CommonArgs, threads: Threads, body: Body) -> ExitCode
where
    Body: FnOnce(Process) -> Ended,
    Ended: Future<Output = anyhow::Result<()>>,
{
    // Fails only when a provider is installed already (several services in one test process), which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match build(threads) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{service}: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        let mut process = Process::new(service);
        let logs = match log::init(service, args, &process.profile) {
            Ok(logs) => logs,
            Err(error) => {
                eprintln!("{service}: {error:#}");
                return ExitCode::FAILURE;
            }
        };
        let ready = args.link.options().and_then(|links| {
            process.links = links;
            Ok(end_on_signals(&process.shutdown)?)
        });
        let code = match ready {
            Ok(()) => report(service, body(process).await),
            Err(error) => report(service, Err(error)),
        };
        logs.flush().await;
        end_in_time(service);
        code
    })
}

/// Sees to it that the process is gone soon. What still runs when its work has ended is not this program's: a library's
/// exit handler may wait for a device that hangs.
fn end_in_time(service: &'static str) {
    let kill = move || {
        std::thread::sleep(END);
        eprintln!("{service}: something does not let the process end; killing it");
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    };
    // Without a thread the end takes what it takes.
    let _ = std::thread::Builder::new().name("end".into()).spawn(kill);
}

fn build(threads: Threads) -> io::Result<tokio::runtime::Runtime> {
    match threads {
        Threads::One => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        Threads::Pool(count) => {
            tokio::runtime::Builder::new_multi_thread().worker_threads(count.max(1)).enable_all().build()
        }
    }
}

fn end_on_signals(shutdown: &CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
    });
    Ok(())
}

fn report(service: &'static str, ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => {
            tracing::debug!(service, "ended");
            ExitCode::SUCCESS
        }
        Err(error) => {
            tracing::error!(service, "{error:#}");
            if error.is::<StartAgain>() { TRY_AGAIN.into() } else { ExitCode::FAILURE }
        }
    }
}
