//! The gateway's life: listen, serve connections, drain.

use std::{sync::Arc, time::Duration};

use axum::Router;
use http::{Request, Uri};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use service_kit::{
    Process,
    control::{ControlServer, Facts, Handler},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use tower::ServiceBuilder;

use crate::{
    config::{Args, Config},
    gateway::Gateway,
    server::{
        listeners::{Accepted, Listener, PeerAddress},
        router,
    },
    wire,
};

/// How long answers that were cut short may take to be written at the end.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// After a failed accept, as when file descriptors have run out: there is nothing to wait for that would tell when one
/// is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Runs the gateway until the process shuts down.
pub async fn serve(args: Args, process: Process) -> anyhow::Result<()> {
    let config = Config::from_args(&args)?;
    let id = link::hello("api-gateway", "requests", "").instance;
    let gateway = Arc::new(Gateway::new(config, id, process.clone())?);
    let facts =
        Facts { model_fingerprint: gateway.config.peers.fingerprint.model_fingerprint.clone(), ..Facts::default() };
    let control = ControlServer::new(&process, Arc::new(Control(gateway.clone()))).facts(facts);
    control.spawn(&args.common.control).await?;
    let listener = Listener::bind(&gateway.config.listen).await?;
    tracing::info!(address = listener.address(), "listening");
    let background = [
        tokio::spawn(wire::requests(gateway.clone())),
        tokio::spawn(wire::events(gateway.clone())),
        tokio::spawn(learn(gateway.clone())),
    ];
    let connections = TaskTracker::new();
    accept_all(&gateway, listener, &connections).await;
    drain(&gateway, &connections).await;
    background.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

/// The process is ready as soon as it knows the model; what its links do is `/health`'s to tell.
async fn learn(gateway: Arc<Gateway>) {
    gateway.process.status.not_ready("waiting for the model");
    gateway.model.learn(&gateway.peers).await;
    if gateway.config.peers.engine.is_some()
        && let Some(problem) = gateway.peers.miscounted().await
    {
        tracing::error!("{problem}");
        gateway.process.status.not_ready(&problem);
        // Set once, here.
        let _ = gateway.misled.set(problem);
        return;
    }
    gateway.process.status.ready();
}

/// Accepts until the process shuts down. The listener is closed on return.
async fn accept_all(gateway: &Arc<Gateway>, listener: Listener, connections: &TaskTracker) {
    let limit = Arc::new(Semaphore::new(gateway.config.listen.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let router = router::router(gateway);
    let accept = async {
        loop {
            // The semaphore is never closed.
            let Ok(permit) = limit.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok(accepted) => {
                    connections.spawn(connection(gateway.clone(), router.clone(), accepted, permit));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = gateway.process.shutdown.cancelled() => {}
    }
}

/// Serves one connection. At shutdown it finishes the request that it has, and closes.
async fn connection(gateway: Arc<Gateway>, router: Router, accepted: Accepted, _permit: OwnedSemaphorePermit) {
    let peer = accepted.peer.clone();
    let address = peer.0.clone();
    let stream = match accepted.ready().await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(peer = %peer.0, %error, "handshake failed");
            return;
        }
    };
    let root = gateway.config.clone();
    let service = ServiceBuilder::new()
        .map_request(move |request: Request<Incoming>| arriving(request, &root.access.root_path, &peer))
        .service(router);
    let service = TowerToHyperService::new(service);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs_f64(gateway.config.listen.http_keep_alive))
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = gateway.process.shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(peer = %address, %error, "connection ended");
    }
}

/// Says who asks, and takes off the prefix that a proxy added.
fn arriving(mut request: Request<Incoming>, root_path: &str, peer: &PeerAddress) -> Request<Incoming> {
    request.extensions_mut().insert(peer.clone());
    if !root_path.is_empty()
        && let Some(uri) = without_root(request.uri(), root_path)
    {
        *request.uri_mut() = uri;
    }
    request
}

fn without_root(uri: &Uri, root_path: &str) -> Option<Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(root_path).filter(|rest| rest.starts_with('/'))?;
    rest.parse().ok()
}

/// Lets running requests finish until the deadline, then ends them with an error.
async fn drain(gateway: &Arc<Gateway>, connections: &TaskTracker) {
    gateway.process.status.draining();
    gateway.pipeline.drain();
    connections.close();
    let left = gateway.pipeline.in_flight();
    let timeout = Duration::from_secs_f64(gateway.config.listen.shutdown_timeout);
    tracing::info!(requests = left, timeout_s = timeout.as_secs_f64(), "draining");
    if tokio::time::timeout(timeout, connections.wait()).await.is_err() {
        gateway.pipeline.end_all();
        let _ = tokio::time::timeout(LAST_WORDS, connections.wait()).await;
    }
}

/// The control plane's view of the gateway.
struct Control(Arc<Gateway>);

#[tonic::async_trait]
impl Handler for Control {
    async fn drained(&self, deadline: Duration) -> u32 {
        self.0.pipeline.drain();
        let _ = tokio::time::timeout(deadline, self.0.pipeline.emptied()).await;
        u32::try_from(self.0.pipeline.in_flight()).unwrap_or(u32::MAX)
    }

    async fn abort(&self, request_id: &str) -> bool {
        self.0.pipeline.abort_named(request_id)
    }
}
