//! Which adapters are served, and which of them the workers have on the host.
//!
//! A name stands for what was loaded under it last. What was loaded once has an identity of its own, which is part of
//! every block's hash: a name that is loaded again finds nothing that its predecessor has computed. An adapter that
//! gave way to others is read again under its identity, as long as its files' fingerprint is what it was; all ranks
//! must have read the same.
//!
//! Requests whose adapter is not on the host wait here until every worker has read it. The host keeps the adapters of
//! live requests, and of others those that were used last.

mod downloads;
pub(crate) mod hub;
pub(crate) mod kept;

use std::collections::{BTreeMap, HashMap, HashSet};

use proto::{
    AdapterLoaded, AdapterTokenizer, Failure, ListAdaptersReply, RequestKey, ServeAdapterRequest, ServedAdapter,
};
use tokio::sync::oneshot;

/// A question or an order of the control plane.
pub(crate) enum AdapterCall {
    /// Load an adapter and serve it; answers why not.
    Serve(ServeAdapterRequest, oneshot::Sender<Option<Failure>>),
    /// Serve it no longer; answers why not.
    Remove(String, oneshot::Sender<Option<Failure>>),
    /// What is served, once this name has been looked for.
    List(String, oneshot::Sender<ListAdaptersReply>),
}

impl AdapterCall {
    /// The name that it is about.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Serve(request, _) => request.adapter.as_ref().map_or("", |adapter| &adapter.name),
            Self::Remove(name, _) | Self::List(name, _) => name,
        }
    }

    /// Whether somebody waits for the answer.
    fn is_there(&self) -> bool {
        match self {
            Self::Serve(_, reply) | Self::Remove(_, reply) => !reply.is_closed(),
            Self::List(_, reply) => !reply.is_closed(),
        }
    }
}

/// Who waits for an adapter to be on the host of every worker.
pub(crate) enum Waiter {
    /// It is admitted then.
    Request(Box<proto::Request>),
    /// It is served then.
    Serve(ServedAdapter, oneshot::Sender<Option<Failure>>),
    /// The same, for a name that somebody has looked for.
    Resolve(ServedAdapter, oneshot::Sender<ListAdaptersReply>),
    /// The same, for one of the command line.
    Static(ServedAdapter),
    /// The same, for one that the scheduler before this one served.
    Kept(ServedAdapter),
    /// What was asked of its name meanwhile; it is asked again.
    Call(AdapterCall),
}

impl Waiter {
    /// Whether its client is still there, as far as that is known: requests are withdrawn.
    fn is_there(&self) -> bool {
        match self {
            Self::Request(_) | Self::Static(_) | Self::Kept(_) => true,
            Self::Serve(_, reply) => !reply.is_closed(),
            Self::Resolve(_, reply) => !reply.is_closed(),
            Self::Call(call) => call.is_there(),
        }
    }

    /// Whether the engine is not ready before.
    fn is_of_the_start(&self) -> bool {
        matches!(self, Self::Static(_) | Self::Kept(_))
    }

    /// The adapter that is served once it is loaded.
    pub(crate) fn to_serve(&self) -> Option<&ServedAdapter> {
        match self {
            Self::Request(_) | Self::Call(_) => None,
            Self::Serve(adapter, _) | Self::Resolve(adapter, _) | Self::Static(adapter) | Self::Kept(adapter) => {
                Some(adapter)
            }
        }
    }
}

/// An adapter that all workers have read, or some could not.
pub(crate) struct Answered {
    pub identity: String,
    pub outcome: Result<AdapterFiles, LoadFailed>,
    pub waiters: Vec<Waiter>,
}

/// What an adapter's files are, as the workers have read them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AdapterFiles {
    /// A hash of them.
    pub fingerprint: String,
    /// Tokens that it knows; 0: the model's.
    pub vocab_size: u32,
    /// Its own tokenizer.
    pub tokenizer: Option<AdapterTokenizer>,
}

impl AdapterFiles {
    /// The adapter of these files, as clients know it.
    fn tell(&self, adapter: ServedAdapter) -> ServedAdapter {
        ServedAdapter { vocab_size: self.vocab_size, tokenizer: self.tokenizer.clone(), ..adapter }
    }
}

/// Why an adapter is not on the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoadFailed {
    pub reason: String,
    /// There is none at its path.
    pub not_found: bool,
}

