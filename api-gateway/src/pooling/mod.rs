//! Routes that pool prompts: embeddings, class scores, scores of pairs, rewards. A body becomes a [`Job`]: one pipeline
//! request a prompt, and what writes the answer of their outputs. All that lies between is here.

pub mod answer;
pub mod classify;
pub mod cohere;
pub mod embeddings;
pub mod encoding;
pub mod inputs;
pub mod outputs;
pub mod pairs;
pub mod params;
pub mod pooled;
pub mod rerank;
pub mod score;

use std::{future::poll_fn, sync::Arc};

use axum::{extract::Request, response::Response};
use proto::{PoolingInfo, pooling_info::Task};
use service_kit::trace;
use tracing::{Instrument, Span, field};

use crate::{
    engine::{
        adapters,
        mailbox::{Ending, Update, WakeAt},
        pipeline::Arrival,
    },
    envelope::{envelope, traceparent_of},
    error::ApiError,
    gateway::Gateway,
    openai::{completion::Envelope, params::Limits},
    server::body,
};
use outputs::Outputs;

/// What a body asks for, read and checked.
pub struct Job {
    /// The id that the client sees.
    pub id: String,
    /// One a prompt, without keys.
    pub requests: Vec<proto::Request>,
    /// Writes the answer.
    pub write: Write,
}

/// Makes an answer of the requests' outputs.
pub type Write = Box<dyn FnOnce(Outputs) -> Result<Response, ApiError> + Send>;

/// What bodies are read with.
pub struct Reading<'a> {
    /// What they are checked against.
    pub limits: &'a Limits,
    /// What the HTTP request says beside them.
    pub envelope: &'a Envelope,
    /// What the model gives.
    pub info: &'a Arc<PoolingInfo>,
    /// Longest input in tokens, where it is known.
    pub max_len: Option<u32>,
}

/// Reads a body into a job.
pub type Read = fn(&[u8], &Reading<'_>) -> Result<Job, ApiError>;

/// Answers one request of a route that pools.
pub async fn answer(gateway: Arc<Gateway>, request: Request, read: Read) -> Result<Response, ApiError> {
    let span = tracing::info_span!("request", request_id = field::Empty, prompt_tokens = field::Empty);
    let (parts, body) = request.into_parts();
    let incoming = traceparent_of(&parts.headers);
    trace::set_parent(&span, incoming);
    async {
        let arrival = Arrival::now();
        let body = body::read_json(&gateway, &parts.headers, body).await?;
        let envelope = envelope(&gateway, &parts.headers, arrival, incoming)?;
        let info = gateway.model.pooling()?.ok_or_else(|| generates(&gateway))?;
        let max_len = gateway.model.max_model_len();
        let job = adapters::read_with(&gateway, &body, |limits| {
            read(&body, &Reading { limits, envelope: &envelope, info: &info, max_len })
        })
        .await?;
        drop(body);
        Span::current().record("request_id", job.id.as_str());
        run(&gateway, job, arrival).await
    }
    .instrument(span)
    .await
}

/// Sends the requests, waits for all outputs, and writes the answer.
async fn run(gateway: &Arc<Gateway>, job: Job, arrival: Arrival) -> Result<Response, ApiError> {
    let prompts = job.requests.len();
    for request in &job.requests {
        tracing::debug!(request_id = request.request_id, "request sent");
    }
    if gateway.config.answers.enable_log_requests {
        tracing::info!(request_id = job.id, prompts, "request");
    }
    let in_flight = gateway.pipeline.submit(job.requests, WakeAt::Ending, arrival)?;
    let mut update = Update::default();
    poll_fn(|context| in_flight.mailbox().poll(context, &mut update)).await;
    if let Some(Ending::Failed(failure)) = update.ending {
        return Err(failure.into());
    }
    (job.write)(Outputs::of(update, prompts)?)
}

fn generates(gateway: &Gateway) -> ApiError {
    let model = gateway.config.model_name();
    ApiError::body(format!(
        "The model `{model}` generates text and pools nothing: start the server with --runner pooling for embeddings."
    ))
}

/// The routes that a model answers.
pub fn routes_of(info: &PoolingInfo) -> &'static str {
    match info.task() {
        Task::Embed => "/v1/embeddings, /v2/embed, /score, /rerank or /pooling",
        Task::Classify => "/classify, /score, /rerank or /pooling",
        Task::Reward => "/pooling",
        Task::TokenEmbed => "/pooling, /score or /rerank",
    }
}

/// Refuses a route that the model's outputs make no sense for.
pub fn expect(info: &PoolingInfo, tasks: &[Task], route: &str) -> Result<(), ApiError> {
    if tasks.contains(&info.task()) {
        return Ok(());
    }
    let gives = match info.task() {
        Task::Embed => "embeddings",
        Task::Classify => "class scores",
        Task::Reward => "scores of tokens",
        Task::TokenEmbed => "a vector of each token",
    };
    Err(ApiError::body(format!("The model gives {gives}, not what {route} answers with: use {}.", routes_of(info))))
}
