//! The engines behind this process: what is to be sent to which, and who has which request.
//!
//! One engine gets everything, and nothing is remembered of it. Of several, the [`Router`] chooses one for each request
//! by what they report, and what is said of a request later goes where it is.

use std::sync::Arc;

use block_hash::{BlockHash, Identity, prompt_hashes};
use link::{LinkError, Sender};
use proto::{
    Abort, DrainSeen, EngineReport, Failure, GatewayGone, Inbound, Rejected, Request, RequestKey, Watch, engine_report,
    inbound::Event, prompt::Kind,
};
use router::{Arrival, Router, State};
use tracing::{info, warn};

use crate::{config::Args, error};

/// How the engines name the blocks of prompts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockNames {
    model: String,
    /// Tokens of a block.
    block_size: u32,
}

impl BlockNames {
    /// Names of the full blocks of an encoded prompt. An adapter has an identity of its own in each engine, so that
    /// nothing is known of where its blocks are.
    pub(crate) fn of(&self, request: &Request) -> Vec<u64> {
        let Some(Kind::Ids(ids)) = request.prompt.as_ref().and_then(|prompt| prompt.kind.as_ref()) else {
            return Vec::new();
        };
        if !request.adapter.is_empty() {
            return Vec::new();
        }
        let identity = Identity { model: &self.model, adapter: "", cache_salt: &request.cache_salt };
        let hashes = prompt_hashes(BlockHash::root(identity), &ids.ids, &request.media, self.block_size);
        hashes.iter().map(BlockHash::short).collect()
    }
}

/// All engines, by data-parallel rank.
pub(crate) struct Engines {
    links: Vec<Engine>,
    /// Absent where there is one engine.
    router: Option<Router>,
    /// The rank of the one engine.
    rank: u32,
    /// Absent where no choice depends on them.
    names: Option<Arc<BlockNames>>,
}

#[derive(Default)]
struct Engine {
    link: Option<Sender<Inbound>>,
    outgoing: Vec<Inbound>,
    /// Reports of this link.
    reports: u64,
}

impl Engines {
    /// Those of the flags, none of them connected.
    pub(crate) fn new(args: &Args) -> Self {
        let count = args.scheduler.len();
        Self {
            links: (0..count).map(|_| Engine::default()).collect(),
            router: (count > 1).then(|| Router::new(args.data_parallel_policy, count)),
            rank: args.replica.data_parallel_rank,
            names: None,
        }
    }

    /// Whether there is one to send to.
    pub(crate) fn any_is_up(&self) -> bool {
        self.links.iter().any(|engine| engine.link.is_some())
    }

    /// How blocks are named, if choices depend on them.
    pub(crate) fn block_names(&self) -> Option<Arc<BlockNames>> {
        self.names.clone()
    }

    /// An engine's scheduler is there.
    pub(crate) fn up(&mut self, engine: usize, link: Sender<Inbound>) {
        let state = &mut self.links[engine];
        *state = Engine { link: Some(link), ..Engine::default() };
        if let Some(router) = &mut self.router {
            state.outgoing.push(Inbound { event: Some(Event::Watch(Watch {})) });
            router.set_state(engine, State::Waiting);
        }
    }

    /// An engine's scheduler is lost. Its requests fail, those of them that have ended already a second time: gateways
    /// know what they wait for.
    pub(crate) fn lost(&mut self, engine: usize) {
        self.links[engine] = Engine::default();
        let Some(router) = &mut self.router else { return };
        let had = router.lost(engine);
        if !had.is_empty() {
            warn!(engine, requests = had.len(), "requests were lost with their engine");
        }
        for key in had {
            self.reject(Rejected { key: Some(key), failure: Some(error::engine_lost()) });
        }
    }

