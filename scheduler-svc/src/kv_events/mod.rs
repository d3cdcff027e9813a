//! KV cache events for routers of others: ZeroMQ messages in vLLM's format (`--kv-events-config`).
//!
//! A message is `topic, number, batch`; the number counts batches of this process from 0, in eight bytes, big-endian.
//! Who finds one missing asks at the replay endpoint for all from that number on, and gets `number, batch` for each
//! that is kept, and -1 at the end. Subscribers are no members of the engine: every client that reaches the port is
//! told, tokens of prompts included.

mod batch;
mod peers;
mod settings;
mod zmtp;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use bytes::Bytes;
use sched_core::{BlockChange, Config};
use service_kit::Process;
use tokio::sync::mpsc;
use tracing::{info, warn};

use batch::{EventBatch, KvEvent};
use peers::Subscribers;
pub use settings::KvEventsConfig;
use settings::{Endpoint, Place, Settings};

/// Bytes of batches that are kept for replays, at most.
const KEPT_BYTES: usize = 256 << 20;

/// Publishes what happens to the prefix cache.
pub(crate) struct KvEvents {
    batches: mpsc::Sender<Vec<KvEvent>>,
    /// A batch found no room: subscribers are to forget what they know.
    lost: bool,
}

/// The latest batches, by number.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<KeptBatches>>);

#[derive(Default)]
struct KeptBatches {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl KvEvents {
    /// Begins to publish, if the flag says so.
    pub(crate) async fn start(config: &KvEventsConfig, rank: u32, process: &Process) -> anyhow::Result<Option<Self>> {
        let settings = config.of_rank(rank).map_err(anyhow::Error::msg).context("--kv-events-config")?;
        let Some(settings) = settings else { return Ok(None) };
        let (subscribers, kept) = (Subscribers::default(), Kept::default());
        let serving = process.shutdown.clone();
        let endpoint = settings.endpoint.clone();
        let publishing = peers::publish(endpoint, subscribers.clone(), settings.hwm).await;
        tokio::spawn(serving.clone().run_until_cancelled_owned(publishing.context("--kv-events-config: endpoint")?));
        if let Some(place) = &settings.replay_endpoint {
            let replaying = peers::replay(place.clone(), kept.clone()).await;
            let replaying = replaying.context("--kv-events-config: replay_endpoint")?;
            tokio::spawn(serving.clone().run_until_cancelled_owned(replaying));
        }
        info!(endpoint = %settings.endpoint, topic = settings.topic, "publishing KV cache events");
        let (batches, queue) = mpsc::channel(settings.max_queue_size);
        tokio::spawn(serving.run_until_cancelled_owned(write(queue, settings, rank, subscribers, kept)));
        Ok(Some(Self { batches, lost: false }))
    }

    /// Says what changed, and never waits: where the queue is full, subscribers are told later that what they know is
    /// void.
    pub(crate) fn tell(&mut self, changes: &[BlockChange], config: &Config) {
        let mut events = batch::events(changes, config);
        if events.is_empty() {
            return;
        }
        if self.lost {
            events.insert(0, KvEvent::AllBlocksCleared {});
        }
        let told = self.batches.try_send(events).is_ok();
        if !told && !self.lost {
            warn!("KV cache events are lost: max_queue_size of --kv-events-config batches wait");
        }
        self.lost = !told;
    }
}

/// Numbers batches, keeps them, and gives them to all who subscribe.
async fn write(
    mut queue: mpsc::Receiver<Vec<KvEvent>>,
    settings: Settings,
    rank: u32,
    subscribers: Subscribers,
    kept: Kept,
) {
    let mut number = 0_u64;
    while let Some(events) = queue.recv().await {
        let batch = Bytes::from(EventBatch(unix_seconds(), events, rank).encode());
        let topic = settings.topic.as_bytes();
        subscribers.send(topic, zmtp::message(&[topic, &number.to_be_bytes(), &batch]).into());
        kept.push(number, batch, settings.buffer_steps);
        number += 1;
    }
}

impl Kept {
    fn lock(&self) -> MutexGuard<'_, KeptBatches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, number: u64, batch: Bytes, most: usize) {
        let mut kept = self.lock();
        kept.bytes += batch.len();
        kept.batches.push_back((number, batch));
        while kept.batches.len() > most || kept.bytes > KEPT_BYTES {
            let Some((_, oldest)) = kept.batches.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }

    /// All from this number on.
    fn since(&self, number: u64) -> Vec<(u64, Bytes)> {
        self.lock().batches.iter().filter(|(kept, _)| *kept >= number).cloned().collect()
    }
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
