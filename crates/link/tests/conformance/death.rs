//! Ends: in order, by SIGKILL, and what comes after.

use link::LinkError;
use proto::{DetokenizerReply, TokenBatch};

use crate::{
    bed::{Accepted, Bed, Child, Dialled, batch, hello, large_batch},
    flow::fill,
};

/// Everything sent before a drop arrives, then the end, for good.
pub async fn a_link_dropped_on_either_side_gives_what_was_sent(bed: Bed) {
    let (mut a, mut b, listener) = bed.link().await;
    for n in 0..500 {
        a.sender.send(&batch(n)).await.unwrap();
    }
    drop(a);
    for n in 0..500 {
        assert_eq!(b.receiver.recv().await.unwrap(), batch(n));
    }
    for _ in 0..3 {
        assert!(matches!(b.receiver.recv().await, Err(LinkError::PeerGone)));
        assert!(matches!(b.receiver.try_recv(), Err(LinkError::PeerGone)));
    }
    assert!(matches!(until_refused(&mut b.sender).await, LinkError::PeerGone));

    drop(listener);
    let (mut a, mut b, _listener) = bed.link().await;
    let reply = |n| DetokenizerReply { stopped: vec![n], ..Default::default() };
    for n in 0..500 {
        b.sender.send(&reply(n)).await.unwrap();
    }
    drop(b);
    for n in 0..500 {
        assert_eq!(a.receiver.recv().await.unwrap(), reply(n));
    }
    assert!(matches!(a.receiver.recv().await, Err(LinkError::PeerGone)));
    assert!(matches!(until_refused(&mut a.sender).await, LinkError::PeerGone));
}

/// Sends until it fails; the error. A stream may take a few messages before it knows.
async fn until_refused<S: prost::Message + Default>(sender: &mut link::Sender<S>) -> LinkError {
    loop {
        if let Err(error) = sender.send(&S::default()).await {
            return error;
        }
    }
}

/// Killed in the middle of sending: whole messages in order, then the end.
pub async fn a_killed_peer_is_noticed_by_both_directions(bed: Bed) {
    let mut listener = bed.listener().await;
    for round in 0..8 {
        let mut child = Child::spawn("count", listener.address());
        let mut link: Accepted = listener.accept().await.unwrap();
        let kill_at = round * 13;
        let mut n = 0;
        let end = loop {
            if n == kill_at {
                child.kill();
            }
            match link.receiver.recv().await {
                Ok(message) => assert!(message == large_batch(n, 20_000), "message {n} is torn or out of order"),
                Err(error) => break error,
            }
            n += 1;
        };
        assert!(matches!(end, LinkError::PeerGone), "{end}");
        assert!(n >= kill_at, "gone before the kill");
        assert!(matches!(until_refused(&mut link.sender).await, LinkError::PeerGone));
    }
}

pub async fn a_sender_without_room_notices_the_death(bed: Bed) {
    let mut listener = bed.listener().await;
    let mut child = Child::spawn("sleep", listener.address());
    let mut link: link::Link<TokenBatch, DetokenizerReply> = listener.accept().await.unwrap();
    fill(&mut link.sender).await;
    let waiting = tokio::spawn(async move { link.sender.send(&large_batch(0, 1000)).await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    child.kill();
    assert!(matches!(waiting.await.unwrap(), Err(LinkError::PeerGone)));
}

/// `redial` waits for the first listener, and finds the one after it; a dead one's socket file is in nobody's way.
pub async fn a_dead_listener_is_followed_by_the_next(bed: Bed) {
    let address = bed.free_address();
    let redial = || link::redial::<TokenBatch, DetokenizerReply>(&address, hello("dialer"), &bed.options);
    let mut waiting = std::pin::pin!(redial());
    let early = tokio::time::timeout(std::time::Duration::from_millis(30), waiting.as_mut()).await;
    assert!(early.is_err(), "connected to nobody");

    let mut instances = std::collections::HashSet::new();
    let mut first = Some(waiting);
    for round in 0..3 {
        let mut child = Child::spawn("echo", &address);
        let mut link: Dialled = match first.take() {
            Some(waiting) => waiting.await,
            None => redial().await,
        };
        assert!(instances.insert(link.peer.instance), "a restart looks like a reconnect");
        link.sender.send(&batch(round)).await.unwrap();
        assert_eq!(link.receiver.recv().await.unwrap().stopped, [u64::from(round)]);
        child.kill();
        assert!(matches!(link.receiver.recv().await, Err(LinkError::PeerGone)));
    }
}
