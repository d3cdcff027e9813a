//! All that routes share.

use std::sync::{Arc, OnceLock};

use service_kit::Process;
use tokio::sync::watch;

use crate::{
    config::Config,
    engine::{
        model::Model,
        peers::Peers,
        pipeline::{Arrival, Pipeline},
    },
    metrics::{RequestMetrics, http_requests::HttpMetrics, parser_calls::ParserCounts},
    profile::Profiler,
    responses::store::Store,
    server::auth::Keys,
};

/// All that routes share.
pub struct Gateway {
    /// Settings.
    pub config: Arc<Config>,
    /// Status, metrics, shutdown.
    pub process: Process,
    /// Requests out, events in.
    pub pipeline: Arc<Pipeline>,
    /// The served model.
    pub model: Model,
    /// Other processes' control planes.
    pub peers: Peers,
    /// What is wrong with what the flags say of other processes.
    pub misled: OnceLock<String>,
    /// Profiles of all processes.
    pub profiler: Profiler,
    /// Responses that are kept.
    pub responses: Arc<Store>,
    /// The server that requests go to; 0 while unknown.
    pub server: watch::Sender<u64>,
    /// Who may call.
    pub keys: Keys,
    /// What is counted of HTTP.
    pub http: HttpMetrics,
    /// When the gateway started, Unix time in seconds.
    pub started: u64,
}

impl Gateway {
    /// Puts the parts together; `id` is the gateway's part of every request key.
    pub fn new(mut config: Config, id: u64, process: Process) -> anyhow::Result<Self> {
        let (requests, http) = process.metrics.register(|registry| {
            config.formats.counts = ParserCounts::register(registry, &config.served_names[0]);
            let first = config.peers.replica.data_parallel_rank;
            let engines = first..first + config.peers.scheduler_control.len().max(1) as u32;
            (RequestMetrics::register(registry, config.model_name(), engines), HttpMetrics::register(registry))
        });
        let config = Arc::new(config);
        Ok(Self {
            pipeline: Arc::new(Pipeline::new(id, config.access.max_inflight, requests)),
            model: Model::new(config.clone()),
            peers: Peers::new(&config.peers, &process.links)?,
            misled: OnceLock::new(),
            profiler: Profiler::new(config.profiler.clone(), &process),
            responses: Arc::new(Store::new(config.stored_responses())),
            server: watch::Sender::new(0),
            keys: Keys::new(&config.access.api_key),
            http,
            started: Arrival::now().unix_seconds(),
            process,
            config,
        })
    }

    /// Why requests cannot be served now, by what the links tell and the control planes say.
    pub async fn not_ready_reason(&self) -> Option<String> {
        if self.process.status.is_draining() {
            return Some("draining".into());
        }
        if let Some(problem) = self.misled.get() {
            return Some(problem.clone());
        }
        if let Some(reason) = self.pipeline.not_ready_reason() {
            return Some(reason.into());
        }
        if let Err(reason) = self.peers.ready().await {
            return Some(reason);
        }
        // Last: the others are ready before the gateway has asked them what they serve.
        (!self.model.is_known()).then(|| "the model is not known yet".into())
    }
}