/// The adapters of an engine.
pub(crate) struct Adapters {
    /// By name.
    served: BTreeMap<String, Entry>,
    /// By identity.
    hosted: HashMap<String, Hosted>,
    /// Identities of live requests' adapters.
    live: HashMap<RequestKey, String>,
    /// By slot of the device: ranks that have there what the others are still to say they have.
    placed: HashMap<u32, usize>,
    most_idle: usize,
    ranks: usize,
    loads: u64,
    uses: u64,
}

/// How many wait for adapters that are being loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waiting {
    /// Requests that are not admitted yet.
    pub requests: usize,
    /// Questions and orders of the control plane.
    pub calls: usize,
}

/// Another identity for files that have changed.
pub(crate) struct Renewed {
    pub identity: String,
    pub adapter: ServedAdapter,
}

struct Entry {
    identity: String,
    adapter: ServedAdapter,
    /// What its files were when they were read first; absent: they are being read.
    fingerprint: Option<String>,
}

struct Hosted {
    /// Ranks that have not answered.
    missing: usize,
    /// What the ranks that have answered say.
    outcome: Option<Result<AdapterFiles, LoadFailed>>,
    waiters: Vec<Waiter>,
    live: u32,
    used: u64,
}

impl Adapters {
    /// None, of a group of `ranks` workers; of adapters without live requests, the host keeps `most` in all.
    pub(crate) fn new(ranks: usize, most: usize) -> Self {
        Self {
            served: BTreeMap::new(),
            hosted: HashMap::new(),
            live: HashMap::new(),
            placed: HashMap::new(),
            most_idle: most,
            ranks,
            loads: 0,
            uses: 0,
        }
    }

    /// All that are served, by name.
    pub(crate) fn list(&self) -> Vec<ServedAdapter> {
        self.served.values().map(|entry| entry.adapter.clone()).collect()
    }

    /// How many the workers have on the host.
    pub(crate) fn num_hosted(&self) -> usize {
        self.hosted.values().filter(|hosted| hosted.missing == 0).count()
    }

    /// Identity and folder of what a name stands for.
    pub(crate) fn find(&self, name: &str) -> Option<(String, String)> {
        self.served.get(name).map(|entry| (entry.identity.clone(), entry.adapter.path.clone()))
    }

    /// The identity of what is being loaded to be served under this name.
    pub(crate) fn loading(&self, name: &str) -> Option<&str> {
        let is_it =
            |hosted: &Hosted| hosted.waiters.iter().filter_map(Waiter::to_serve).any(|adapter| adapter.name == name);
        self.hosted.iter().find(|(_, hosted)| is_it(hosted)).map(|(identity, _)| identity.as_str())
    }

    /// Whether adapters without which the engine is not ready are still to come.
    pub(crate) fn is_starting(&self) -> bool {
        self.starting().next().is_some()
    }

    /// Those that are being loaded.
    pub(crate) fn starting(&self) -> impl Iterator<Item = &ServedAdapter> {
        let waiters = self.hosted.values().flat_map(|hosted| &hosted.waiters);
        waiters.filter(|waiter| waiter.is_of_the_start()).filter_map(Waiter::to_serve)
    }

    /// Another identity for what is about to be loaded under a name.
    pub(crate) fn new_identity(&mut self, name: &str) -> String {
        next_identity(&mut self.loads, name)
    }

    /// Whether every worker has it.
    pub(crate) fn is_hosted(&self, identity: &str) -> bool {
        self.hosted.get(identity).is_some_and(|hosted| hosted.missing == 0)
    }

    /// Waits until every worker has it. Whether they must be told to load it.
    pub(crate) fn wait(&mut self, identity: &str, waiter: Waiter) -> bool {
        let is_new = !self.hosted.contains_key(identity);
        let ranks = self.ranks;
        let new = || Hosted { missing: ranks, outcome: None, waiters: Vec::new(), live: 0, used: 0 };
        self.hosted.entry(identity.to_owned()).or_insert_with(new).waiters.push(waiter);
        is_new
    }

    /// Whether some worker is still to read it.
    pub(crate) fn is_awaited(&self, identity: &str) -> bool {
        self.hosted.get(identity).is_some_and(|hosted| hosted.missing > 0)
    }

