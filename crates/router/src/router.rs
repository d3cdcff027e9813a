//! The choice, and the requests in flight that it depends on.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use proto::RequestKey;

use crate::{
    engine::{Engine, State},
    policy::Policy,
};

/// How often a prompt's uncached tokens count against those that wait already. Once, a request would go elsewhere to
/// compute what another is about to compute here: both are as soon done, but the next request finds an engine busy for
/// nothing. So a cached prefix of 2,048 tokens is worth a queue that is longer by 64 running requests.
const UNCACHED_WEIGHT: u64 = 2;

/// A request that wants an engine.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Its name until its end.
    pub key: RequestKey,
    /// Tokens of its prompt.
    pub tokens: u32,
    /// Names of the prompt's full blocks, from the first on; empty where prefix caches do not matter.
    pub blocks: &'a [u64],
    /// Tokens of a block.
    pub block_size: u32,
    /// The client's session: all requests of one go to the same engine, for as long as it can take them.
    pub session: Option<&'a str>,
    /// The engine that the client wants.
    pub rank: Option<u32>,
}

/// Why a request gets no engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoEngine {
    /// The client names one that there is not.
    #[error("There is no data-parallel rank {rank}: ranks are 0 to {}.", engines - 1)]
    NoSuchRank {
        /// What it named.
        rank: u32,
        /// How many there are.
        engines: usize,
    },
    /// The client names one that cannot take it now.
    #[error("The engine of data-parallel rank {rank} is not available, try again.")]
    RankAway {
        /// What it named.
        rank: u32,
    },
    /// None is there.
    #[error("No engine is available, try again.")]
    AllAway,
}

/// A request in flight.
#[derive(Debug)]
struct Placed {
    engine: usize,
    /// Prompt tokens that the engine was expected to compute.
    uncached: u64,
    started: bool,
    blocks: Box<[u64]>,
}

/// All engines, and the requests that they have.
#[derive(Debug)]
pub struct Router {
    policy: Policy,
    engines: Vec<Engine>,
    requests: HashMap<RequestKey, Placed>,
    /// The engine that is next where nothing else decides.
    turn: usize,
}

impl Router {
    /// Of `engines` engines (at least one), all away.
    pub fn new(policy: Policy, engines: usize) -> Self {
        let engines = (0..engines.max(1)).map(|_| Engine::default()).collect();
        Self { policy, engines, requests: HashMap::new(), turn: 0 }
    }

    /// Whether choices depend on the names of a prompt's blocks.
    pub fn looks_at_blocks(&self) -> bool {
        self.policy == Policy::Prefix
    }

    /// What an engine can do now.
    pub fn state(&self, engine: usize) -> State {
        self.engines[engine].state
    }

    /// An engine can do something else.
    pub fn set_state(&mut self, engine: usize, state: State) {
        self.engines[engine].state = state;
    }

    /// An engine is lost, with its cache. Returns the requests that it had; they are forgotten.
    pub fn lost(&mut self, engine: usize) -> Vec<RequestKey> {
        let had = self.requests.iter().filter(|(_, placed)| placed.engine == engine).map(|(key, _)| *key);
        let had: Vec<_> = had.collect();
        had.iter().for_each(|key| drop(self.requests.remove(key)));
        self.engines[engine] = Engine::default();
        had
    }

    /// Chooses an engine for a request, which it has from now on.
    ///
    /// # Errors
    /// When the rank that the client names is not there, or no engine is.
    pub fn choose(&mut self, arrival: Arrival<'_>) -> Result<usize, NoEngine> {
        let engine = match arrival.rank {
            Some(rank) => self.named(rank)?,
            None => self.chosen(&arrival)?,
        };
        // The same request twice would be counted twice.
        self.ended(&arrival.key);
        self.turn = (engine + 1) % self.engines.len();
        let uncached = u64::from(arrival.tokens) - self.cached_tokens(engine, &arrival);
        let state = &mut self.engines[engine];
        state.requests += 1;
        state.queued_tokens += uncached;
        state.expect(arrival.blocks);
        let placed = Placed { engine, uncached, started: false, blocks: arrival.blocks.into() };
        self.requests.insert(arrival.key, placed);
        Ok(engine)
    }

