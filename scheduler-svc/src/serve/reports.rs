//! What this engine tells those who choose among engines.

use std::collections::HashMap;

use proto::engine_report::State;
use sched_core::{BlockChange, Scheduler};

use super::Engine;
use crate::watchers::{Cache, Condition, News};

impl Engine {
    /// Tells who watches what has happened since the last time. The output and the ends of choices are as the core gave
    /// them.
    pub(super) fn report(&mut self) {
        let watch = !self.watchers.is_empty() || self.kv_events.is_some();
        if let Some(core) = self.core.as_mut().filter(|core| core.is_watched() != watch) {
            core.watch_blocks(watch);
        }
        if watch {
            let (condition, news) = (self.condition(), self.news());
            let core = self.core.as_ref();
            self.watchers.tell(condition, &news, || cache(core));
        }
    }

    fn condition(&self) -> Condition {
        let stats = self.core.as_ref().map(Scheduler::stats).unwrap_or_default();
        let state = if self.process.status.is_draining() {
            State::Draining
        } else if self.detokenizer.is_up() && self.group.is_formed() && !self.adapters.is_starting() {
            State::Ready
        } else {
            State::Waiting
        };
        Condition { state, running: stats.running, waiting: stats.waiting_for_capacity + stats.waiting_deferred }
    }

    fn news(&mut self) -> News {
        let mut news = News::default();
        news.started.extend(self.output.started.iter().filter_map(|started| started.key));
        news.ended.extend(self.finished.iter().filter(|choice| choice.is_last).map(|choice| choice.key));
        // While there is no detokenizer, they stay.
        if self.detokenizer.is_up() {
            news.ended.extend(self.output.failed.iter().filter_map(|failed| failed.key));
        }
        let changes: Vec<_> = self.core.iter_mut().flat_map(Scheduler::take_block_changes).collect();
        if changes.contains(&BlockChange::Cleared) {
            self.watchers.begin_anew();
        }
        (news.removed, news.stored) = outcome(&changes);
        if let (Some(kv_events), Some(core)) = (&mut self.kv_events, &self.core) {
            kv_events.tell(&changes, core.config());
        }
        news
    }
}

/// The names of blocks that cannot be found any more, and of those that can, after these changes.
fn outcome(changes: &[BlockChange]) -> (Vec<u64>, Vec<u64>) {
    let mut last = HashMap::new();
    for change in changes {
        match change {
            BlockChange::Stored(block) => drop(last.insert(block.name.unique().short(), true)),
            BlockChange::Removed(name) => drop(last.insert(name.unique().short(), false)),
            // Who is told begins anew.
            BlockChange::Cleared => last.clear(),
        }
    }
    let (stored, removed): (Vec<_>, Vec<_>) = last.into_iter().partition(|(_, found)| *found);
    let names = |blocks: Vec<(u64, bool)>| blocks.into_iter().map(|(name, _)| name).collect();
    (names(removed), names(stored))
}

fn cache(core: Option<&Scheduler>) -> Cache {
    let Some(core) = core.filter(|core| core.config().enable_prefix_caching) else { return Cache::default() };
    let config = core.config();
    let stored = core.stored_blocks().map(|hash| hash.short()).collect();
    Cache { model: config.model.clone(), block_size: config.block_size, stored }
}
