//! Who is told what happens in this engine: tokenizers that choose among several.

use proto::{EngineReport, RequestKey, engine_report::State};
use tokio::sync::mpsc;
use tracing::warn;

/// Names of blocks in one report.
const BLOCKS: usize = 1 << 14;

/// All who watch.
#[derive(Default)]
pub(crate) struct Watchers {
    all: Vec<Watcher>,
    last: Condition,
}

struct Watcher {
    connection: u64,
    reports: mpsc::Sender<EngineReport>,
    /// Reports that it was given.
    sequence: u64,
    /// It is to be told of the whole prefix cache.
    anew: bool,
    /// The last report that it has read, once it has read that the engine drains.
    seen: Option<u64>,
}

/// What the engine is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Condition {
    pub state: State,
    /// Requests that run, and requests that wait.
    pub running: u32,
    pub waiting: u32,
}

/// What happened since the last report.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct News {
    pub started: Vec<RequestKey>,
    pub ended: Vec<RequestKey>,
    pub removed: Vec<u64>,
    pub stored: Vec<u64>,
}

/// The whole prefix cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    /// What hashes begin with.
    pub model: String,
    /// Tokens; 0: there is no cache.
    pub block_size: u32,
    pub stored: Vec<u64>,
}

impl Watchers {
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A tokenizer wants to know what happens here.
    pub(crate) fn add(&mut self, connection: u64, reports: mpsc::Sender<EngineReport>) {
        self.all.push(Watcher { connection, reports, sequence: 0, anew: true, seen: None });
    }

    /// It is gone.
    pub(crate) fn remove(&mut self, connection: u64) {
        self.all.retain(|watcher| watcher.connection != connection);
    }

    /// It has read the report of this number, and that the engine drains.
    pub(crate) fn drain_seen(&mut self, connection: u64, sequence: u64) {
        let seen = self.all.iter_mut().filter(|watcher| watcher.connection == connection);
        seen.for_each(|watcher| watcher.seen = Some(sequence));
    }

    /// Whether no request comes any more from those who were told that the engine drains; true where there is none.
    pub(crate) fn all_have_seen_the_drain(&self) -> bool {
        self.all.iter().all(|watcher| watcher.seen.is_some())
    }

    /// Whether all of them have read, too, all that they were told.
    pub(crate) fn all_have_seen_the_last(&self) -> bool {
        self.all.iter().all(|watcher| watcher.seen == Some(watcher.sequence))
    }

    /// What was said of the prefix cache is void.
    pub(crate) fn begin_anew(&mut self) {
        self.all.iter_mut().for_each(|watcher| watcher.anew = true);
    }

    /// Tells everybody what is new, if anything is. A watcher that is too far behind is given up: its link ends, and it
    /// begins anew with the next.
    pub(crate) fn tell(&mut self, condition: Condition, news: &News, cache: impl Fn() -> Cache) {
        let changed = std::mem::replace(&mut self.last, condition) != condition;
        let quiet = !changed && *news == News::default();
        self.all.retain_mut(|watcher| {
            let reports = match std::mem::take(&mut watcher.anew) {
                true => snapshot(condition, news, cache()),
                false if quiet => return true,
                false => increments(condition, news),
            };
            let told = reports.into_iter().all(|report| watcher.give(report));
            if !told {
                warn!("a tokenizer does not read what this engine reports; hanging up");
            }
            told
        });
    }
}

impl Watcher {
    fn give(&mut self, report: EngineReport) -> bool {
        self.sequence += 1;
        self.reports.try_send(EngineReport { sequence: self.sequence, ..report }).is_ok()
    }
}

fn report(condition: Condition) -> EngineReport {
    let Condition { state, running, waiting } = condition;
    EngineReport { state: state.into(), running, waiting, ..EngineReport::default() }
}

/// The whole cache, in reports that are not too large; requests come with the first.
fn snapshot(condition: Condition, news: &News, cache: Cache) -> Vec<EngineReport> {
    let Cache { model, block_size, stored } = cache;
    let mut chunks = stored.chunks(BLOCKS);
    let first = EngineReport {
        fresh: true,
        model,
        block_size,
        started: news.started.clone(),
        ended: news.ended.clone(),
        stored: chunks.next().unwrap_or_default().to_vec(),
        ..report(condition)
    };
    let more = chunks.map(|chunk| EngineReport { stored: chunk.to_vec(), ..report(condition) });
    std::iter::once(first).chain(more).collect()
}

