//! Responses that are kept for later requests: in memory, bounded in count and bytes, the least recently used one gives
//! way to a new one. What still runs stays.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::Value;
use service_kit::CancellationToken;
use tokio::sync::Notify;

use super::{events::Events, item::response_of};
use crate::error::{ApiError, Fault};

/// What ids of responses look like.
pub const IDS: &str = "^resp_[0-9a-f]{32}$";

/// Ids of responses that gave way, so that whoever asks for one learns why it is not there.
const REMEMBERED: usize = 16_384;

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Responses; 0: none is kept.
    pub count: usize,
    /// Bytes of all of them.
    pub bytes: usize,
}

/// Responses that are kept.
pub struct Store {
    bounds: Bounds,
    shelf: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    entries: HashMap<String, Entry>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
    evicted: VecDeque<String>,
}

struct Entry {
    record: Arc<Record>,
    bytes: usize,
    /// When it was last used, by the shelf's clock.
    used: u64,
}

/// A response that is kept, or that runs in the background.
pub struct Record {
    /// Its id.
    pub id: String,
    /// The items that it was made from: a JSON list.
    context: String,
    state: Mutex<State>,
    /// Told when the state changes.
    pub changed: Notify,
    /// Cancelled when no more of it is wanted.
    pub cancel: CancellationToken,
}

struct State {
    /// The response as JSON.
    response: String,
    /// Its events, where it runs or ran in the background and they fit.
    log: Log,
    over: bool,
}

/// The events of a response.
enum Log {
    /// It was not made in the background: its events went to one client.
    None,
    /// They are kept.
    Kept(Events),
    /// They did not fit.
    Dropped,
}

/// What a reader of a response's events gets next.
pub enum Read {
    /// These bytes; the next ones begin there.
    Bytes(Vec<u8>, usize),
    /// Nothing yet.
    Wait,
    /// There are no more.
    End,
    /// They are not kept.
    Dropped,
}

impl Record {
    /// One that has ended.
    pub fn ended(id: &str, context: &[Value], response: String) -> Self {
        Self::new(id, context, State { response, log: Log::None, over: true })
    }

    /// One that runs, with its first events.
    pub fn running(id: &str, context: &[Value], response: String, events: Events) -> Self {
        Self::new(id, context, State { response, log: Log::Kept(events), over: false })
    }

    fn new(id: &str, context: &[Value], state: State) -> Self {
        let context = Value::from(context).to_string();
        let (changed, cancel) = (Notify::new(), CancellationToken::new());
        Self { id: id.to_owned(), context, state: Mutex::new(state), changed, cancel }
    }

    /// The response as JSON.
    pub fn response(&self) -> String {
        self.state.lock().response.clone()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Waits until it has ended.
    pub async fn ended_at_last(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_over() {
                return;
            }
            changed.await;
        }
    }

    /// The items that it was made from.
    pub fn context(&self) -> Vec<Value> {
        serde_json::from_str(&self.context).unwrap_or_default()
    }

    /// The items that came of it.
    pub fn output(&self) -> Vec<Value> {
        let response: Value = serde_json::from_str(&self.response()).unwrap_or_default();
        response["output"].as_array().cloned().unwrap_or_default()
    }

    /// Where the events behind number `after` begin; from the start without one. `None` where events are not kept.
    pub fn position(&self, after: Option<u64>) -> Option<usize> {
        match &self.state.lock().log {
            Log::None => None,
            Log::Kept(events) => Some(after.map_or(0, |number| events.after(number))),
            Log::Dropped => Some(0),
        }
    }

    /// Events from `position` on.
    pub fn read(&self, position: usize) -> Read {
        let state = self.state.lock();
        match &state.log {
            Log::Kept(events) if events.bytes().len() > position => {
                Read::Bytes(events.bytes()[position..].to_vec(), events.bytes().len())
            }
            Log::Kept(_) | Log::None if state.over => Read::End,
            Log::Kept(_) | Log::None => Read::Wait,
            Log::Dropped => Read::Dropped,
        }
    }

    fn bytes(&self) -> usize {
        let state = self.state.lock();
        self.context.len() + state.response.len() + state.log.bytes()
    }
}

impl Log {
    fn bytes(&self) -> usize {
        if let Self::Kept(events) = self { events.bytes().len() } else { 0 }
    }
}

