//! The process's loop: take a step's tokens, decode them, send what they became.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures::FutureExt;
use link::LinkOptions;
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
    wire::{Doors, FromGateway, FromScheduler, Scheduler, listen},
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
    control.spawn(args.common.control.as_ref()).await?;
    process.status.not_ready("loading the tokenizer");
    let dir = args.files.tokenizer.clone().unwrap_or_else(|| args.files.model.clone());
    let tokenizer =
        tokio::task::spawn_blocking(move || Tokenizer::load(&dir)).await?.context("loading the tokenizer")?;
    info!(vocab_size = tokenizer.vocab_size(), shape = ?tokenizer.shape(), "tokenizer loaded");
    let options = LinkOptions { send_deadline: Duration::from_millis(args.send_deadline_ms), ..LinkOptions::default() };
    let message_limit = options.message_limit();
    let fingerprint = &args.fingerprint.model_fingerprint;
    let events = listen(&args.listen_events, "events", fingerprint, options).await.context("--listen-events")?;
    let tokens = listen(&args.listen_tokens, "tokens", fingerprint, LinkOptions::default()).await;
    let mut shell = Shell {
        metrics: DetokenizerMetrics::new(&process.metrics),
        process,
        streams: Streams::new(Arc::new(tokenizer)),
        gateways: Gateways::new(message_limit),
        doors: Doors::new(events),
        scheduler: Scheduler::new(tokens.context("--listen-tokens")?),
        output: Output::default(),
        live,
    };
    shell.run().await;
    Ok(())
}

/// The streams and their surroundings.
struct Shell {
    process: Process,
    streams: Streams,
    gateways: Gateways,
    doors: Doors,
    scheduler: Scheduler,
    output: Output,
    metrics: DetokenizerMetrics,
    live: watch::Sender<usize>,
}

impl Shell {
    async fn run(&mut self) {
        let shutdown = self.process.shutdown.clone();
        self.process.status.not_ready("no scheduler connected");
        loop {
            tokio::select! {
                event = self.doors.next() => self.gateway(event),
                event = self.scheduler.next() => self.scheduler(event),
                waited = self.gateways.waited() => {
                    if let Some(gateway) = self.gateways.resume(waited) {
                        self.streams.lost(gateway);
                    }
                }
                () = shutdown.cancelled() => break,
            }
            self.send();
        }
        self.streams.fail_all(&error::ending(), &mut self.output);
        self.send();
    }

    fn gateway(&mut self, event: FromGateway) {
        match event {
            FromGateway::Connected(connection) => {
                self.streams.connected(connection.gateway);
                self.gateways.connected(connection);
            }
            FromGateway::Left { gateway, number, reason } => {
                if self.gateways.left(gateway, number, &reason) {
                    self.streams.lost(gateway);
                }
            }
        }
    }

    fn scheduler(&mut self, event: FromScheduler) {
        let _scope = self.process.profile.scope("tokens");
        match event {
            FromScheduler::Connected { pid, replaced } => {
                info!(pid, "scheduler connected");
                if replaced {
                    self.streams.fail_all(&error::engine_lost(), &mut self.output);
                }
                self.process.status.ready();
            }
            FromScheduler::Batch(batch) => {
                let began = Instant::now();
                self.admit_gateways();
                self.streams.apply(batch, &mut self.output);
                for _ in 1..BATCHES_AT_ONCE {
                    let Some(batch) = self.scheduler.try_batch() else { break };
                    self.streams.apply(batch, &mut self.output);
                }
                self.process.status.advance();
                self.metrics.batches(began.elapsed());
            }
            FromScheduler::Lost(reason) => {
                match self.streams.len() {
                    0 => info!("scheduler left: {reason}"),
                    requests => warn!(requests, "scheduler lost: {reason}"),
                }
                self.process.status.not_ready("no scheduler connected");
                self.streams.fail_all(&error::engine_lost(), &mut self.output);
            }
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
                self.streams.lost(gateway);
            }
        }
        for key in self.gateways.unfit() {
            self.streams.give_up(&key, &mut self.output);
        }
        self.scheduler.reply(&mut self.output.stopped);
        self.metrics.state(&self.streams, &self.gateways);
        self.live.send_if_modified(|live| std::mem::replace(live, self.streams.len()) != self.streams.len());
    }
}
