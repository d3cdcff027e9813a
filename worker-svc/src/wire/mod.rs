//! The link to the scheduler.

mod step_result;

use link::{Link, LinkError, LinkOptions, Sender};
use proto::{FromWorker, ToWorker, from_worker::Event};

use self::step_result::split;
use crate::config::Args;

/// The worker's end of the `steps` channel.
pub(crate) type SchedulerLink = Link<FromWorker, ToWorker>;

/// Dials the scheduler until it answers.
pub(crate) async fn dial(args: &Args, options: &LinkOptions, fingerprint: &str) -> SchedulerLink {
    let mut hello = link::hello("worker-svc", "steps", fingerprint);
    hello.rank = args.rank;
    link::redial(&args.scheduler, hello, options).await
}

/// The sending half of the link.
pub(crate) struct Out(pub Sender<FromWorker>);

impl Out {
    /// Sends one event, in parts if it is too large; the error says why the link ended.
    pub async fn send(&mut self, event: Event) -> Result<(), String> {
        let message = FromWorker { event: Some(event) };
        let sent = match self.0.send(&message).await {
            Err(LinkError::TooLarge { limit, .. }) => self.0.send_many(&split(message, limit)).await,
            sent => sent,
        };
        sent.map_err(|error| error.to_string())
    }
}
