//! The links to the stages before and after this one.
//!
//! A rank of a stage listens for the same rank of the stage before it, for as long as its process lives, and dials that
//! of the stage after it when a group forms. Links belong to a group: the dialer's first message names the epoch, and a
//! link of another epoch is dropped. The main thread keeps the links, and the compute thread waits for what they bring.

mod group;
mod links;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use anyhow::Context;
use link::{Address, Hello, LinkOptions, Listener};
use proto::{FormGroup, StageRows};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use crate::config::{Args, Place};
pub(crate) use group::StageGroup;

/// Messages of rows that may wait on either side of a link.
const QUEUE: usize = 64;
/// No rank is waited for.
const NO_RANK: u32 = u32::MAX;

/// What a link brings: rows, or why there will be none.
pub(crate) type Brought = Result<StageRows, String>;

/// The ends of a group's links, for the compute thread.
#[derive(Default)]
pub(crate) struct Neighbours {
    /// From the stage before.
    before: Option<Inlet>,
    /// To the stage after.
    after: Option<Outlet>,
}

/// Brings rows of another stage. The first message says that the link is there.
struct Inlet {
    rank: u32,
    rows: mpsc::Receiver<Brought>,
    waits_for: Arc<AtomicU32>,
}

/// Takes rows to another stage.
struct Outlet {
    rank: u32,
    rows: mpsc::Sender<StageRows>,
    /// First that the link is there, later why it is no more.
    state: mpsc::Receiver<Brought>,
    waits_for: Arc<AtomicU32>,
}

/// The main thread's part: a listener, and the links of the present group.
pub(crate) struct StageLinks {
    place: Place,
    hello: Hello,
    options: LinkOptions,
    listener: Option<Arc<Mutex<Listener>>>,
    address: String,
    tasks: JoinSet<()>,
    /// The rank that the compute thread waits for.
    waits_for: Arc<AtomicU32>,
}

impl StageLinks {
    /// Listens for the stage before, if there is one.
    pub(crate) async fn listen(args: &Args, options: &LinkOptions, fingerprint: &str) -> anyhow::Result<Self> {
        let place = args.place();
        // Rows wait while the other stage computes, which may take as long as a group waits at all.
        let options = LinkOptions { send_deadline: args.group.distributed_timeout(), ..options.clone() };
        let mut hello = link::hello("worker-svc", "stage", fingerprint);
        hello.rank = args.rank;
        let (mut listener, mut address) = (None, String::new());
        if let Some(asked) = args.stages.listen_stage.as_ref().filter(|_| place.before().is_some()) {
            let bound = Listener::bind(asked, hello.clone(), options.clone()).await.context("--listen-stage")?;
            address = bound.address().to_string();
            listener = Some(Arc::new(Mutex::new(bound)));
        }
        let waits_for = Arc::new(AtomicU32::new(NO_RANK));
        Ok(Self { place, hello, options, listener, address, tasks: JoinSet::new(), waits_for })
    }

    /// Where it listens; empty where it does not.
    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    /// Begins to connect the group's neighbours; what the group before had is over.
    pub(crate) fn connect(&mut self, form: &FormGroup) -> Neighbours {
        self.disconnect();
        let (place, epoch) = (self.place, form.epoch);
        let before = place.before().zip(self.listener.clone()).map(|(rank, listener)| {
            let (out, rows) = mpsc::channel(QUEUE);
            let awaited = links::Awaited { rank, epoch, wait: self.options.send_deadline };
            self.tasks.spawn(links::receive(listener, awaited, out));
            Inlet { rank, rows, waits_for: self.waits_for.clone() }
        });
        let after = place.after().map(|rank| {
            let ((rows, outgoing), (says, state)) = (mpsc::channel(QUEUE), mpsc::channel(2));
            let address = form.stage_address.get(rank as usize).cloned().unwrap_or_default();
            let dialer = links::Dialer { address, hello: self.hello.clone(), options: self.options.clone() };
            self.tasks.spawn(links::send(dialer, epoch, links::Outgoing { outgoing, says }));
            Outlet { rank, rows, state, waits_for: self.waits_for.clone() }
        });
        Neighbours { before, after }
    }

    /// Ends the present group's links, and all waits for them.
    pub(crate) fn disconnect(&mut self) {
        self.tasks.abort_all();
        self.tasks = JoinSet::new();
    }

    /// The ranks that this one waits for: one of another stage, and those of its own that have come less far, numbered
    /// within the stage.
    pub(crate) fn waits_for(&self, in_stage: &[usize]) -> Vec<u32> {
        let neighbour = Some(self.waits_for.load(Relaxed)).filter(|rank| *rank != NO_RANK);
        let first = self.place.rank - self.place.in_stage();
        neighbour.into_iter().chain(in_stage.iter().map(|rank| first + *rank as u32)).collect()
    }
}

/// Reads where another stage listens.
fn parse(address: &str) -> Result<Address, String> {
    address.parse().map_err(|error| format!("it says that it listens at {address:?}: {error}"))
}