fn increments(condition: Condition, news: &News) -> Vec<EngineReport> {
    let News { started, ended, removed, stored } = news;
    let (mut removed, mut stored) = (removed.chunks(BLOCKS), stored.chunks(BLOCKS));
    let first = EngineReport {
        started: started.clone(),
        ended: ended.clone(),
        removed: removed.next().unwrap_or_default().to_vec(),
        ..report(condition)
    };
    let mut reports = vec![first];
    reports.extend(removed.map(|chunk| EngineReport { removed: chunk.to_vec(), ..report(condition) }));
    // What is removed goes first.
    if let (Some(chunk), Some(last)) = (stored.next(), reports.last_mut()) {
        last.stored = chunk.to_vec();
    }
    reports.extend(stored.map(|chunk| EngineReport { stored: chunk.to_vec(), ..report(condition) }));
    reports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> RequestKey {
        RequestKey { gateway: 1, number }
    }

    fn drain(queue: &mut mpsc::Receiver<EngineReport>) -> Vec<EngineReport> {
        std::iter::from_fn(|| queue.try_recv().ok()).collect()
    }

    #[test]
    fn a_watcher_gets_the_whole_cache_and_then_changes() {
        let (mut watchers, (reports, mut queue)) = (Watchers::default(), mpsc::channel(16));
        let blocks = BLOCKS as u64 + 1;
        let cache = || Cache { model: "m".into(), block_size: 16, stored: (0..blocks).collect() };
        watchers.add(1, reports);
        let ready = Condition { state: State::Ready, running: 1, waiting: 0 };
        watchers.tell(ready, &News { started: vec![key(1)], ..News::default() }, cache);
        let told = drain(&mut queue);
        assert_eq!(told.iter().map(|report| report.stored.len()).collect::<Vec<_>>(), [BLOCKS, 1]);
        assert_eq!(
            told.iter().map(|report| (report.sequence, report.fresh)).collect::<Vec<_>>(),
            [(1, true), (2, false)]
        );
        assert_eq!((told[0].started.as_slice(), told[0].block_size), ([key(1)].as_slice(), 16));
        watchers.tell(ready, &News::default(), cache);
        assert!(drain(&mut queue).is_empty(), "nothing is new");
        let news = News { ended: vec![key(1)], removed: (0..blocks).collect(), stored: vec![7], ..News::default() };
        watchers.tell(ready, &news, cache);
        let told = drain(&mut queue);
        assert_eq!(
            told.iter().map(|report| (report.removed.len(), report.stored.len())).collect::<Vec<_>>(),
            [(BLOCKS, 0), (1, 1)]
        );
        watchers.begin_anew();
        watchers.tell(ready, &News::default(), cache);
        assert!(drain(&mut queue)[0].fresh);
    }

    #[test]
    fn who_does_not_read_is_given_up() {
        let (mut watchers, (reports, queue)) = (Watchers::default(), mpsc::channel(1));
        watchers.add(1, reports);
        let condition = |running| Condition { state: State::Ready, running, waiting: 0 };
        watchers.tell(condition(0), &News::default(), Cache::default);
        assert!(!watchers.is_empty());
        watchers.tell(condition(1), &News::default(), Cache::default);
        assert!(watchers.is_empty());
        drop(queue);
    }

    #[test]
    fn a_drain_waits_until_it_is_seen() {
        let (mut watchers, (reports, _queue)) = (Watchers::default(), mpsc::channel(9));
        assert!(watchers.all_have_seen_the_drain(), "nobody is to be told");
        watchers.add(4, reports);
        let draining = Condition { state: State::Draining, ..Condition::default() };
        watchers.tell(draining, &News::default(), Cache::default);
        assert!(!watchers.all_have_seen_the_drain());
        watchers.drain_seen(4, 1);
        assert!(watchers.all_have_seen_the_drain() && watchers.all_have_seen_the_last());
        watchers.tell(draining, &News { ended: vec![key(1)], ..News::default() }, Cache::default);
        assert!(watchers.all_have_seen_the_drain() && !watchers.all_have_seen_the_last());
        watchers.drain_seen(4, 2);
        assert!(watchers.all_have_seen_the_last());
    }
}
