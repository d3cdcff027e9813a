//! Scheduler and workers without HTTP and text: this process takes the places of tokenizer and detokenizer, and speaks
//! token ids.

use std::{
    collections::HashMap,
    ops::Range,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Command, FromArgMatches};
use link::{Address, Link, LinkOptions, Listener, Sender};
use proto::{DetokenizerReply, Inbound, Output, Prompt, RequestKey, Sampling, TokenBatch, TokenIds, inbound, prompt};
use service_kit::{CancellationToken, control::ControlClient};

use super::{
    Found,
    engine::{Engine, Role},
    find,
    flags::Settings,
    gateways::Gateways,
    members,
    nodes::Nodes,
    replicas::Replicas,
    runtime_dir::RuntimeDir,
    screen::{Form, Screen},
    supervisor::Supervisor,
};
use crate::environment::Environment;

/// A prompt, and how many tokens are to follow it.
#[derive(Clone, Debug)]
pub struct Request {
    pub prompt: Vec<u32>,
    pub output_len: u32,
    /// The adapter's name; empty: the model alone.
    pub adapter: String,
}

/// What a request gave. Times count from the moment that all requests were there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Generated {
    pub tokens: usize,
    /// When the first token came.
    pub first: Duration,
    /// When the last one came.
    pub last: Duration,
}

/// The running processes, ready to generate.
pub struct Offline {
    supervisor: Supervisor,
    requests: Link<Inbound, Inbound>,
    tokens: Link<DetokenizerReply, TokenBatch>,
    /// Batches that it has brought.
    batches: u64,
    next: u64,
    /// Tokens that the model knows.
    pub vocab_size: u32,
    /// Names of the adapters that are served.
    pub adapters: Vec<String>,
    _runtime_dir: RuntimeDir,
}

/// What an engine without HTTP and text stands on.
struct Ground {
    found: Found,
    runtime_dir: RuntimeDir,
    program: PathBuf,
}

impl Ground {
    async fn lay(settings: &Settings, environment: &Environment, screen: &Screen) -> anyhow::Result<Self> {
        if Nodes::read(settings)?.is_some() {
            bail!("--nnodes: this runs on one node; leave the flag out");
        }
        if Replicas::read(settings)? != Replicas::ONE {
            bail!("--data-parallel-size: this runs one engine; leave the flag out");
        }
        let runtime_dir =
            RuntimeDir::create(environment.runtime_dir.as_deref()).context("cannot make a folder for sockets")?;
        let found = find(settings, environment, runtime_dir.path(), screen).await?;
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        Ok(Self { found, runtime_dir, program })
    }

    fn engine<'a>(&'a self, settings: &'a Settings) -> Engine<'a> {
        Engine {
            settings,
            model: &self.found.model,
            tokenizer: None,
            fingerprint: &self.found.fingerprint,
            runtime_dir: &self.runtime_dir,
            port: None,
            program: &self.program,
            nodes: None,
            replicas: Replicas::ONE,
            gateways: Gateways::default(),
        }
    }
}

/// The flags of a single worker for a user's flags, and the folder that it may need until its end.
pub async fn worker(settings: &Settings, environment: &Environment) -> anyhow::Result<(worker_svc::Args, RuntimeDir)> {
    let screen = Screen::new(Form::Text);
    let ground = Ground::lay(settings, environment, &screen).await?;
    let engine = ground.engine(settings);
    let role = Role::Worker(0);
    let own = |word: &String| *word != role.word() && !word.starts_with("--supervised-by");
    let words = engine.spec(role).args.into_iter().filter(own);
    let command = worker_svc::Args::augment_args(Command::new(role.word()).no_binary_name(true));
    let args = worker_svc::Args::from_arg_matches(&command.try_get_matches_from(words)?)?;
    Ok((args, ground.runtime_dir))
}

