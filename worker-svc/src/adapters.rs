//! Adapters on the host: read beside the compute thread, which copies them to the device.

use std::{
    collections::{HashMap, VecDeque},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use models::{Adapter, AdapterError, AdapterLayout};
use proto::{AdapterLoad, AdapterLoaded, AdapterTokenizer, LoadAdapter, StepPlan};
use tokenizer::{Tokenizer, TokenizerError};
use tokio::sync::{Semaphore, mpsc};
use tracing::{info, warn};

/// The adapters that plans may name. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct HostAdapters {
    held: Arc<Mutex<Held>>,
}

/// What the host keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldAdapters {
    pub count: usize,
    pub bytes: u64,
}

#[derive(Default)]
struct Held {
    adapters: HashMap<String, Arc<Adapter>>,
    /// For plans that have come and are not carried out yet, in their order: what a plan names may be dropped before
    /// its turn comes.
    planned: VecDeque<(String, Arc<Adapter>)>,
    /// Grows with every group; what an earlier one asked for is dropped when it comes.
    group: u64,
}

impl HostAdapters {
    /// A plan has come: keeps what it names until [`Self::take_planned`] asks for it.
    pub(crate) fn keep_planned(&self, plan: &StepPlan) {
        if plan.adapters.is_empty() {
            return;
        }
        let mut held = self.lock();
        for AdapterLoad { adapter, .. } in &plan.adapters {
            if let Some(found) = held.adapters.get(adapter).cloned() {
                held.planned.push_back((adapter.clone(), found));
            }
        }
    }

    /// An adapter that the plan names whose turn it is, if it was there when the plan came.
    pub(crate) fn take_planned(&self, adapter: &str) -> Option<Arc<Adapter>> {
        let planned = &mut self.lock().planned;
        let at = planned.iter().position(|(name, _)| name == adapter)?;
        planned.remove(at).map(|(_, found)| found)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where adapters come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AdapterSource {
    Folders,
    /// Random numbers of this seed, whatever the path: the model's weights are random, too.
    Dummy(u64),
}

/// Adapters that are read at a time: each takes the memory of its file meanwhile.
const MOST_READS: usize = 4;

/// Reads adapters, a few at a time.
pub(crate) struct AdapterLoader {
    host: HostAdapters,
    /// Where they come from.
    source: AdapterSource,
    layout: Option<Arc<AdapterLayout>>,
    room: Arc<Semaphore>,
    sender: mpsc::UnboundedSender<Answer>,
    /// Bounded by the scheduler, which asks for one answer a load.
    loaded: mpsc::UnboundedReceiver<Answer>,
}

/// An adapter that is to be read.
struct Reading {
    host: HostAdapters,
    layout: Option<Arc<AdapterLayout>>,
    source: AdapterSource,
    group: u64,
}

impl Reading {
    /// Takes as long as reading a file does. Absent: the group that asked is gone.
    fn read(self, LoadAdapter { adapter, path }: LoadAdapter) -> Option<AdapterLoaded> {
        if self.host.lock().group != self.group {
            return None;
        }
        let read = match (&self.layout, self.source) {
            (None, _) => Err(AdapterError::Disabled.into()),
            (Some(layout), AdapterSource::Folders) => read_folder(layout, Path::new(&path)),
            (Some(layout), AdapterSource::Dummy(seed)) => Ok((layout.dummy(&adapter, seed), None)),
        };
        Some(match read {
            Ok((read, tokenizer)) => {
                info!(adapter, path, kib = read.bytes() >> 10, own_tokens = read.vocab_size(), "adapter loaded");
                let fingerprint = match &tokenizer {
                    Some(tokenizer) => format!("{} {}", read.fingerprint(), tokenizer.fingerprint),
                    None => read.fingerprint().to_owned(),
                };
                let vocab_size = read.vocab_size().unwrap_or(0) as u32;
                let mut held = self.host.lock();
                if held.group == self.group {
                    held.adapters.insert(adapter.clone(), Arc::new(read));
                }
                AdapterLoaded { adapter, fingerprint, vocab_size, tokenizer, ..AdapterLoaded::default() }
            }
            Err(error) => {
                warn!(adapter, path, "adapter refused: {error}");
                let not_found = matches!(error, ReadError::Adapter(AdapterError::NotFound { .. }));
                AdapterLoaded { adapter, error: error.to_string(), not_found, ..AdapterLoaded::default() }
            }
        })
    }
}

/// Why an adapter is not read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("the adapter's own tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error(
        "the adapter's own tokenizer, {dir}, names token {token}, and its embedding has {rows} rows: save the \
         embedding with as many rows as the tokenizer has tokens"
    )]
    Beyond { dir: String, token: u32, rows: usize },
}