    /// An engine has a request until it is over, of which there is nothing to compute.
    pub fn passes(&mut self, engine: usize, key: RequestKey) {
        self.ended(&key);
        self.engines[engine].requests += 1;
        self.requests.insert(key, Placed { engine, uncached: 0, started: true, blocks: Box::default() });
    }

    fn named(&self, rank: u32) -> Result<usize, NoEngine> {
        let engine = rank as usize;
        match self.engines.get(engine).map(|engine| engine.state) {
            None => Err(NoEngine::NoSuchRank { rank, engines: self.engines.len() }),
            Some(State::Waiting | State::Ready) => Ok(engine),
            Some(State::Away | State::Draining) => Err(NoEngine::RankAway { rank }),
        }
    }

    fn chosen(&self, arrival: &Arrival<'_>) -> Result<usize, NoEngine> {
        // Where none is ready, one that is not says why.
        let wanted = [State::Ready, State::Waiting];
        let state = wanted.into_iter().find(|state| self.engines.iter().any(|engine| engine.state == *state));
        let state = state.ok_or(NoEngine::AllAway)?;
        let count = self.engines.len();
        let mut in_turn =
            (0..count).map(|offset| (self.turn + offset) % count).filter(|engine| self.engines[*engine].state == state);
        let found = match (arrival.session.filter(|session| !session.is_empty()), self.policy) {
            (Some(session), _) => in_turn.max_by_key(|engine| affinity(session, *engine)),
            (None, Policy::RoundRobin) => in_turn.next(),
            // Of equal ones the first, which is the one whose turn it is.
            (None, Policy::Prefix | Policy::LeastLoaded) => in_turn.min_by_key(|engine| self.cost(*engine, arrival)),
        };
        found.ok_or(NoEngine::AllAway)
    }

    /// Tokens that an engine computes before the request's first one, weighed.
    fn cost(&self, engine: usize, arrival: &Arrival<'_>) -> u64 {
        let uncached = u64::from(arrival.tokens) - self.cached_tokens(engine, arrival);
        self.engines[engine].load() + UNCACHED_WEIGHT * uncached
    }

    fn cached_tokens(&self, engine: usize, arrival: &Arrival<'_>) -> u64 {
        if !self.looks_at_blocks() {
            return 0;
        }
        let cached = self.engines[engine].cached(arrival.blocks) as u64 * u64::from(arrival.block_size);
        // The last token is computed in any case.
        cached.min(u64::from(arrival.tokens).saturating_sub(1))
    }

    /// The engine that has a request.
    pub fn engine_of(&self, key: &RequestKey) -> Option<usize> {
        self.requests.get(key).map(|placed| placed.engine)
    }

    /// A request runs: its prompt waits no longer.
    pub fn started(&mut self, key: &RequestKey) {
        if let Some(placed) = self.requests.get_mut(key)
            && !std::mem::replace(&mut placed.started, true)
        {
            self.engines[placed.engine].queued_tokens -= placed.uncached;
        }
    }

    /// A request is over.
    pub fn ended(&mut self, key: &RequestKey) {
        self.started(key);
        if let Some(placed) = self.requests.remove(key) {
            let engine = &mut self.engines[placed.engine];
            engine.requests -= 1;
            engine.expect_no_more(&placed.blocks);
        }
    }

    /// A gateway is gone, and its requests with it.
    pub fn gateway_gone(&mut self, gateway: u64) {
        let gone: Vec<_> = self.requests.keys().filter(|key| key.gateway == gateway).copied().collect();
        gone.iter().for_each(|key| self.ended(key));
    }

    /// What an engine says of its cache is to follow: what it held before does not count.
    pub fn clear_blocks(&mut self, engine: usize) {
        self.engines[engine].clear_blocks();
    }

    /// Blocks that an engine's prefix cache has lost, then blocks that it holds now.
    pub fn blocks_changed(&mut self, engine: usize, removed: &[u64], stored: &[u64]) {
        self.engines[engine].remove(removed);
        self.engines[engine].store(stored);
    }

    /// How many requests an engine says it has.
    pub fn reported(&mut self, engine: usize, requests: u32) {
        self.engines[engine].reported = requests;
    }

    /// How many requests are in flight, as far as they went through here.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// How well an engine suits a session: the best of those that are there gets it, so that only the sessions of an
/// engine that is lost move (rendezvous hashing).
fn affinity(session: &str, engine: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    session.hash(&mut hasher);
    engine.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;
