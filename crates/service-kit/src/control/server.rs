//! Serves a process's control plane.

use std::{fs, io, os::unix::net::UnixStream as StdUnixStream, path::Path, sync::Arc, time::Duration};

use link::{Address, Guard, LinkOptions};
use proto::control_server::{Control, ControlServer as GrpcServer};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status as GrpcStatus,
    service::{InterceptorLayer, Routes},
    transport::Server,
};
use tonic_health::ServingStatus;

use crate::{
    Process, Readiness, VERSION,
    profile::{Recorded, Steps},
};

/// The name under which the health service says that the process answers at all, ready or not: what liveness probes
/// ask.
pub const LIVE: &str = "live";

/// What a service answers beyond what the kit knows. Every method has a default.
#[tonic::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// What the process knows of the model.
    fn model(&self) -> Option<proto::ModelInfo> {
        None
    }

    /// Waits until nothing runs or the deadline passes; returns what is left. New work is refused already.
    async fn drained(&self, _deadline: Duration) -> u32 {
        0
    }

    /// Aborts a request by its public id.
    async fn abort(&self, _request_id: &str) -> bool {
        false
    }

    /// Forgets all cached prefixes.
    async fn reset_prefix_cache(&self) -> Result<(), GrpcStatus> {
        Err(GrpcStatus::unimplemented("this process has no prefix cache"))
    }

    /// Loads an adapter and serves it.
    async fn serve_adapter(&self, _request: proto::ServeAdapterRequest) -> Result<Option<proto::Failure>, GrpcStatus> {
        Err(GrpcStatus::unimplemented("this process serves no adapters"))
    }

    /// Serves an adapter no longer.
    async fn remove_adapter(&self, _name: String) -> Result<Option<proto::Failure>, GrpcStatus> {
        Err(GrpcStatus::unimplemented("this process serves no adapters"))
    }

    /// The adapters that are served; a name that is not among them is resolved first, where that is configured.
    async fn adapters(&self, _resolve: String) -> Result<proto::ListAdaptersReply, GrpcStatus> {
        Err(GrpcStatus::unimplemented("this process serves no adapters"))
    }

    /// A profile has ended: what there is beside the process's own spans.
    async fn stop_profile(&self) -> Recorded {
        Recorded::default()
    }

    /// Brings gauges up to date just before metrics are read.
    async fn refresh_metrics(&self) {}
}

/// A process that knows nothing beyond the kit.
impl Handler for () {}

/// Facts that do not change while a process runs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Fingerprint of the model folder; empty while unknown.
    pub model_fingerprint: String,
    /// The process's settings as a JSON object.
    pub config_json: String,
}

impl Default for Facts {
    fn default() -> Self {
        Self { model_fingerprint: String::new(), config_json: "{}".to_owned() }
    }
}

/// A control server, being put together.
pub struct ControlServer {
    process: Process,
    facts: Facts,
    handler: Arc<dyn Handler>,
    /// Of other gRPC services.
    routes: Routes,
}

impl ControlServer {
    /// Answers for `process`, asking `handler` for what only the service knows.
    pub fn new(process: &Process, handler: Arc<dyn Handler>) -> Self {
        Self { process: process.clone(), facts: Facts::default(), handler, routes: Routes::default() }
    }

    /// Answers requests for information with these facts.
    pub fn facts(mut self, facts: Facts) -> Self {
        self.facts = facts;
        self
    }

    /// Serves one more gRPC service at the same address.
    pub fn with<S>(mut self, service: S) -> Self
    where
        S: tower_service::Service<
                http::Request<tonic::body::Body>,
                Response = http::Response<tonic::body::Body>,
                Error = std::convert::Infallible,
            > + tonic::server::NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.routes = self.routes.add_service(service);
        self
    }

    /// Listens at all `addresses` until the process shuts down. Over TCP callers show what the process's links ask for;
    /// the health service is no exception. Errors name the address.
    pub async fn spawn(self, addresses: &[Address]) -> io::Result<()> {
        let Self { process, facts, handler, routes } = self;
        let (reporter, health) = tonic_health::server::health_reporter();
        follow_readiness(&process, reporter);
        let (links, shutdown) = (process.links.clone(), process.shutdown.clone());
        let control = GrpcServer::new(Answers { process, facts, handler });
        let routes = routes.add_service(control).add_service(health);
        for address in addresses {
            listen(address, routes.clone(), &links, shutdown.clone()).await.map_err(|error| named(address, error))?;
        }
        Ok(())
    }
}

/// Serves `routes` at one address until `shutdown`.
async fn listen(address: &Address, routes: Routes, links: &LinkOptions, shutdown: CancellationToken) -> io::Result<()> {
    let shutdown = shutdown.cancelled_owned();
    let guard = Guard::new("control", links);
    let server = Server::builder().layer(InterceptorLayer::new(guard.clone())).add_routes(routes);
    match address {
        Address::Grpc(host) => {
            let (callers, _) = guard.listen(host).await?;
            tokio::spawn(async move { server.serve_with_incoming_shutdown(callers, shutdown).await });
        }
        Address::GrpcUnix(path) | Address::Ring(path) => {
            let callers = UnixListenerStream::new(bind_unix(path)?);
            tokio::spawn(async move { server.serve_with_incoming_shutdown(callers, shutdown).await });
        }
    }
    Ok(())
}