impl Offline {
    /// Starts scheduler and workers with a user's flags, and waits until they are ready; `None` when the user ends it
    /// before that.
    pub async fn start(
        settings: &Settings,
        environment: &Environment,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Option<Self>> {
        let screen = Arc::new(Screen::new(Form::Text));
        let ground = Ground::lay(settings, environment, &screen).await?;
        let engine = ground.engine(settings);
        let ring = |name| Address::Ring(ground.runtime_dir.socket(name));
        let hello = |service, channel| link::hello(service, channel, &ground.found.fingerprint);
        let mut listener =
            Listener::bind(&ring("tokens"), hello("detokenizer-svc", "tokens"), LinkOptions::default()).await?;
        let roles = engine.roles().into_iter().filter(|role| matches!(role, Role::Scheduler(_) | Role::Worker(_)));
        let mut supervisor = Supervisor::start(members(&engine, roles)?, screen);
        let connected = async {
            let tokens = listener.accept().await?;
            let requests =
                link::redial(&ring("encoded"), hello("tokenizer-svc", "requests"), &LinkOptions::default()).await;
            anyhow::Ok((tokens, requests))
        };
        let started = async { tokio::try_join!(supervisor.ready(shutdown), connected) };
        let (tokens, requests) = match started.await {
            Ok((Some(_), links)) => links,
            Ok((None, _)) => return supervisor.end().await.map(|()| None),
            Err(error) => {
                supervisor.abort().await;
                return Err(error);
            }
        };
        let scheduler = ControlClient::new(&engine.control(Role::Scheduler(0)), &LinkOptions::default())?;
        let vocab_size = scheduler.info().await?.model.context("the scheduler knows no model")?.vocab_size;
        let adapters = scheduler.adapters("").await?.adapters.into_iter().map(|adapter| adapter.name).collect();
        Ok(Some(Self {
            supervisor,
            requests,
            tokens,
            batches: 0,
            next: 0,
            vocab_size,
            adapters,
            _runtime_dir: ground.runtime_dir,
        }))
    }

    /// Sends all requests at once and waits for the last token.
    pub async fn generate(&mut self, requests: &[Request], sampling: &Sampling) -> anyhow::Result<Vec<Generated>> {
        let first = self.next;
        self.next += requests.len() as u64;
        let start = Instant::now();
        let sending = send(&mut self.requests.sender, requests, sampling, first);
        let receiving = receive(&mut self.tokens, &mut self.batches, first..self.next, start);
        let ((), generated) = tokio::try_join!(sending, receiving)?;
        Ok(generated)
    }

    /// Ends the processes.
    pub async fn end(self) -> anyhow::Result<()> {
        self.supervisor.end().await
    }
}

async fn send(
    sender: &mut Sender<Inbound>,
    requests: &[Request],
    sampling: &Sampling,
    first: u64,
) -> anyhow::Result<()> {
    for (request, number) in requests.iter().zip(first..) {
        let request = proto::Request {
            key: Some(RequestKey { gateway: 1, number }),
            request_id: format!("bench-{number}"),
            prompt: Some(Prompt {
                kind: Some(prompt::Kind::Ids(TokenIds { ids: request.prompt.clone() })),
                ..Prompt::default()
            }),
            sampling: Some(sampling.clone()),
            output: Some(Output { stream: true, ..Output::default() }),
            n: 1,
            max_tokens: Some(request.output_len),
            adapter: request.adapter.clone(),
            ..proto::Request::default()
        };
        sender.send(&Inbound { event: Some(inbound::Event::Request(request)) }).await?;
    }
    Ok(())
}

/// Takes tokens until the requests of these numbers have ended. Counts the batches that bring them.
async fn receive(
    tokens: &mut Link<DetokenizerReply, TokenBatch>,
    batches: &mut u64,
    numbers: Range<u64>,
    start: Instant,
) -> anyhow::Result<Vec<Generated>> {
    let first = numbers.start;
    let mut unfinished = (numbers.end - first) as usize;
    let mut generated = vec![Generated::default(); unfinished];
    let mut running = HashMap::new();
    while unfinished > 0 {
        let batch = tokens.receiver.recv().await.context("the scheduler is gone")?;
        let now = start.elapsed();
        *batches += 1;
        for started in &batch.started {
            let number = started.key.as_ref().map_or(0, |key| key.number);
            running.insert(started.first_sequence, number.checked_sub(first).map(|place| place as usize));
        }
        for sequence in &batch.sequence {
            let Some(one) = running.get(sequence).and_then(|place| generated.get_mut((*place)?)) else { continue };
            one.first = if one.tokens == 0 { now } else { one.first };
            (one.tokens, one.last) = (one.tokens + 1, now);
        }
        for finished in &batch.finished {
            unfinished -= usize::from(running.remove(&finished.sequence).is_some());
        }
        if let Some(failed) = batch.failed.first() {
            bail!(failed.failure.as_ref().map_or_else(|| anyhow!("a request failed"), |f| anyhow!("{}", f.message)));
        }
        if !batch.finished.is_empty() {
            let reply = DetokenizerReply { batches: *batches, ..DetokenizerReply::default() };
            tokens.sender.send(&reply).await.context("the scheduler is gone")?;
        }
    }
    Ok(generated)
}
