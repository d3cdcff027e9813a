//! Adapters on the host: read beside the compute thread, which copies them to the device.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use models::{Adapter, AdapterError, AdapterLayout};
use proto::{AdapterLoaded, LoadAdapter};
use tokio::sync::mpsc;
use tracing::{info, warn};

/// The adapters that plans may name. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct HostAdapters {
    held: Arc<Mutex<HashMap<String, Arc<Adapter>>>>,
}

impl HostAdapters {
    /// An adapter, if it is there.
    pub(crate) fn get(&self, adapter: &str) -> Option<Arc<Adapter>> {
        self.lock().get(adapter).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Adapter>>> {
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

/// Reads adapters, each in a task of its own.
pub(crate) struct AdapterLoader {
    host: HostAdapters,
    /// Where they come from.
    source: AdapterSource,
    layout: Option<Arc<AdapterLayout>>,
    sender: mpsc::UnboundedSender<AdapterLoaded>,
    /// Bounded by the scheduler, which asks for one answer a load.
    loaded: mpsc::UnboundedReceiver<AdapterLoaded>,
}

impl AdapterLoader {
    pub(crate) fn new(host: HostAdapters, source: AdapterSource) -> Self {
        let (sender, loaded) = mpsc::unbounded_channel();
        Self { host, source, layout: None, sender, loaded }
    }

    /// The model is loaded; absent: it takes no adapters.
    pub(crate) fn set_layout(&mut self, layout: Option<Arc<AdapterLayout>>) {
        self.layout = layout;
    }

    /// Begins to read an adapter; [`Self::next`] tells of its end.
    pub(crate) fn load(&self, LoadAdapter { adapter, path }: LoadAdapter) {
        let (host, layout, sender) = (self.host.clone(), self.layout.clone(), self.sender.clone());
        let source = self.source;
        tokio::task::spawn_blocking(move || {
            let read = match (&layout, source) {
                (None, _) => Err(AdapterError::Disabled),
                (Some(layout), AdapterSource::Folders) => layout.read(Path::new(&path)),
                (Some(layout), AdapterSource::Dummy(seed)) => Ok(layout.dummy(&adapter, seed)),
            };
            let error = match read {
                Ok(read) => {
                    info!(adapter, path, mib = read.bytes() >> 20, "adapter loaded");
                    host.lock().insert(adapter.clone(), Arc::new(read));
                    String::new()
                }
                Err(error) => {
                    warn!(adapter, path, "adapter refused: {error}");
                    error.to_string()
                }
            };
            // The process may be ending.
            let _ = sender.send(AdapterLoaded { adapter, error });
        });
    }

    /// The next adapter that was read, or refused.
    pub(crate) async fn next(&mut self) -> AdapterLoaded {
        match self.loaded.recv().await {
            Some(loaded) => loaded,
            None => std::future::pending().await,
        }
    }

    /// Lets go of an adapter; what the device holds stays.
    pub(crate) fn forget(&self, adapter: &str) {
        self.host.lock().remove(adapter);
    }

    /// A new group begins without adapters.
    pub(crate) fn forget_all(&self) {
        self.host.lock().clear();
    }
}
