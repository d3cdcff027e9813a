//! The model's tokenizer, and those that adapters bring: read when an adapter is served, or when its first request
//! comes.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
};

use proto::AdapterTokenizer;
use tokenizer::{Tokenizer, TokenizerError};
use tracing::{info, warn};

/// Tokenizers of adapters that are kept; those of live requests stay beyond it.
const MOST_KEPT: usize = 64;

/// All tokenizers; cloning shares.
#[derive(Clone)]
pub(crate) struct Tokenizers {
    model: Arc<Tokenizer>,
    /// Those of adapters, the one that was used last at the end.
    kept: Arc<Mutex<Vec<Kept>>>,
}

/// One of an adapter.
struct Kept {
    fingerprint: String,
    state: State,
}

enum State {
    /// A thread reads it.
    Coming(JoinHandle<Result<Tokenizer, TokenizerError>>),
    Here(Arc<Tokenizer>),
}

impl Tokenizers {
    /// Of a model, without adapters.
    pub(crate) fn new(model: Arc<Tokenizer>) -> Self {
        Self { model, kept: Arc::default() }
    }

    /// Begins to read one, unless it is here: its adapter is served from here on.
    pub(crate) fn read_ahead(&self, wanted: AdapterTokenizer) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.iter().any(|one| one.fingerprint == wanted.fingerprint) {
            return;
        }
        let fingerprint = wanted.fingerprint.clone();
        let thread = std::thread::Builder::new().name("tokenizer".into()).spawn(move || load(&wanted));
        match thread {
            Ok(thread) => keep(&mut kept, Kept { fingerprint, state: State::Coming(thread) }),
            // It is read when it is needed.
            Err(error) => warn!("no thread reads an adapter's tokenizer ahead: {error}"),
        }
    }

    /// The one that a request's tokens become text by; absent: the model's. Waits where it is still being read.
    pub(crate) fn of(&self, wanted: Option<&AdapterTokenizer>) -> Result<Arc<Tokenizer>, TokenizerError> {
        let Some(wanted) = wanted else { return Ok(self.model.clone()) };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|one| one.fingerprint == wanted.fingerprint);
        let tokenizer = match at.map(|at| kept.remove(at).state) {
            Some(State::Here(tokenizer)) => tokenizer,
            Some(State::Coming(thread)) => match thread.join() {
                Ok(Ok(tokenizer)) => Arc::new(tokenizer),
                // What was wrong then may be right by now.
                _ => Arc::new(load(wanted)?),
            },
            None => Arc::new(load(wanted)?),
        };
        let (fingerprint, state) = (wanted.fingerprint.clone(), State::Here(tokenizer.clone()));
        keep(&mut kept, Kept { fingerprint, state });
        Ok(tokenizer)
    }
}

fn load(wanted: &AdapterTokenizer) -> Result<Tokenizer, TokenizerError> {
    let loaded = Tokenizer::load_unchanged(Path::new(&wanted.dir), &wanted.fingerprint);
    match &loaded {
        Ok(tokenizer) => info!(dir = wanted.dir, vocab_size = tokenizer.vocab_size(), "an adapter's tokenizer loaded"),
        Err(error) => warn!(dir = wanted.dir, "an adapter's tokenizer: {error}"),
    }
    loaded
}

/// Adds one behind all others, of which the one that was used longest ago may go.
fn keep(kept: &mut Vec<Kept>, one: Kept) {
    kept.push(one);
    if kept.len() > MOST_KEPT {
        kept.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_their_own_and_are_read_once() {
        let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/made");
        let dir = made.join("lora-vocab-saved");
        let model = Arc::new(Tokenizer::load(&made.join("rope_yarn")).expect("a tokenizer"));
        let tokenizers = Tokenizers::new(model.clone());
        let fingerprint = tokenizer::fingerprint(&dir).expect("files").expect("a tokenizer");
        let wanted = AdapterTokenizer { dir: dir.display().to_string(), fingerprint };
        assert!(Arc::ptr_eq(&tokenizers.of(None).expect("the model's"), &model));
        tokenizers.read_ahead(wanted.clone());
        let first = tokenizers.of(Some(&wanted)).expect("the adapter's");
        assert_eq!((first.token_to_id("<|sql|>"), model.token_to_id("<|sql|>")), (Some(64), None));
        tokenizers.read_ahead(wanted.clone());
        assert!(Arc::ptr_eq(&tokenizers.of(Some(&wanted)).expect("the same"), &first));
        let other = AdapterTokenizer { fingerprint: "another".into(), ..wanted };
        assert!(tokenizers.of(Some(&other)).is_err(), "other files");
        assert_eq!(tokenizers.kept.lock().expect("no panic").len(), 1);
    }
}