impl Store {
    /// An empty one.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, shelf: Mutex::default() }
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.bounds.count > 0
    }

    /// Keeps a response that has ended.
    pub fn keep(&self, record: Record) {
        let mut shelf = self.shelf.lock();
        shelf.insert(Arc::new(record));
        shelf.make_room(self.bounds);
    }

    /// Keeps a response that begins to run.
    ///
    /// # Errors
    /// When as many run already as are kept at most.
    pub fn keep_running(&self, record: Arc<Record>) -> Result<(), ApiError> {
        let mut shelf = self.shelf.lock();
        let running = shelf.entries.values().filter(|entry| !entry.record.is_over()).count();
        if running >= self.bounds.count {
            let message = format!("{running} responses run in the background, which is the most; try again later.");
            return Err(ApiError::unavailable(message));
        }
        shelf.insert(record);
        shelf.make_room(self.bounds);
        Ok(())
    }

    /// A running response has more events, or, with its last state, ends.
    pub fn grow(&self, record: &Record, events: &Events, last: Option<String>) {
        {
            let mut state = record.state.lock();
            if let Log::Kept(log) = &mut state.log {
                log.append(events);
            }
            if let Some(response) = last {
                (state.response, state.over) = (response, true);
            }
        }
        let mut shelf = self.shelf.lock();
        shelf.weigh(record);
        if !shelf.make_room(self.bounds) {
            record.state.lock().log = Log::Dropped;
            shelf.weigh(record);
        }
        drop(shelf);
        record.changed.notify_waiters();
    }

    /// A running response changes its state before its end.
    pub fn set(&self, record: &Record, response: String) {
        record.state.lock().response = response;
    }

    /// The response of that id, which counts as a use of it.
    ///
    /// # Errors
    /// 404, which says whether it was here once.
    pub fn get(&self, id: &str) -> Result<Arc<Record>, ApiError> {
        let mut shelf = self.shelf.lock();
        shelf.clock += 1;
        let now = shelf.clock;
        if let Some(entry) = shelf.entries.get_mut(id) {
            entry.used = now;
            return Ok(entry.record.clone());
        }
        let message = if !self.is_on() {
            format!("Response with id '{id}' not found: this server keeps no responses.")
        } else if shelf.evicted.iter().any(|evicted| evicted == id) {
            format!(
                "Response with id '{id}' is no longer kept: newer ones took its place. \
                 --max-stored-responses and --max-stored-response-bytes say how many are."
            )
        } else {
            format!("Response with id '{id}' not found.")
        };
        Err(ApiError::new(Fault::NotFound, message))
    }

    /// The output item of that id, of whichever response.
    pub fn item(&self, id: &str) -> Option<Value> {
        let record = self.get(&response_of(id)?).ok()?;
        record.output().into_iter().chain(record.context()).find(|item| item["id"] == id)
    }

    /// Forgets the response of that id.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn delete(&self, id: &str) -> Result<(), ApiError> {
        let record = self.get(id)?;
        record.cancel.cancel();
        let mut shelf = self.shelf.lock();
        shelf.remove(id);
        Ok(())
    }
}

impl Shelf {
    fn insert(&mut self, record: Arc<Record>) {
        self.clock += 1;
        let entry = Entry { bytes: record.bytes(), used: self.clock, record };
        self.bytes += entry.bytes;
        let id = entry.record.id.clone();
        if let Some(before) = self.entries.insert(id, entry) {
            self.bytes -= before.bytes;
        }
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.bytes -= entry.bytes;
        }
    }

    /// Takes note of what a record weighs now.
    fn weigh(&mut self, record: &Record) {
        if let Some(entry) = self.entries.get_mut(&record.id) {
            let bytes = record.bytes();
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
    }

    /// Lets go of the least recently used ones that have ended, until the rest fits. Whether it does.
    fn make_room(&mut self, bounds: Bounds) -> bool {
        while self.entries.len() > bounds.count || self.bytes > bounds.bytes {
            let ended = self.entries.values().filter(|entry| entry.record.is_over());
            let Some(id) = ended.min_by_key(|entry| entry.used).map(|entry| entry.record.id.clone()) else {
                return false;
            };
            self.remove(&id);
            if self.evicted.len() >= REMEMBERED {
                self.evicted.pop_front();
            }
            self.evicted.push_back(id);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ended(id: &str, size: usize) -> Record {
        Record::ended(id, &[], json!({"output": [], "text": "x".repeat(size)}).to_string())
    }

    fn running(id: &str) -> Arc<Record> {
        Arc::new(Record::running(id, &[], "{}".into(), Events::default()))
    }

    fn events(size: usize) -> Events {
        let mut events = Events::default();
        events.push("e", 0, &json!({"text": "x".repeat(size)}));
        events
    }

    #[test]
    fn the_least_recently_used_one_gives_way() {
        let store = Store::new(Bounds { count: 2, bytes: 1 << 20 });
        store.keep(ended("a", 1));
        store.keep(ended("b", 1));
        assert!(store.get("a").is_ok());
        store.keep(ended("c", 1));
        let gone = store.get("b").err().expect("evicted");
        assert_eq!(gone.fault, Fault::NotFound);
        assert!(gone.message.contains("no longer kept"), "{gone}");
        let unknown = store.get("z").err().expect("unknown");
        assert!(!unknown.message.contains("no longer kept"), "{unknown}");
        assert!(store.get("a").is_ok() && store.get("c").is_ok());
        store.delete("a").expect("deleted");
        assert!(store.get("a").is_err() && store.delete("a").is_err());
    }

    #[test]
    fn bytes_are_a_bound_too() {
        let store = Store::new(Bounds { count: 100, bytes: 1000 });
        for number in 0..50 {
            store.keep(ended(&format!("r{number}"), 200));
            assert!(store.shelf.lock().bytes <= 1000);
        }
        assert!(store.get("r49").is_ok() && store.get("r40").is_err());
        store.keep(ended("large", 2000));
        assert!(store.get("large").is_err(), "one that is larger than all the room");
        assert_eq!(store.shelf.lock().bytes, 0);
    }

    #[test]
    fn what_runs_stays_and_loses_its_events_at_most() {
        let store = Store::new(Bounds { count: 2, bytes: 1000 });
        let (first, second) = (running("a"), running("b"));
        store.keep_running(first.clone()).expect("room");
        store.keep_running(second).expect("room");
        assert_eq!(store.keep_running(running("c")).err().map(|error| error.fault), Some(Fault::Unavailable));
        store.keep(ended("e", 1));
        assert!(store.get("e").is_err(), "there is no room beside those that run");
        store.grow(&first, &events(100), None);
        assert!(matches!(first.read(0), Read::Bytes(..)));
        store.grow(&first, &events(2000), None);
        assert!(matches!(first.read(0), Read::Dropped));
        store.grow(&first, &Events::default(), Some("{\"output\": []}".into()));
        assert!(first.is_over() && store.get("a").is_ok());
        store.keep(ended("f", 1));
        assert!(store.get("a").is_err() && store.get("f").is_ok());
    }
}
