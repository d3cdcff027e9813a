//! The link to the scheduler.

use link::{Link, LinkOptions, Sender};
use proto::{FromWorker, ToWorker, from_worker::Event};

use crate::config::Args;

/// The worker's end of the `steps` channel.
pub(crate) type SchedulerLink = Link<FromWorker, ToWorker>;

/// Dials the scheduler until it answers.
pub(crate) async fn dial(args: &Args, fingerprint: &str) -> SchedulerLink {
    let mut hello = link::hello("worker-svc", "steps", fingerprint);
    hello.rank = args.rank;
    link::redial(&args.scheduler, hello, &LinkOptions::default()).await
}

/// What goes to the scheduler.
pub(crate) struct Out(pub Sender<FromWorker>);

impl Out {
    /// Sends one event; the error says why the link ended.
    pub async fn say(&mut self, event: Event) -> Result<(), String> {
        self.0.send(&FromWorker { event: Some(event) }).await.map_err(|error| error.to_string())
    }
}
