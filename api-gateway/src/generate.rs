//! From a body to an answer: what both generating routes do. Reading and writing the shapes is [`crate::openai`]'s.

use std::{future::poll_fn, sync::Arc};

use axum::{
    body::Body,
    extract::Request,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use proto::{Prompt, prompt};
use service_kit::trace;
use tracing::{Instrument, Span, field};

use crate::{
    anthropic::{self, stream::MessageStream},
    engine::{
        adapters,
        mailbox::{Ending, Update, WakeAt},
        pipeline::{Arrival, InFlight},
    },
    envelope::{envelope, traceparent_of},
    error::{ApiError, json_response},
    gateway::Gateway,
    openai::{
        answer,
        chunk::ChunkWriter,
        completion::{Envelope, Ready},
        params::Limits,
        plan::{Dialect, Plan},
    },
    pooling,
    responses::{self, assembly::Assembly, background, stream::ResponseStream},
    server::{
        body,
        sse::{EventStream, OutputLog, Writer},
    },
};

/// Reads a body into pipeline requests and a plan.
pub trait Read: Fn(&[u8], &Limits, &Envelope) -> Result<Ready, ApiError> {}

impl<F: Fn(&[u8], &Limits, &Envelope) -> Result<Ready, ApiError>> Read for F {}

/// Answers one request of a generating route.
pub async fn answer(gateway: Arc<Gateway>, request: Request, read: impl Read) -> Response {
    attempt(gateway, request, read).await.unwrap_or_else(IntoResponse::into_response)
}

/// The same, for routes that write errors in shapes of their own.
pub async fn attempt(gateway: Arc<Gateway>, request: Request, read: impl Read) -> Result<Response, ApiError> {
    let span = tracing::info_span!("request", request_id = field::Empty, prompt_tokens = field::Empty);
    let (parts, body) = request.into_parts();
    let incoming = traceparent_of(&parts.headers);
    trace::set_parent(&span, incoming);
    async {
        let arrival = Arrival::now();
        let body = body::read_json(&gateway, &parts.headers, body).await?;
        let envelope = envelope(&gateway, &parts.headers, arrival, incoming)?;
        if !gateway.model.is_known() {
            return Err(ApiError::unavailable("The server is starting, try again."));
        }
        refuse_pooling(&gateway)?;
        let ready = adapters::read_with(&gateway, &body, |limits| read(&body, limits, &envelope)).await?;
        drop(body);
        Span::current().record("request_id", ready.plan.id.as_str());
        log_request(&gateway, &ready);
        run(&gateway, ready, arrival).await
    }
    .instrument(span)
    .await
}

/// Refuses to generate with a model that pools.
fn refuse_pooling(gateway: &Gateway) -> Result<(), ApiError> {
    // While it is not known, the engine says.
    match gateway.model.pooling() {
        Ok(Some(info)) => Err(ApiError::body(format!(
            "The model `{}` pools prompts and generates no text: use {}.",
            gateway.config.model_name(),
            pooling::routes_of(&info)
        ))),
        _ => Ok(()),
    }
}

async fn run(gateway: &Arc<Gateway>, ready: Ready, arrival: Arrival) -> Result<Response, ApiError> {
    let Ready { requests, plan } = ready;
    if let Dialect::Responses(turn) = &plan.dialect
        && turn.background
    {
        let in_flight = gateway.pipeline.submit(requests, WakeAt::Update, arrival)?;
        let assembly = Assembly::new(plan.clone(), turn.clone());
        return background::start(&gateway.responses, in_flight, assembly, gateway.config.keep_alive());
    }
    if plan.streaming.on {
        let in_flight = gateway.pipeline.submit(requests, WakeAt::Update, arrival)?;
        stream(gateway, in_flight, plan).await
    } else {
        let in_flight = gateway.pipeline.submit(requests, WakeAt::Ending, arrival)?;
        whole(gateway, in_flight, plan).await
    }
}

/// Streams. A request that fails before its first event is answered with a status code, not with a stream that breaks;
/// only a wait past the keep-alive interval opens the stream earlier.
async fn stream(gateway: &Gateway, in_flight: InFlight, plan: Plan) -> Result<Response, ApiError> {
    let keep_alive = gateway.config.keep_alive();
    let first = poll_fn(|context| in_flight.mailbox().poll_due(context));
    match keep_alive {
        Some(interval) => drop(tokio::time::timeout(interval, first).await),
        None => first.await,
    }
    if let Some(failure) = in_flight.mailbox().early_failure() {
        return Err(failure.into());
    }
    let log = gateway.config.answers.enable_log_outputs.then(|| OutputLog {
        request_id: plan.id.clone(),
        limit: gateway.config.answers.max_log_len.unwrap_or(usize::MAX),
        text: String::new(),
    });
    let writer = match plan.dialect.clone() {
        Dialect::OpenAi => Writer::Chunks(ChunkWriter::new(plan)),
        Dialect::Anthropic => Writer::Messages(Box::new(MessageStream::new(plan))),
        Dialect::Responses(turn) => {
            Writer::Responses(Box::new(ResponseStream::new(plan, turn, gateway.responses.clone())))
        }
    };
    let body = Body::new(EventStream::new(in_flight, writer, keep_alive, log));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((StatusCode::OK, headers, body).into_response())
}

async fn whole(gateway: &Gateway, in_flight: InFlight, plan: Plan) -> Result<Response, ApiError> {
    let mut update = Update::default();
    poll_fn(|context| in_flight.mailbox().poll(context, &mut update)).await;
    if let Some(Ending::Failed(failure)) = update.ending {
        return Err(failure.into());
    }
    if gateway.config.answers.enable_log_outputs {
        for (choice, growth) in &update.grown {
            let text = clip(gateway, &growth.text);
            tracing::info!(request_id = plan.id, choice, tokens = growth.tokens, text, "answer");
        }
    }
    let body = match plan.dialect.clone() {
        Dialect::OpenAi => answer::write(&plan, update),
        Dialect::Anthropic => anthropic::answer::write(&plan, update),
        Dialect::Responses(turn) => responses::stream::whole(plan, turn, &gateway.responses, update),
    };
    Ok(json_response(StatusCode::OK, body))
}

fn log_request(gateway: &Gateway, ready: &Ready) {
    for request in &ready.requests {
        tracing::debug!(request_id = request.request_id, n = request.n, "request sent");
    }
    if !gateway.config.answers.enable_log_requests {
        return;
    }
    for request in &ready.requests {
        let prompt = match &request.prompt {
            Some(Prompt { kind: Some(prompt::Kind::Text(text)), .. }) => clip(gateway, text).to_owned(),
            Some(Prompt { kind: Some(prompt::Kind::Chat(chat)), .. }) => clip(gateway, &chat.messages_json).to_owned(),
            Some(Prompt { kind: Some(prompt::Kind::Ids(ids)), .. }) => {
                let shown = gateway.config.answers.max_log_len.unwrap_or(usize::MAX).min(ids.ids.len());
                format!("{:?}", &ids.ids[..shown])
            }
            _ => String::new(),
        };
        let sampling = request.sampling.clone().unwrap_or_default();
        let (n, max_tokens) = (request.n, request.max_tokens);
        tracing::info!(request_id = request.request_id, prompt, n, ?max_tokens, ?sampling, "request");
    }
}

/// The beginning of a text, as long as the log may show.
fn clip<'t>(gateway: &Gateway, text: &'t str) -> &'t str {
    let Some(length) = gateway.config.answers.max_log_len else { return text };
    text.char_indices().nth(length).map_or(text, |(end, _)| &text[..end])
}
