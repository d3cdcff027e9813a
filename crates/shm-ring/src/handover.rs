//! Two rings and their four events, passed from one process to the other on a Unix socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use tokio::{io::Interest, net::UnixStream};

use crate::{
    channel::{Receiver, Sender},
    error::RingError,
    event::Event,
    peer::Peer,
    ring::{Consumer, Producer},
    segment::Segment,
};

/// Descriptors of a pair of rings: each ring's memory, its "a record is there" and its "room is there".
const DESCRIPTORS: usize = 6;
/// The byte that carries them.
const MARK: u8 = b'R';

/// One ring's descriptors.
struct RingFds {
    memory: OwnedFd,
    data: OwnedFd,
    room: OwnedFd,
}

/// Makes a ring of at least `capacity` bytes for each direction and hands them to the peer. The socket serves from now
/// on as its sign of life.
pub async fn offer(socket: UnixStream, capacity: usize) -> Result<(Sender, Receiver), RingError> {
    let (outgoing, incoming) = (Ring::make(capacity)?, Ring::make(capacity)?);
    let (out_fds, in_fds) = (&outgoing.fds, &incoming.fds);
    let fds = [&out_fds.memory, &out_fds.data, &out_fds.room, &in_fds.memory, &in_fds.data, &in_fds.room];
    send(&socket, &fds.map(|fd| fd.as_fd())).await?;
    assemble(socket, outgoing, incoming)
}

/// Takes the rings that the peer offers, after checking them.
pub async fn take(socket: UnixStream) -> Result<(Sender, Receiver), RingError> {
    let [in_memory, in_data, in_room, out_memory, out_data, out_room] = receive(&socket).await?;
    let incoming = Ring::open(RingFds { memory: in_memory, data: in_data, room: in_room })?;
    let outgoing = Ring::open(RingFds { memory: out_memory, data: out_data, room: out_room })?;
    assemble(socket, outgoing, incoming)
}

/// The ring of one direction.
struct Ring {
    segment: Segment,
    fds: RingFds,
}

impl Ring {
    fn make(capacity: usize) -> Result<Self, RingError> {
        let (segment, memory) = Segment::create(capacity)?;
        Ok(Self { segment, fds: RingFds { memory, data: Event::create()?, room: Event::create()? } })
    }

    /// Maps and checks the memory of a ring that the peer made.
    fn open(fds: RingFds) -> Result<Self, RingError> {
        Ok(Self { segment: Segment::open(fds.memory.as_fd())?, fds })
    }
}

/// The memory descriptors close here: the mappings keep the memory.
fn assemble(socket: UnixStream, outgoing: Ring, incoming: Ring) -> Result<(Sender, Receiver), RingError> {
    let peer = Arc::new(Peer::watch(socket));
    let (data, room) = (Event::register(outgoing.fds.data)?, Event::register(outgoing.fds.room)?);
    let sender = Sender::new(Producer::new(outgoing.segment), data, room, peer.clone());
    let (data, room) = (Event::register(incoming.fds.data)?, Event::register(incoming.fds.room)?);
    let receiver = Receiver::new(Consumer::new(incoming.segment), data, room, peer);
    Ok((sender, receiver))
}

async fn send(socket: &UnixStream, fds: &[BorrowedFd<'_>; DESCRIPTORS]) -> Result<(), RingError> {
    let attempt = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("no space for the descriptors"));
        }
        rustix::net::sendmsg(socket, &[IoSlice::new(&[MARK])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    };
    socket.async_io(Interest::WRITABLE, attempt).await.map_err(RingError::io("handing over rings"))
}

async fn receive(socket: &UnixStream) -> Result<[OwnedFd; DESCRIPTORS], RingError> {
    let attempt = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut mark = [0];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut mark)], &mut control, flags)?;
        let mut fds = Vec::with_capacity(DESCRIPTORS);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok((got.bytes, mark[0], fds))
    };
    let (bytes, mark, fds) =
        socket.async_io(Interest::READABLE, attempt).await.map_err(RingError::io("taking over rings"))?;
    if bytes == 0 {
        return Err(RingError::Gone);
    }
    if mark != MARK {
        return Err(RingError::Foreign { what: "mark", found: mark.into(), expected: MARK.into() });
    }
    let expected = DESCRIPTORS as u64;
    fds.try_into().map_err(|fds: Vec<_>| RingError::Foreign { what: "descriptors", found: fds.len() as u64, expected })
}
