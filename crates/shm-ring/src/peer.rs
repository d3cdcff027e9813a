//! Whether the other process still lives.
//!
//! The socket over which the rings were handed stays open and silent: its end is the peer's end, ordered or not. A
//! pidfd says the same even when a forked child of the peer has kept the socket open. The kernel closes both only after
//! the process has made its last store, so whoever learns of the death and then looks into the ring sees all that was
//! published.

use std::{
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::process::{Pid, PidfdFlags};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
};

/// The peer's signs of life.
#[derive(Debug)]
pub(crate) struct Peer {
    socket: UnixStream,
    /// Absent when the peer's pid is not visible from here (another pid namespace).
    process: Option<AsyncFd<OwnedFd>>,
    gone: AtomicBool,
}

impl Peer {
    /// Watches whoever is at the other end of `socket`.
    pub(crate) fn watch(socket: UnixStream) -> Self {
        let process = open_process(&socket);
        Self { socket, process, gone: AtomicBool::new(false) }
    }

    /// Whether the peer is known to be gone. Makes no system call while it lives.
    pub(crate) fn is_gone(&self) -> bool {
        if self.gone.load(Ordering::Relaxed) {
            return true;
        }
        // tokio answers `WouldBlock` by itself as long as epoll has reported nothing.
        let ended = !matches!(self.socket.try_read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::WouldBlock);
        let died = self.process.as_ref().is_some_and(|fd| fd.try_io(Interest::READABLE, |_| Ok(())).is_ok());
        if ended || died {
            self.gone.store(true, Ordering::Relaxed);
        }
        ended || died
    }

    /// Waits until the peer is gone. Cancel-safe.
    pub(crate) async fn gone(&self) {
        while !self.is_gone() {
            tokio::select! {
                _ = self.socket.readable() => {}
                _ = process_ended(self.process.as_ref()) => {}
            }
        }
    }
}

async fn process_ended(process: Option<&AsyncFd<OwnedFd>>) {
    match process {
        // The guard is dropped without clearing: a dead process stays dead.
        Some(fd) => drop(fd.readable().await),
        None => std::future::pending().await,
    }
}

fn open_process(socket: &UnixStream) -> Option<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(socket.peer_cred().ok()?.pid()?.max(0))?;
    let fd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // SAFETY: an `OwnedFd` stays open, and the same descriptor, until it is dropped.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.ok()
}
