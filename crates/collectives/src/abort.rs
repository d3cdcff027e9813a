//! Giving a group up from another thread: its waits end at once, on every rank.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use crate::segment::Segment;

/// Ends all waits of one group, those that go on and those to come. Made before the group forms, so that forming can be
/// ended too.
#[derive(Clone, Default)]
pub struct AbortHandle {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    aborted: AtomicBool,
    segment: Mutex<Option<Arc<Segment>>>,
}

impl AbortHandle {
    /// A handle of a group that is yet to form.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the group up. Never blocks on other ranks; doing it twice changes nothing.
    pub fn abort(&self) {
        self.state.aborted.store(true, SeqCst);
        let segment = self.state.segment.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(segment) = segment.as_ref() {
            segment.abort();
        }
    }

    /// Whether it was given up through this handle.
    pub fn is_aborted(&self) -> bool {
        self.state.aborted.load(SeqCst)
    }

    /// Ranks that others of the group wait for now: those that have come less far. Empty before the group has formed.
    pub fn missing(&self) -> Vec<usize> {
        let segment = self.state.segment.lock().unwrap_or_else(PoisonError::into_inner);
        segment.as_ref().map_or_else(Vec::new, |segment| segment.missing())
    }

    /// Ties the handle to the group's memory.
    pub(crate) fn attach(&self, segment: &Arc<Segment>) {
        *self.state.segment.lock().unwrap_or_else(PoisonError::into_inner) = Some(segment.clone());
        // An abort that came before it found no segment.
        if self.is_aborted() {
            segment.abort();
        }
    }

    /// Lets go of the group's memory.
    pub(crate) fn detach(&self) {
        *self.state.segment.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
