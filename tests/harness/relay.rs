//! A relay between two machines that delays what passes, or lets nothing pass: TCP connections that a rule of iptables
//! redirects to it. What it holds back is held back behind connections that live, which no kernel tells of.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use rustix::{
    net::sockopt::ip_original_dst,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// Pieces of a direction that are on their way, at most.
const PIECES: usize = 256;
const PIECE: usize = 64 << 10;

/// A relay; dropping it ends it and all that goes through it.
pub struct Relay {
    listener: TcpListener,
    /// Where connections are redirected to.
    pub port: u16,
    gate: Arc<Gate>,
}

/// Whether anything passes, and after how long.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    delay: Duration,
    stalled: bool,
    over: bool,
}

impl Relay {
    /// Relays in a network namespace, by its file.
    pub fn start(namespace: &Path) -> anyhow::Result<Self> {
        let namespace = File::open(namespace).with_context(|| namespace.display().to_string())?;
        let gate = Arc::new(Gate::default());
        // A thread moves alone, and those that it starts are where it is.
        let entered = thread::spawn({
            let gate = gate.clone();
            move || -> anyhow::Result<TcpListener> {
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                let accepting = listener.try_clone()?;
                thread::spawn(move || accept(&accepting, &gate));
                Ok(listener)
            }
        });
        let listener = entered.join().map_err(|_| anyhow::anyhow!("the relay's thread panicked"))??;
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port, gate })
    }

    /// What comes from here on passes after this time, each way.
    pub fn delay(&self, delay: Duration) {
        self.gate.change(|state| state.delay = delay);
    }

    /// Lets nothing pass, or all again.
    pub fn stall(&self, stalled: bool) {
        self.gate.change(|state| state.stalled = stalled);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.gate.change(|state| state.over = true);
        // Its thread is in `accept`, which this ends.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    fn delay(&self) -> Duration {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).delay
    }

    /// Waits until something may pass. False: never again.
    fn opens(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.changed.wait_while(state, |state| state.stalled && !state.over);
        !state.unwrap_or_else(PoisonError::into_inner).over
    }
}

fn accept(listener: &TcpListener, gate: &Arc<Gate>) {
    while let Ok((near, _)) = listener.accept() {
        if let Err(error) = join(near, gate) {
            println!("the relay does not get through: {error}");
        }
    }
}

fn join(near: TcpStream, gate: &Arc<Gate>) -> io::Result<()> {
    let far = TcpStream::connect(SocketAddr::V4(ip_original_dst(&near)?))?;
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        to.set_nodelay(true)?;
        let (pieces, due) = sync_channel(PIECES);
        let (reading, writing) = (gate.clone(), gate.clone());
        thread::spawn(move || read(from, &pieces, &reading));
        thread::spawn(move || write(to, &due, &writing));
    }
    Ok(())
}

fn read(mut from: TcpStream, pieces: &SyncSender<(Instant, Vec<u8>)>, gate: &Gate) {
    let mut piece = vec![0; PIECE];
    while let Ok(length) = from.read(&mut piece) {
        // The end takes as long as what was before it.
        let sent = pieces.send((Instant::now() + gate.delay(), piece[..length].to_vec()));
        if sent.is_err() || length == 0 {
            return;
        }
    }
}

fn write(mut to: TcpStream, pieces: &Receiver<(Instant, Vec<u8>)>, gate: &Gate) {
    while let Ok((due, piece)) = pieces.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if !gate.opens() || piece.is_empty() || to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
