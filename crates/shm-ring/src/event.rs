//! Wake-up by eventfd, awaited through tokio's `AsyncFd`.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::event::EventfdFlags;
use tokio::io::{Interest, unix::AsyncFd};

use crate::error::RingError;

/// An event that one process signals and the other awaits.
#[derive(Debug)]
pub(crate) struct Event(AsyncFd<OwnedFd>);

impl Event {
    /// A new event.
    pub(crate) fn create() -> Result<OwnedFd, RingError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        rustix::event::eventfd(0, flags).map_err(io::Error::from).map_err(RingError::io("making an eventfd"))
    }

    /// Registers a descriptor, made here or by the peer, with the current runtime.
    pub(crate) fn register(fd: OwnedFd) -> Result<Self, RingError> {
        // SAFETY: an `OwnedFd` stays open, and the same descriptor, until it is dropped.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(registered.map_err(io::Error::from).map_err(RingError::io("registering an eventfd"))?))
    }

    /// Wakes the waiter.
    pub(crate) fn signal(&self) {
        // It fails only when the count is at its maximum, 2^64 - 2 signals away.
        let _ = rustix::io::write(self.0.get_ref().as_fd(), &1u64.to_ne_bytes());
    }

    /// Waits for a signal. Cancel-safe. May return without one: look again, then wait again.
    ///
    /// The count is never read: epoll reports each write as an edge, and tokio keeps the edge until it is cleared here.
    pub(crate) async fn wait(&self) -> Result<(), RingError> {
        let mut ready = self.0.readable().await.map_err(RingError::io("waiting for an eventfd"))?;
        ready.clear_ready();
        Ok(())
    }
}