    /// Whether anybody waits for it who is still there.
    pub(crate) fn is_wanted(&self, identity: &str) -> bool {
        self.hosted.get(identity).is_some_and(|hosted| hosted.waiters.iter().any(Waiter::is_there))
    }

    /// Who waits for adapters to be on the hosts.
    pub(crate) fn num_waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        for waiter in self.hosted.values().flat_map(|hosted| &hosted.waiters) {
            match waiter {
                Waiter::Request(_) => waiting.requests += 1,
                Waiter::Static(_) | Waiter::Kept(_) => {}
                Waiter::Serve(..) | Waiter::Resolve(..) | Waiter::Call(_) => waiting.calls += 1,
            }
        }
        waiting
    }

    /// No worker will read it; who waited.
    pub(crate) fn give_up(&mut self, identity: &str) -> Vec<Waiter> {
        match self.is_awaited(identity) {
            true => self.hosted.remove(identity).map_or_else(Vec::new, |hosted| hosted.waiters),
            false => Vec::new(),
        }
    }

    /// A worker has it, or says why not. Who waited, when it was the last one.
    pub(crate) fn answered(&mut self, loaded: AdapterLoaded) -> Option<Answered> {
        let identity = loaded.adapter.clone();
        let hosted = self.hosted.get_mut(&identity)?;
        hosted.missing = hosted.missing.checked_sub(1)?;
        let outcome = joined(hosted.outcome.take(), loaded);
        hosted.outcome = Some(outcome.clone());
        if hosted.missing > 0 {
            return None;
        }
        let waiters = std::mem::take(&mut hosted.waiters);
        self.uses += 1;
        hosted.used = self.uses;
        if outcome.is_err() {
            self.hosted.remove(&identity);
        }
        Some(Answered { identity, outcome, waiters })
    }

    /// The files of an adapter that every worker has.
    pub(crate) fn files(&self, identity: &str) -> Option<&AdapterFiles> {
        self.hosted.get(identity).filter(|hosted| hosted.missing == 0)?.outcome.as_ref()?.as_ref().ok()
    }

    /// Tokenizers that served adapters bring.
    pub(crate) fn tokenizers(&self) -> impl Iterator<Item = &AdapterTokenizer> {
        self.served.values().filter_map(|entry| entry.adapter.tokenizer.as_ref())
    }

    /// A rank's device has in this slot what a plan asked for; whether it is the last rank.
    pub(crate) fn placed(&mut self, slot: u32) -> bool {
        let ranks = self.placed.entry(slot).or_default();
        *ranks += 1;
        if *ranks < self.ranks {
            return false;
        }
        self.placed.remove(&slot);
        true
    }

    /// From here on its name stands for this.
    pub(crate) fn serve(&mut self, identity: String, adapter: ServedAdapter, files: &AdapterFiles) {
        let (adapter, fingerprint) = (files.tell(adapter), Some(files.fingerprint.clone()));
        self.served.insert(adapter.name.clone(), Entry { identity, adapter, fingerprint });
    }

    /// What was read for an identity that a name stands for. Where the files are not what they were, the name stands
    /// for another identity from here on, which is still to be read; `identity` is to be dropped.
    pub(crate) fn reread(&mut self, identity: &str, files: &AdapterFiles) -> Option<Renewed> {
        let entry = self.served.values_mut().find(|entry| entry.identity == identity)?;
        if entry.fingerprint.is_none() {
            entry.adapter = files.tell(std::mem::take(&mut entry.adapter));
        }
        if *entry.fingerprint.get_or_insert_with(|| files.fingerprint.clone()) == files.fingerprint {
            return None;
        }
        entry.identity = next_identity(&mut self.loads, &entry.adapter.name);
        entry.fingerprint = None;
        self.hosted.remove(identity);
        Some(Renewed { identity: entry.identity.clone(), adapter: entry.adapter.clone() })
    }

    /// Its name stands for nothing from here on; whether it did.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.served.remove(name).is_some()
    }

    /// A request with it was admitted.
    pub(crate) fn admitted(&mut self, key: RequestKey, identity: String) {
        self.uses += 1;
        if let Some(hosted) = self.hosted.get_mut(&identity) {
            hosted.live += 1;
            hosted.used = self.uses;
            self.live.insert(key, identity);
        }
    }

    /// A request is over.
    pub(crate) fn ended(&mut self, key: &RequestKey) {
        let Some(identity) = self.live.remove(key) else { return };
        if let Some(hosted) = self.hosted.get_mut(&identity) {
            hosted.live = hosted.live.saturating_sub(1);
        }
    }

    /// Lets go of what the host need not keep, and says what.
    pub(crate) fn evict(&mut self) -> Vec<String> {
        let served: HashSet<&str> = self.served.values().map(|entry| entry.identity.as_str()).collect();
        let idle = |hosted: &Hosted| hosted.live == 0 && hosted.missing == 0;
        let mut found: Vec<(bool, u64, String)> = (self.hosted.iter())
            .filter(|(_, hosted)| idle(hosted))
            .map(|(identity, hosted)| (served.contains(identity.as_str()), hosted.used, identity.clone()))
            .collect();
        found.sort();
        // What no name stands for goes at once.
        let useless = found.iter().filter(|(is_served, ..)| !is_served).count();
        let excess = self.hosted.len().saturating_sub(self.most_idle).max(useless);
        found.truncate(excess);
        let gone: Vec<String> = found.into_iter().map(|(.., identity)| identity).collect();
        gone.iter().for_each(|identity| drop(self.hosted.remove(identity)));
        gone
    }

    /// Names of the adapters that requests wait for.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &str> {
        let is_asked = |hosted: &Hosted| hosted.waiters.iter().any(|waiter| matches!(waiter, Waiter::Request(_)));
        self.hosted.iter().filter(move |(_, hosted)| is_asked(hosted)).map(|(identity, _)| identity.as_str())
    }

    /// Takes the requests out that match and wait for their adapters.
    pub(crate) fn withdraw(&mut self, matches: impl Fn(&proto::Request) -> bool) -> Vec<proto::Request> {
        let mut withdrawn = Vec::new();
        for hosted in self.hosted.values_mut() {
            for waiter in std::mem::take(&mut hosted.waiters) {
                match waiter {
                    Waiter::Request(request) if matches(&request) => withdrawn.push(*request),
                    other => hosted.waiters.push(other),
                }
            }
        }
        withdrawn
    }

    /// The workers are gone, with all that they had; who waited.
    pub(crate) fn lost(&mut self) -> Vec<Waiter> {
        self.live.clear();
        self.placed.clear();
        self.hosted.drain().flat_map(|(_, hosted)| hosted.waiters).collect()
    }
}

