//! The process's life: load, then serve one scheduler after the other.

use std::sync::{Arc, OnceLock};

use anyhow::Context;
use proto::tokenizer_service_server::TokenizerServiceServer;
use service_kit::{
    Process,
    control::{ControlServer, Facts, Question},
};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::{
    config::Args,
    control::ControlHandler,
    metrics::TokenizerMetrics,
    model::Model,
    models::Models,
    pool::{Limits, Pool},
    schedulers::{FromScheduler, Schedulers},
    session::{End, Session, Shell},
    wire::Gateways,
};

/// Questions of the control plane that may wait.
const QUESTIONS: usize = 64;
/// Largest message of the control plane: prompts of `/tokenize`.
const MAX_CONTROL_MESSAGE: usize = 64 << 20;

/// Runs the tokenizer until the process shuts down.
///
/// # Errors
/// When the model's files cannot be used, or an address cannot be listened at.
pub async fn serve(args: Args, process: Process) -> anyhow::Result<()> {
    let limits = Limits { jobs: args.max_pending_requests as usize, bytes: args.max_pending_bytes };
    let pool = Pool::start(args.pool_size(), limits).context("starting the encoding threads")?;
    let ended = serve_with(args, process, &pool).await;
    pool.close();
    ended
}

async fn serve_with(args: Args, process: Process, pool: &Pool) -> anyhow::Result<()> {
    let (asked, mut questions) = mpsc::channel(QUESTIONS);
    let published: Arc<OnceLock<Models>> = Arc::default();
    let handler = ControlHandler { models: published.clone(), pool: pool.clone(), questions: asked };
    let facts = Facts { model_fingerprint: args.fingerprint.model_fingerprint.clone(), config_json: args.to_json() };
    let grpc = TokenizerServiceServer::new(handler.clone())
        .max_decoding_message_size(MAX_CONTROL_MESSAGE)
        .max_encoding_message_size(MAX_CONTROL_MESSAGE);
    let control = ControlServer::new(&process, Arc::new(handler)).facts(facts).with(grpc);
    control.spawn(&args.common.control).await?;
    process.status.not_ready("loading the tokenizer");
    let loading = args.clone();
    let model = Arc::new(tokio::task::spawn_blocking(move || Model::load(&loading)).await??);
    info!(vocab_size = model.info.vocab_size, has_chat_template = model.info.has_chat_template, "tokenizer loaded");
    let models = Models::new(model, args.clone());
    let _ = published.set(models.clone());
    let metrics = TokenizerMetrics::new(&process.metrics);
    let max_pending = args.max_pending_requests as usize;
    let shell = Shell { process, models, pool: pool.clone(), metrics, max_pending };
    engines(&args, &shell, &mut questions).await
}

/// Serves for as long as there is a scheduler, again and again.
async fn engines(args: &Args, shell: &Shell, questions: &mut mpsc::Receiver<Question>) -> anyhow::Result<()> {
    let mut schedulers = Schedulers::dial(args, &shell.process.links);
    loop {
        shell.process.status.not_ready("no scheduler connected");
        let event = tokio::select! {
            event = schedulers.next() => event,
            () = shell.process.shutdown.cancelled() => return Ok(()),
            () = answer_idle(questions) => return Ok(()),
        };
        if !matches!(event, FromScheduler::Up { .. }) {
            continue;
        }
        let gateways = Gateways::listen(args, &shell.process.links).await.context("--listen")?;
        shell.process.status.ready();
        match Session::new(args, shell, event).run(&mut schedulers, gateways, questions).await {
            End::Shutdown => return Ok(()),
            End::NoScheduler => warn!("no scheduler is left"),
        }
    }
}

/// Answers questions while there is nothing to do; ends only when the control plane is gone.
async fn answer_idle(questions: &mut mpsc::Receiver<Question>) {
    while let Some(question) = questions.recv().await {
        match question {
            Question::Abort { found, .. } => drop(found.send(false)),
            Question::Drained { done } => drop(done.send(())),
            Question::Unfinished { count } => drop(count.send(0)),
        }
    }
}
