//! The process's loop: take a step's tokens, decode them, send what they became.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures::FutureExt;
use link::LinkOptions;
use proto::TokenBatch;
use service_kit::{
    Process,
    control::{ControlServer, Facts},
};
use tokenizer::Tokenizer;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    config::Args,
    control::ControlHandler,
    error,
    gateways::Gateways,
    metrics::DetokenizerMetrics,
    streams::{Output, Streams},
    tokenizers::Tokenizers,
    wire::{Doors, FromGateway, FromScheduler, Schedulers, listen},
};

/// Steps handled before their events are sent, when the scheduler is ahead.
const BATCHES_AT_ONCE: usize = 8;

/// Runs the detokenizer until the process shuts down.
///
/// # Errors
/// When the tokenizer's files cannot be used, or an address cannot be listened at.
pub async fn serve(args: Args, process: Process) -> anyhow::Result<()> {
    let (live, watching) = watch::channel(0);
    let facts = Facts { model_fingerprint: args.fingerprint.model_fingerprint.clone(), config_json: args.to_json() };
    let control = ControlServer::new(&process, Arc::new(ControlHandler { live: watching })).facts(facts);
    control.spawn(&args.common.control).await?;
    process.status.not_ready("loading the tokenizer");
    let dir = args.files.tokenizer.clone().unwrap_or_else(|| args.files.model.clone());
    let tokenizer =
        tokio::task::spawn_blocking(move || Tokenizer::load(&dir)).await?.context("loading the tokenizer")?;
    info!(vocab_size = tokenizer.vocab_size(), shape = ?tokenizer.shape(), "tokenizer loaded");
    let links = process.links.clone();
    let options = LinkOptions { send_deadline: Duration::from_millis(args.send_deadline_ms), ..links.clone() };
    let message_limit = options.message_limit();
    let events = listen(&args.listen_events, "events", &args, options).await.context("--listen-events")?;
    let tokens = listen(std::slice::from_ref(&args.listen_tokens), "tokens", &args, links).await;
    let mut shell = Shell {
        metrics: DetokenizerMetrics::new(&process.metrics),
        process,
        tokenizers: Tokenizers::new(Arc::new(tokenizer)),
        engines: BTreeMap::new(),
        gateways: Gateways::new(message_limit),
        doors: Doors::new(events),
        schedulers: Schedulers::new(tokens.context("--listen-tokens")?),
        output: Output::default(),
        live,
    };
    shell.run().await;
    Ok(())
}

/// The streams and their surroundings.
struct Shell {
    process: Process,
    tokenizers: Tokenizers,
    /// By data-parallel rank: all that have ever been here.
    engines: BTreeMap<u32, Engine>,
    gateways: Gateways,
    doors: Doors,
    schedulers: Schedulers,
    output: Output,
    metrics: DetokenizerMetrics,
    live: watch::Sender<usize>,
}

/// What belongs to one engine.
struct Engine {
    streams: Streams,
    /// Sequences that its scheduler is to be told of.
    stopped: Vec<u64>,
}

impl Shell {
    async fn run(&mut self) {
        let shutdown = self.process.shutdown.clone();
        self.process.status.not_ready("no scheduler connected");
        loop {
            tokio::select! {
                event = self.doors.next() => self.gateway(event),
                event = self.schedulers.next() => self.scheduler(event),
                waited = self.gateways.waited() => {
                    if let Some(gateway) = self.gateways.resume(waited) {
                        lost(&mut self.engines, gateway);
                    }
                }
                () = shutdown.cancelled() => break,
            }
            self.send();
        }
        for engine in self.engines.values_mut() {
            engine.streams.fail_all(&error::ending(), &mut self.output);
        }
        self.output.tell_all_lost(self.gateways.ids(), &error::ending());
        self.send();
    }

