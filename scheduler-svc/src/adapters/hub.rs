//! Adapters that are named by Hugging Face ids: found in the local cache, or downloaded into it as models are.

use std::path::PathBuf;

use model_source::{Need, Options, Quiet, SourceError};
use tokio::{runtime::Handle, sync::mpsc};
use tracing::info;

use super::LoadFailed;
use crate::wire::Event;

/// An adapter's folder, or why there is none.
pub(crate) struct Found {
    /// Who it is for.
    pub identity: String,
    pub folder: Result<PathBuf, LoadFailed>,
}

/// Where adapters come from that are no folders.
pub(crate) struct Hub {
    options: Options,
    events: mpsc::Sender<Event>,
}

impl Hub {
    pub(crate) fn new(options: Options, events: mpsc::Sender<Event>) -> Self {
        Self { options, events }
    }

    /// Begins to look for an adapter; [`Event::AdapterFound`] tells of its end.
    pub(crate) fn find(&self, identity: &str, id: &str) {
        let (options, events) = (self.options.clone(), self.events.clone());
        let (identity, id, runtime) = (identity.to_owned(), id.to_owned(), Handle::current());
        // A thread of its own: the end of the process does not wait for a download.
        std::thread::spawn(move || {
            let found = runtime.block_on(model_source::resolve(Some(&id), Need::Adapter, &options, &Quiet));
            let folder = found.map(|found| {
                info!(id, folder = %found.path.display(), origin = ?found.origin, "adapter found");
                found.path
            });
            let folder = folder.map_err(|error| LoadFailed {
                not_found: matches!(error, SourceError::NotFound { .. }),
                reason: error.to_string(),
            });
            // The process may be ending.
            let _ = events.blocking_send(Event::AdapterFound(Found { identity, folder }));
        });
    }
}
