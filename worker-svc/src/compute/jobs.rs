//! The way of jobs to the compute thread. Jobs that wait are counted where the watchdog looks, so that a thread that
//! hangs before it has taken one is found, too.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

use super::watchdog::Activity;

/// Hands jobs over.
pub(crate) struct JobSender<J> {
    queue: SyncSender<J>,
    activity: Activity,
}

/// The thread's end.
pub(crate) struct JobReceiver<J> {
    queue: Receiver<J>,
    activity: Activity,
}

/// A queue of at most `capacity` jobs.
pub(crate) fn job_queue<J>(capacity: usize, activity: &Activity) -> (JobSender<J>, JobReceiver<J>) {
    let (sender, receiver) = sync_channel(capacity);
    let (sending, receiving) = (activity.clone(), activity.clone());
    (JobSender { queue: sender, activity: sending }, JobReceiver { queue: receiver, activity: receiving })
}

impl<J> JobSender<J> {
    /// Hands a job over without waiting. Fails when the queue is full, or the thread is gone.
    pub(crate) fn try_send(&self, job: J) -> Result<(), TrySendError<J>> {
        // First: the thread may take it at once.
        self.activity.queued();
        self.queue.try_send(job).inspect_err(|_| self.activity.taken())
    }
}

impl<J> JobReceiver<J> {
    /// Waits for a job, idle; absent: the process is ending.
    pub(crate) fn recv(&self) -> Option<J> {
        self.activity.idle();
        self.queue.recv().ok().inspect(|_| self.activity.taken())
    }

    /// A job that waits, or that the process is ending.
    pub(crate) fn arrived(&self) -> Option<Option<J>> {
        match self.queue.try_recv() {
            Ok(job) => {
                self.activity.taken();
                Some(Some(job))
            }
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// The same, of one that comes within `most`.
    pub(crate) fn arrived_within(&self, most: Duration) -> Option<Option<J>> {
        if most.is_zero() {
            return self.arrived();
        }
        match self.queue.recv_timeout(most) {
            Ok(job) => {
                self.activity.taken();
                Some(Some(job))
            }
            Err(RecvTimeoutError::Disconnected) => Some(None),
            Err(RecvTimeoutError::Timeout) => None,
        }
    }
}