/// `loads`: identities that there were before.
fn next_identity(loads: &mut u64, name: &str) -> String {
    *loads += 1;
    format!("{name}@{loads}")
}

/// The name that an identity is for.
pub(crate) fn name_of(identity: &str) -> &str {
    identity.rsplit_once('@').map_or(identity, |(name, _)| name)
}

/// What the ranks say of an adapter, with one more answer.
fn joined(before: Option<Result<AdapterFiles, LoadFailed>>, loaded: AdapterLoaded) -> Result<AdapterFiles, LoadFailed> {
    let AdapterLoaded { adapter: _, error, not_found, fingerprint, vocab_size, tokenizer } = loaded;
    let answer = match error.is_empty() {
        true => Ok(AdapterFiles { fingerprint, vocab_size, tokenizer }),
        false => Err(LoadFailed { reason: error, not_found }),
    };
    match (before, answer) {
        (None, answer) => answer,
        (Some(Err(failed)), _) | (Some(Ok(_)), Err(failed)) => Err(failed),
        (Some(Ok(one)), Ok(other)) if one == other => Ok(one),
        (Some(Ok(_)), Ok(_)) => {
            let reason = "the ranks read different files: its folder must be the same on all nodes, and not be \
                          written to meanwhile";
            Err(LoadFailed { reason: reason.into(), not_found: false })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> RequestKey {
        RequestKey { gateway: 1, number }
    }

    fn adapter(name: &str) -> ServedAdapter {
        ServedAdapter { name: name.into(), path: format!("/{name}"), ..ServedAdapter::default() }
    }

    fn loaded(identity: &str, fingerprint: &str) -> AdapterLoaded {
        AdapterLoaded { adapter: identity.into(), fingerprint: fingerprint.into(), ..AdapterLoaded::default() }
    }

    fn failed(identity: &str, error: &str) -> AdapterLoaded {
        AdapterLoaded { error: error.into(), ..loaded(identity, "") }
    }

    fn files(fingerprint: &str) -> AdapterFiles {
        AdapterFiles { fingerprint: fingerprint.into(), ..AdapterFiles::default() }
    }

    /// Loads and serves; its identity.
    fn load(adapters: &mut Adapters, name: &str) -> String {
        let identity = adapters.new_identity(name);
        assert!(adapters.wait(&identity, Waiter::Static(adapter(name))));
        assert!(adapters.loading(name) == Some(&*identity) && adapters.is_starting());
        let answered = adapters.answered(loaded(&identity, "1")).expect("the only rank");
        assert!(answered.outcome.is_ok() && answered.waiters.len() == 1);
        adapters.serve(identity.clone(), adapter(name), &files("1"));
        identity
    }

    #[test]
    fn a_slot_is_filled_when_every_rank_has_said_so() {
        let mut adapters = Adapters::new(2, 4);
        assert_eq!([0, 1, 0, 1].map(|slot| adapters.placed(slot)), [false, false, true, true]);
        assert!(!adapters.placed(0));
        adapters.lost();
        assert_eq!(
            [0, 0].map(|slot| adapters.placed(slot)),
            [false, true],
            "what another group has said counts no more"
        );
    }

    #[test]
    fn every_rank_must_have_it() {
        let mut adapters = Adapters::new(2, 4);
        let identity = adapters.new_identity("a");
        assert!(adapters.wait(&identity, Waiter::Static(adapter("a"))));
        assert!(!adapters.wait(&identity, Waiter::Request(Box::default())), "it is under way");
        assert!(adapters.answered(failed(&identity, "damaged")).is_none());
        let answered = adapters.answered(loaded(&identity, "1")).expect("both");
        assert_eq!((answered.outcome.unwrap_err().reason.as_str(), answered.waiters.len()), ("damaged", 2));
        assert!(!adapters.is_hosted(&identity));
        assert!(adapters.answered(loaded(&identity, "1")).is_none(), "nobody asked");
    }

    #[test]
    fn ranks_must_have_read_the_same() {
        let mut adapters = Adapters::new(2, 4);
        for (second, is_fine) in [("1", true), ("2", false)] {
            let identity = adapters.new_identity("a");
            adapters.wait(&identity, Waiter::Static(adapter("a")));
            assert!(adapters.answered(loaded(&identity, "1")).is_none());
            let outcome = adapters.answered(loaded(&identity, second)).expect("both").outcome;
            assert_eq!((outcome.is_ok(), adapters.is_hosted(&identity)), (is_fine, is_fine));
            assert!(
                outcome
                    .map_or_else(|failed| failed.reason.contains("different files"), |found| found.fingerprint == "1")
            );
        }
    }

    #[test]
    fn files_that_changed_have_another_identity() {
        let mut adapters = Adapters::new(1, 1);
        let first = load(&mut adapters, "a");
        load(&mut adapters, "b");
        assert_eq!(adapters.evict(), [first.as_str()]);
        let read = |adapters: &mut Adapters, identity: &str, fingerprint: &str| {
            assert!(adapters.wait(identity, Waiter::Request(Box::default())), "it must be read");
            adapters.answered(loaded(identity, fingerprint)).expect("the only rank");
            adapters.reread(identity, &files(fingerprint))
        };
        assert!(read(&mut adapters, &first, "1").is_none(), "the same files");
        adapters.ended(&key(1));
        load(&mut adapters, "c");
        assert!(adapters.evict().contains(&first));
        let renewed = read(&mut adapters, &first, "2").expect("other files");
        assert!(renewed.identity != first && renewed.adapter == adapter("a") && !adapters.is_hosted(&first));
        assert_eq!(adapters.find("a"), Some((renewed.identity.clone(), "/a".into())));
        assert!(read(&mut adapters, &renewed.identity, "3").is_none(), "whatever they are when they are read");
        assert!(adapters.is_hosted(&renewed.identity));
    }

    #[test]
    fn what_the_files_say_of_tokens_is_told() {
        let mut adapters = Adapters::new(1, 2);
        let tokenizer = |fingerprint: &str| AdapterTokenizer { dir: "/a".into(), fingerprint: fingerprint.into() };
        let own = |fingerprint: &str| AdapterFiles {
            vocab_size: 67,
            tokenizer: Some(tokenizer(fingerprint)),
            ..files(fingerprint)
        };
        let first = load(&mut adapters, "a");
        assert_eq!((adapters.list()[0].vocab_size, adapters.tokenizers().count()), (0, 0));
        assert_eq!(adapters.files(&first), Some(&files("1")));
        let told = |files: AdapterFiles, identity: &str| {
            let AdapterFiles { fingerprint, vocab_size, tokenizer } = files;
            AdapterLoaded { vocab_size, tokenizer, ..loaded(identity, &fingerprint) }
        };
        let second = adapters.new_identity("a");
        adapters.wait(&second, Waiter::Static(adapter("a")));
        assert_eq!(adapters.files(&second), None, "it is being read");
        let read = adapters.answered(told(own("2"), &second)).expect("the only rank").outcome.expect("read");
        adapters.serve(second.clone(), adapter("a"), &read);
        assert_eq!((adapters.list()[0].vocab_size, adapters.files(&second)), (67, Some(&own("2"))));
        assert!(adapters.tokenizers().eq([&tokenizer("2")]));
        // Read again after it gave way to others, and its files are others.
        let renewed = adapters.reread(&second, &own("3")).expect("other files");
        adapters.wait(&renewed.identity, Waiter::Request(Box::default()));
        adapters.answered(told(own("3"), &renewed.identity)).expect("the only rank");
        assert!(adapters.reread(&renewed.identity, &own("3")).is_none());
        assert!(adapters.tokenizers().eq([&tokenizer("3")]));
    }

    #[test]
    fn live_requests_keep_what_they_use() {
        let mut adapters = Adapters::new(1, 1);
        let [a, b] = ["a", "b"].map(|name| load(&mut adapters, name));
        adapters.admitted(key(1), a.clone());
        assert_eq!(adapters.evict(), [b]);
        let c = load(&mut adapters, "c");
        assert_eq!(adapters.evict(), [c]);
        assert!(adapters.evict().is_empty() && adapters.is_hosted(&a));
        adapters.ended(&key(1));
        assert!(adapters.evict().is_empty(), "as many as it may keep");
    }

    #[test]
    fn a_name_loaded_again_is_another_adapter() {
        let mut adapters = Adapters::new(1, 4);
        let first = load(&mut adapters, "a");
        adapters.admitted(key(1), first.clone());
        let second = load(&mut adapters, "a");
        assert_ne!(first, second);
        assert_eq!(adapters.find("a"), Some((second.clone(), "/a".into())));
        assert!(adapters.evict().is_empty(), "a request runs with the first");
        adapters.ended(&key(1));
        assert_eq!(adapters.evict(), [first]);
        assert!(adapters.remove("a") && !adapters.remove("a"));
        assert_eq!(adapters.evict(), [second]);
        assert_eq!((adapters.num_hosted(), adapters.list().len()), (0, 0));
    }

    #[test]
    fn requests_that_wait_can_be_withdrawn() {
        let mut adapters = Adapters::new(1, 4);
        let identity = adapters.new_identity("a");
        for number in 1..=2 {
            let request = proto::Request { key: Some(key(number)), ..proto::Request::default() };
            adapters.wait(&identity, Waiter::Request(Box::new(request)));
        }
        assert_eq!(adapters.num_waiting(), Waiting { requests: 2, calls: 0 });
        let gone = adapters.withdraw(|request| request.key == Some(key(1)));
        assert_eq!(gone.len(), 1);
        assert!(adapters.is_wanted(&identity), "by the other one");
        assert_eq!(adapters.lost().len(), 1);
        assert!(!adapters.is_hosted(&identity));
    }

    #[test]
    fn what_all_clients_have_left_is_not_wanted() {
        let mut adapters = Adapters::new(1, 4);
        let identity = adapters.new_identity("a");
        let (reply, client) = oneshot::channel();
        adapters.wait(&identity, Waiter::Serve(adapter("a"), reply));
        let (reply, other) = oneshot::channel();
        adapters.wait(&identity, Waiter::Call(AdapterCall::Remove("a".into(), reply)));
        assert_eq!(adapters.num_waiting(), Waiting { requests: 0, calls: 2 });
        drop(client);
        assert!(adapters.is_wanted(&identity));
        drop(other);
        assert!(!adapters.is_wanted(&identity) && adapters.is_awaited(&identity));
        assert_eq!(adapters.give_up(&identity).len(), 2);
    }
}