    fn gateway(&mut self, event: FromGateway) {
        match event {
            FromGateway::Connected(connection) => {
                self.engines.values_mut().for_each(|engine| engine.streams.connected(connection.gateway));
                self.gateways.connected(connection);
            }
            FromGateway::Left { gateway, number, reason } => {
                if self.gateways.left(gateway, number, &reason) {
                    lost(&mut self.engines, gateway);
                }
            }
        }
    }

    fn scheduler(&mut self, event: FromScheduler) {
        let _scope = self.process.profile.scope("tokens");
        match event {
            FromScheduler::Connected { engine, pid, replaced } => {
                info!(engine, pid, "scheduler connected");
                if replaced {
                    self.engine_lost(engine);
                }
                self.engines.entry(engine).or_insert_with(|| {
                    let mut streams = Streams::new(self.tokenizers.clone(), engine);
                    self.gateways.ids().for_each(|gateway| streams.connected(gateway));
                    Engine { streams, stopped: Vec::new() }
                });
                self.process.status.ready();
            }
            FromScheduler::Batch { engine, batch } => self.batch(engine, batch),
            FromScheduler::Lost { engine, reason } => {
                match self.engines.get(&engine).map_or(0, |engine| engine.streams.len()) {
                    0 => info!(engine, "scheduler left: {reason}"),
                    requests => warn!(engine, requests, "scheduler lost: {reason}"),
                }
                if self.schedulers.is_empty() {
                    self.process.status.not_ready("no scheduler connected");
                }
                self.engine_lost(engine);
            }
        }
    }

    fn batch(&mut self, number: u32, batch: TokenBatch) {
        let began = Instant::now();
        self.admit_gateways();
        // It has connected before it sends.
        let Some(engine) = self.engines.get_mut(&number) else { return };
        engine.streams.apply(batch, &mut self.output);
        for _ in 1..BATCHES_AT_ONCE {
            let Some(batch) = self.schedulers.try_batch(number) else { break };
            engine.streams.apply(batch, &mut self.output);
        }
        engine.streams.flush(&mut self.output);
        engine.stopped.append(&mut self.output.stopped);
        self.process.status.advance();
        self.metrics.batches(began.elapsed());
    }

    /// Fails what an engine had. Where no other is there, gateways hear that all is lost, what no engine has begun
    /// included; else the tokenizer says what else was there.
    fn engine_lost(&mut self, number: u32) {
        let Some(engine) = self.engines.get_mut(&number) else { return };
        engine.streams.fail_all(&error::engine_lost(), &mut self.output);
        engine.stopped.clear();
        if !self.schedulers.has_other_than(number) {
            self.output.tell_all_lost(self.gateways.ids(), &error::engine_lost());
        }
    }

    /// A gateway connects before it sends its first request; so it is let in before that request's first event is
    /// handled.
    fn admit_gateways(&mut self) {
        while let Some(event) = self.doors.next().now_or_never() {
            self.gateway(event);
        }
    }

    /// Sends what was made since the last time.
    fn send(&mut self) {
        for (gateway, events) in self.output.events.drain(..) {
            if !self.gateways.send(gateway, events) {
                lost(&mut self.engines, gateway);
            }
        }
        for key in self.gateways.unfit() {
            for engine in self.engines.values_mut() {
                engine.streams.give_up(&key, &mut self.output);
                engine.stopped.append(&mut self.output.stopped);
            }
        }
        for (number, engine) in &mut self.engines {
            self.schedulers.reply(*number, &mut engine.stopped);
        }
        self.metrics.state(self.engines.values().map(|engine| &engine.streams), &self.gateways);
        let requests = self.engines.values().map(|engine| engine.streams.len()).sum();
        self.live.send_if_modified(|live| std::mem::replace(live, requests) != requests);
    }
}

/// The events of a gateway are not read any more.
fn lost(engines: &mut BTreeMap<u32, Engine>, gateway: u64) {
    engines.values_mut().for_each(|engine| engine.streams.lost(gateway));
}