/// An adapter and, where it has an embedding or a head of its own with room for other tokens, its tokenizer.
fn read_folder(layout: &AdapterLayout, dir: &Path) -> Result<(Adapter, Option<AdapterTokenizer>), ReadError> {
    let adapter = layout.read(dir)?;
    let Some(rows) = adapter.vocab_size().filter(|_| layout.extra_vocab() > 0) else { return Ok((adapter, None)) };
    let Some(fingerprint) = tokenizer::fingerprint(dir)? else { return Ok((adapter, None)) };
    let (tokens, dir) = (Tokenizer::load_unchanged(dir, &fingerprint)?.vocab_size(), dir.display().to_string());
    match tokens as usize > rows {
        true => Err(ReadError::Beyond { dir, token: tokens - 1, rows }),
        false => Ok((adapter, Some(AdapterTokenizer { dir, fingerprint }))),
    }
}

/// What a group is told.
struct Answer {
    group: u64,
    loaded: AdapterLoaded,
}

impl AdapterLoader {
    pub(crate) fn new(host: HostAdapters, source: AdapterSource) -> Self {
        let (sender, loaded) = mpsc::unbounded_channel();
        Self { host, source, layout: None, room: Arc::new(Semaphore::new(MOST_READS)), sender, loaded }
    }

    /// The model is loaded; absent: it takes no adapters.
    pub(crate) fn set_layout(&mut self, layout: Option<Arc<AdapterLayout>>) {
        self.layout = layout;
    }

    /// Reads an adapter as soon as there is room; [`Self::next`] tells of its end.
    pub(crate) fn load(&self, load: LoadAdapter) {
        let (room, sender, group) = (self.room.clone(), self.sender.clone(), self.host.lock().group);
        let reading = Reading { host: self.host.clone(), layout: self.layout.clone(), source: self.source, group };
        tokio::spawn(async move {
            let Ok(_permit) = room.acquire_owned().await else { return };
            let adapter = load.adapter.clone();
            let read = tokio::task::spawn_blocking(move || reading.read(load)).await;
            let loaded = read.unwrap_or_else(|error| {
                let error = format!("reading it ended early: {error}");
                Some(AdapterLoaded { adapter, error, ..AdapterLoaded::default() })
            });
            if let Some(loaded) = loaded {
                // The process may be ending.
                let _ = sender.send(Answer { group, loaded });
            }
        });
    }

    /// The next adapter that was read, or refused.
    pub(crate) async fn next(&mut self) -> AdapterLoaded {
        while let Some(Answer { group, loaded }) = self.loaded.recv().await {
            if group == self.host.lock().group {
                return loaded;
            }
        }
        std::future::pending().await
    }

    /// A plan of this group has come.
    pub(crate) fn planned(&self, plan: &StepPlan) {
        self.host.keep_planned(plan);
    }

    /// What is on the host now.
    pub(crate) fn held(&self) -> HeldAdapters {
        let held = self.host.lock();
        HeldAdapters { count: held.adapters.len(), bytes: held.adapters.values().map(|adapter| adapter.bytes()).sum() }
    }

    /// Lets go of an adapter; what the device holds stays, and what plans name that have come.
    pub(crate) fn forget(&self, adapter: &str) {
        self.host.lock().adapters.remove(adapter);
    }

    /// A new group begins without adapters.
    pub(crate) fn forget_all(&self) {
        let mut held = self.host.lock();
        held.adapters.clear();
        held.planned.clear();
        held.group += 1;
    }
}