/// Keeps the standard gRPC health service in step with the process's readiness.
fn follow_readiness(process: &Process, reporter: tonic_health::server::HealthReporter) {
    let mut readiness = process.status.subscribe();
    tokio::spawn(async move {
        reporter.set_service_status(LIVE, ServingStatus::Serving).await;
        loop {
            let serving = match *readiness.borrow_and_update() {
                Readiness::Ready => ServingStatus::Serving,
                _ => ServingStatus::NotServing,
            };
            reporter.set_service_status("", serving).await;
            if readiness.changed().await.is_err() {
                return;
            }
        }
    });
}

/// Binds a Unix socket, replacing the file of a process that died; a live one is an error.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    if path.exists() {
        if StdUnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

fn named(address: &Address, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("control plane at {address}: {error}"))
}

struct Answers {
    process: Process,
    facts: Facts,
    handler: Arc<dyn Handler>,
}

type Answer<T> = Result<Response<T>, GrpcStatus>;

#[tonic::async_trait]
impl Control for Answers {
    async fn health(&self, _: Request<proto::HealthRequest>) -> Answer<proto::HealthReply> {
        let status = &self.process.status;
        Ok(Response::new(proto::HealthReply {
            service: status.service().into(),
            version: VERSION.into(),
            uptime_ms: status.uptime().as_millis() as u64,
            progress: status.progress(),
        }))
    }

    async fn ready(&self, _: Request<proto::ReadyRequest>) -> Answer<proto::ReadyReply> {
        let (ready, reason, progress_permille) = match self.process.status.readiness() {
            Readiness::Ready => (true, String::new(), None),
            Readiness::NotReady { reason, permille } => (false, reason, permille),
            Readiness::Draining => (false, "draining".into(), None),
        };
        Ok(Response::new(proto::ReadyReply {
            ready,
            reason,
            progress_permille,
            decided: self.process.status.decided(),
        }))
    }

    async fn drain(&self, request: Request<proto::DrainRequest>) -> Answer<proto::DrainReply> {
        self.process.status.draining();
        let deadline = Duration::from_millis(request.into_inner().deadline_ms.into());
        let left = self.handler.drained(deadline).await;
        Ok(Response::new(proto::DrainReply { left }))
    }

    async fn info(&self, _: Request<proto::InfoRequest>) -> Answer<proto::InfoReply> {
        Ok(Response::new(proto::InfoReply {
            service: self.process.status.service().into(),
            version: VERSION.into(),
            model_fingerprint: self.facts.model_fingerprint.clone(),
            pid: std::process::id(),
            config_json: self.facts.config_json.clone(),
            model: self.handler.model(),
        }))
    }

    async fn abort_request(&self, request: Request<proto::AbortRequestRequest>) -> Answer<proto::AbortRequestReply> {
        let found = self.handler.abort(&request.into_inner().request_id).await;
        Ok(Response::new(proto::AbortRequestReply { found }))
    }

    async fn metrics(&self, _: Request<proto::MetricsRequest>) -> Answer<proto::MetricsReply> {
        self.handler.refresh_metrics().await;
        Ok(Response::new(proto::MetricsReply { text: self.process.metrics.text() }))
    }

    async fn reset_prefix_cache(
        &self,
        _: Request<proto::ResetPrefixCacheRequest>,
    ) -> Answer<proto::ResetPrefixCacheReply> {
        self.handler.reset_prefix_cache().await?;
        Ok(Response::new(proto::ResetPrefixCacheReply {}))
    }

    async fn serve_adapter(&self, request: Request<proto::ServeAdapterRequest>) -> Answer<proto::ServeAdapterReply> {
        let failure = self.handler.serve_adapter(request.into_inner()).await?;
        Ok(Response::new(proto::ServeAdapterReply { failure }))
    }

    async fn remove_adapter(&self, request: Request<proto::RemoveAdapterRequest>) -> Answer<proto::RemoveAdapterReply> {
        let failure = self.handler.remove_adapter(request.into_inner().name).await?;
        Ok(Response::new(proto::RemoveAdapterReply { failure }))
    }

    async fn list_adapters(&self, request: Request<proto::ListAdaptersRequest>) -> Answer<proto::ListAdaptersReply> {
        Ok(Response::new(self.handler.adapters(request.into_inner().resolve).await?))
    }

    async fn start_profile(&self, request: Request<proto::StartProfileRequest>) -> Answer<proto::StartProfileReply> {
        let proto::StartProfileRequest { delay_steps, max_steps } = request.into_inner();
        self.process.profile.start(Steps { delay: delay_steps, most: max_steps });
        Ok(Response::new(proto::StartProfileReply {}))
    }

    async fn stop_profile(&self, _: Request<proto::StopProfileRequest>) -> Answer<proto::StopProfileReply> {
        // First, so that no step begins another one.
        let Recorded { mut spans, dropped } = self.process.profile.stop();
        let beside = self.handler.stop_profile().await;
        spans.extend(beside.spans);
        Ok(Response::new(proto::StopProfileReply {
            service: self.process.status.service().into(),
            pid: std::process::id(),
            spans,
            dropped: dropped + beside.dropped,
        }))
    }
}
