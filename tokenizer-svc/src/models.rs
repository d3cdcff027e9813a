//! The model, and what adapters bring of their own: a tokenizer and perhaps a chat template, read when a request first
//! needs them.

use std::{
    path::Path,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use proto::{AdapterTokenizer, Failure};
use tracing::{info, warn};

use crate::{config::Args, error, model::Model};

/// Adapters whose tokenizers are kept; those of requests that are being encoded stay beyond it.
const MOST_KEPT: usize = 64;

/// All of them; cloning shares.
#[derive(Clone)]
pub(crate) struct Models {
    /// Without an adapter.
    pub(crate) base: Arc<Model>,
    args: Arc<Args>,
    /// Those of adapters, the one that was used last at the end.
    kept: Arc<Mutex<Vec<Kept>>>,
}

/// One of an adapter.
#[derive(Clone)]
struct Kept {
    fingerprint: String,
    /// Whoever comes first reads it, and the others wait for that.
    model: Arc<OnceLock<Result<Arc<Model>, String>>>,
}

impl Models {
    pub(crate) fn new(base: Arc<Model>, args: Args) -> Self {
        Self { base, args: Arc::new(args), kept: Arc::default() }
    }

    /// What a request's prompt is rendered and split by; absent: the model's. May take up to a second.
    pub(crate) fn of(&self, wanted: Option<&AdapterTokenizer>) -> Result<Arc<Model>, Failure> {
        let Some(wanted) = wanted else { return Ok(self.base.clone()) };
        let kept = self.find(&wanted.fingerprint);
        let loaded = kept.model.get_or_init(|| self.load(wanted)).clone();
        loaded.map_err(|reason| {
            // What is wrong now may be right when the next one asks.
            self.forget(&kept);
            error::unavailable(&format!("The adapter's own tokenizer cannot be used: {reason}."))
        })
    }

    /// The place of an adapter's, which is new where there is none.
    fn find(&self, fingerprint: &str) -> Kept {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|one| one.fingerprint == fingerprint);
        let new = || Kept { fingerprint: fingerprint.to_owned(), model: Arc::default() };
        let found = at.map_or_else(new, |at| kept.remove(at));
        kept.push(found.clone());
        if kept.len() > MOST_KEPT {
            kept.remove(0);
        }
        found
    }

    fn forget(&self, gone: &Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| !Arc::ptr_eq(&one.model, &gone.model));
    }

    fn load(&self, AdapterTokenizer { dir, fingerprint }: &AdapterTokenizer) -> Result<Arc<Model>, String> {
        let model = Model::of_adapter(&self.base, &self.args, Path::new(dir), fingerprint);
        match &model {
            Ok(model) => info!(dir, vocab_size = model.tokenizer.vocab_size(), "an adapter's tokenizer loaded"),
            Err(error) => warn!(dir, "an adapter's tokenizer: {error:#}"),
        }
        model.map(Arc::new).map_err(|error| format!("{error:#}"))
    }
}