    /// An engine says what happened in it.
    pub(crate) fn reported(&mut self, engine: usize, report: EngineReport) {
        let Some(router) = &mut self.router else { return };
        let state = &mut self.links[engine];
        state.reports += 1;
        if state.link.is_none() || report.sequence != state.reports {
            // Links are lossless: this is of one that was given up.
            return;
        }
        report.started.iter().for_each(|key| router.started(key));
        report.ended.iter().for_each(|key| router.ended(key));
        router.reported(engine, report.running + report.waiting);
        if report.fresh {
            router.clear_blocks(engine);
            if router.looks_at_blocks() && report.block_size > 0 {
                self.names = Some(Arc::new(BlockNames { model: report.model.clone(), block_size: report.block_size }));
            }
        }
        router.blocks_changed(engine, &report.removed, &report.stored);
        let now = match report.state() {
            engine_report::State::Waiting => State::Waiting,
            engine_report::State::Ready => State::Ready,
            engine_report::State::Draining => State::Draining,
        };
        if router.state(engine) != now {
            info!(engine, state = ?now, "an engine has changed");
            router.set_state(engine, now);
        }
        if now == State::Draining {
            let seen = DrainSeen { sequence: report.sequence };
            state.outgoing.push(Inbound { event: Some(Event::DrainSeen(seen)) });
        }
    }

    /// Chooses an engine for an encoded request, whose blocks have these names, and hands it on. Returns which.
    pub(crate) fn place(&mut self, key: RequestKey, request: Request, blocks: &[u64]) -> Result<usize, Failure> {
        let engine = match &mut self.router {
            None => match request.data_parallel_rank.filter(|rank| *rank != self.rank) {
                Some(rank) => return Err(error::not_our_rank(rank, self.rank)),
                None => 0,
            },
            Some(router) => {
                let arrival = Arrival {
                    key,
                    tokens: tokens(&request),
                    blocks,
                    block_size: self.names.as_ref().map_or(0, |names| names.block_size),
                    session: Some(request.session_id.as_str()),
                    rank: request.data_parallel_rank,
                };
                router.choose(arrival).map_err(error::no_engine)?
            }
        };
        self.links[engine].outgoing.push(Inbound { event: Some(Event::Request(request)) });
        Ok(engine)
    }

    /// A request is aborted: its engine is told, and every engine of one that nothing is known of.
    pub(crate) fn abort(&mut self, key: RequestKey) {
        let known = self.router.as_ref().and_then(|router| router.engine_of(&key));
        let event = Event::Abort(Abort { key: Some(key) });
        match known {
            Some(engine) => self.links[engine].outgoing.push(Inbound { event: Some(event) }),
            None => self.tell_all(&event),
        }
    }

    /// A gateway is gone.
    pub(crate) fn gateway_gone(&mut self, gateway: u64) {
        self.router.iter_mut().for_each(|router| router.gateway_gone(gateway));
        self.tell_all(&Event::GatewayGone(GatewayGone { gateway }));
    }

    /// A request ends here. Any engine passes that on; one that drains only where there is no other. Of several, the
    /// one that does has it until it reports its end: what was not passed on when it is lost goes to the next.
    pub(crate) fn reject(&mut self, rejected: Rejected) {
        let drains = |engine| self.router.as_ref().is_some_and(|router| router.state(engine) == State::Draining);
        let connected = (0..self.links.len()).filter(|engine| self.links[*engine].link.is_some());
        let Some(engine) = connected.min_by_key(|engine| drains(*engine)) else { return };
        if let (Some(router), Some(key)) = (&mut self.router, rejected.key) {
            router.passes(engine, key);
        }
        self.links[engine].outgoing.push(Inbound { event: Some(Event::Rejected(rejected)) });
    }

    fn tell_all(&mut self, event: &Event) {
        for engine in self.links.iter_mut().filter(|engine| engine.link.is_some()) {
            engine.outgoing.push(Inbound { event: Some(event.clone()) });
        }
    }

    /// Sends what there is to send. Engines that do not take it are lost; returns which, and why. One that is full is
    /// waited for, up to the link's deadline: its ring holds more than a scheduler that runs leaves in it.
    pub(crate) async fn send(&mut self) -> Vec<(usize, LinkError)> {
        let mut lost = Vec::new();
        for (number, engine) in self.links.iter_mut().enumerate() {
            if engine.outgoing.is_empty() {
                continue;
            }
            if let Some(link) = &mut engine.link
                && let Err(error) = link.send_many(&engine.outgoing).await
            {
                lost.push((number, error));
            }
            engine.outgoing.clear();
        }
        lost
    }
}

/// Tokens of an encoded prompt.
pub(crate) fn tokens(request: &Request) -> u32 {
    match request.prompt.as_ref().and_then(|prompt| prompt.kind.as_ref()) {
        Some(Kind::Ids(ids)) => u32::try_from(ids.ids.len()).unwrap_or(u32::MAX),
        _ => 0,
    }
}
