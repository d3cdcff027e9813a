//! Links over shared-memory rings: the Unix socket carries the handshake and the rings, then stays open as the sign of
//! life.

use std::{path::Path, sync::Arc};

use proto::{Hello, Welcome};
use tokio::{net::UnixStream, time::timeout};

use crate::{
    address::Address,
    arrivals::{Arrivals, Listening, accept_failed},
    error::LinkError,
    handshake,
    link::{Established, Incoming, Outgoing},
    options::LinkOptions,
    unix,
};

/// Dials a listener.
pub(crate) async fn connect(path: &Path, hello: &Hello, options: &LinkOptions) -> Result<Established, LinkError> {
    let shaking = async {
        let mut socket = UnixStream::connect(path).await.map_err(LinkError::io("connecting"))?;
        handshake::write(&mut socket, hello).await?;
        let peer = handshake::judge(hello, handshake::read::<Welcome>(&mut socket).await?)?;
        let (sender, receiver) = shm_ring::take(socket).await?;
        Ok(established(peer, sender, receiver))
    };
    timeout(options.connect_deadline, shaking).await.unwrap_or(Err(LinkError::Deadline { doing: "connecting" }))
}

/// Listens, and does the handshake with each peer that connects.
pub(crate) async fn listen(path: &Path, arrivals: Arrivals) -> Result<Listening, LinkError> {
    let (listener, file) = unix::bind(path).await?;
    let arrivals = Arc::new(arrivals);
    let accepting = async move {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let arrivals = arrivals.clone();
                    // Ends within the connect deadline.
                    tokio::spawn(async move { arrivals.supervise(welcome(socket, &arrivals)).await });
                }
                Err(error) => accept_failed(&arrivals.hello.channel, &error).await,
            }
        }
    };
    Ok(Listening { accepting: tokio::spawn(accepting), address: Address::Ring(path.to_owned()), file: Some(file) })
}

async fn welcome(mut socket: UnixStream, arrivals: &Arrivals) -> Result<(), LinkError> {
    let theirs = handshake::read::<Hello>(&mut socket).await?;
    let answer = handshake::answer(&arrivals.hello, &theirs);
    if !answer.accepted {
        handshake::write(&mut socket, &answer).await?;
        return Err(LinkError::Refused { reason: answer.reason });
    }
    // A place first: a peer that is welcomed is one that `accept` will return.
    let place = arrivals.place().await?;
    handshake::write(&mut socket, &answer).await?;
    let (sender, receiver) = shm_ring::offer(socket, arrivals.options.capacity()).await?;
    place.send(established(theirs, sender, receiver));
    Ok(())
}

fn established(peer: Hello, sender: shm_ring::Sender, receiver: shm_ring::Receiver) -> Established {
    Established {
        peer,
        outgoing: Outgoing::Ring(Box::new(sender)),
        incoming: Incoming::Ring { ring: Box::new(receiver), record: Vec::new() },
    }
}
