//! Adapters that are named by Hugging Face ids: found in the local cache, or downloaded into it as models are.

use std::path::PathBuf;

use model_source::{Need, Options, Quiet, SourceError};
use tokio::{runtime::Handle, sync::mpsc};
use tracing::info;

use super::{LoadFailed, downloads::Downloads};
use crate::wire::Event;

/// Downloads at a time.
const MOST_DOWNLOADS: usize = 4;

/// An adapter's folder, or why there is none.
pub(crate) struct Found {
    /// Its Hugging Face id.
    pub id: String,
    pub folder: Result<PathBuf, LoadFailed>,
}

/// Where adapters come from that are no folders.
pub(crate) struct Hub {
    options: Options,
    events: mpsc::Sender<Event>,
    downloads: Downloads,
}

impl Hub {
    pub(crate) fn new(options: Options, events: mpsc::Sender<Event>) -> Self {
        Self { options, events, downloads: Downloads::new(MOST_DOWNLOADS) }
    }

    /// Looks for an adapter as soon as there is room; [`Event::AdapterFound`] tells of its end.
    pub(crate) fn find(&mut self, identity: &str, id: &str) {
        self.downloads.ask(identity, id);
        self.begin();
    }

    /// The identities that what was found is for.
    pub(crate) fn found(&mut self, id: &str) -> Vec<String> {
        self.downloads.done(id)
    }

    /// Goes on with what waits, but for identities that are no longer wanted; those.
    pub(crate) fn go_on(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let dropped = self.downloads.drop_unwanted(is_wanted);
        self.begin();
        dropped
    }

    fn begin(&mut self) {
        while let Some(id) = self.downloads.next() {
            self.download(id);
        }
    }

    fn download(&self, id: String) {
        let (options, events, runtime) = (self.options.clone(), self.events.clone(), Handle::current());
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
            let _ = events.blocking_send(Event::AdapterFound(Found { id, folder }));
        });
    }
}
