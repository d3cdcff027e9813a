//! Who may talk to whom, and what a listener owes those who may.

use std::time::Duration;

use link::{Address, LinkError, Listener};
use proto::{DetokenizerReply, Hello, TokenBatch};

use crate::bed::{Accepted, Bed, Dialled, batch, hello};

pub async fn the_peers_learn_who_they_talk_to(bed: Bed) {
    let (a, b, _listener) = bed.link().await;
    assert_eq!((a.peer.service.as_str(), b.peer.service.as_str()), ("listener", "dialer"));
    assert_eq!(a.peer.pid, std::process::id());
    assert_eq!(a.peer.instance, b.peer.instance);
}

pub async fn who_does_not_fit_is_refused_with_a_reason(bed: Bed) {
    let mine = link::hello("listener", "tokens", "model-a");
    let address: Address = bed.free_address();
    let mut listener = Listener::bind(&address, mine, bed.options.clone()).await.unwrap();
    let check = async |theirs: Hello, words: &[&str]| match link::connect::<TokenBatch, DetokenizerReply>(
        &address,
        theirs,
        &bed.options,
    )
    .await
    {
        Err(LinkError::Refused { reason }) => assert!(words.iter().all(|word| reason.contains(word)), "{reason}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("let in, against {words:?}"),
    };
    let good = link::hello("dialer", "tokens", "model-a");
    check(Hello { protocol_version: 99, ..good.clone() }, &["protocol version 99", "dialer"]).await;
    check(Hello { channel: "steps".into(), ..good.clone() }, &["`steps`", "`tokens`"]).await;
    check(Hello { model_fingerprint: "model-b".into(), ..good.clone() }, &["model-a", "model-b"]).await;
    // None of them became a link: the first one to be accepted is the one that fits.
    let unknown = Hello { model_fingerprint: String::new(), rank: 3, ..good };
    let dialling = link::connect::<TokenBatch, DetokenizerReply>(&address, unknown, &bed.options);
    let (dialled, accepted) = tokio::join!(dialling, listener.accept());
    let accepted: Accepted = accepted.unwrap();
    assert_eq!((dialled.unwrap().peer.service.as_str(), accepted.peer.rank), ("listener", 3));
}

/// Somebody connects and says nothing, or nonsense; the next one is served at once.
pub async fn a_slow_or_silent_peer_delays_nobody(bed: Bed) {
    let mut listener = bed.listener().await;
    let address = listener.address().clone();
    let (_silent, mut rude) = (raw(&address).await, raw(&address).await);
    rude.write_all(&[0xff; 64]).await.unwrap();
    let (dialled, accepted) = tokio::join!(bed.dial(&address), listener.accept());
    let (mut dialled, mut accepted): (Dialled, Accepted) = (dialled.unwrap(), accepted.unwrap());
    dialled.sender.send(&batch(1)).await.unwrap();
    assert_eq!(accepted.receiver.recv().await.unwrap(), batch(1));
}

use tokio::io::{AsyncWrite, AsyncWriteExt};

async fn raw(address: &Address) -> Box<dyn AsyncWrite + Unpin + Send> {
    match address {
        Address::Grpc(host) => Box::new(tokio::net::TcpStream::connect(host).await.unwrap()),
        Address::Ring(path) | Address::GrpcUnix(path) => Box::new(tokio::net::UnixStream::connect(path).await.unwrap()),
    }
}

pub async fn many_peers_are_accepted(bed: Bed) {
    let mut listener = bed.listener().await;
    let address = listener.address().clone();
    let dialling = async {
        let mut links = Vec::new();
        for n in 0..40 {
            let mut link: Dialled = bed.dial(&address).await.unwrap();
            link.sender.send(&batch(n)).await.unwrap();
            links.push(link);
        }
        links
    };
    let accepting = async {
        let mut links = Vec::new();
        for n in 0..40 {
            let mut link: Accepted = listener.accept().await.unwrap();
            assert_eq!(link.receiver.recv().await.unwrap(), batch(n));
            links.push(link);
        }
        links
    };
    let (dialled, mut accepted) = tokio::join!(dialling, accepting);
    // The listener's end does not end the links.
    drop(listener);
    for (n, mut link) in dialled.into_iter().enumerate() {
        link.sender.send(&batch(n as u32 + 100)).await.unwrap();
        assert_eq!(accepted[n].receiver.recv().await.unwrap(), batch(n as u32 + 100));
    }
}

pub async fn nobody_listening_is_an_error_at_once(bed: Bed) {
    let address = bed.free_address();
    assert!(matches!(bed.dial(&address).await, Err(LinkError::Io { doing: "connecting", .. })));
    // A listener that never answers the handshake is a deadline.
    let (Address::Ring(path) | Address::GrpcUnix(path)) = address else { return };
    let path = path.with_file_name("mute.sock");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _mute = tokio::net::UnixListener::bind(&path).unwrap();
    let options = link::LinkOptions { connect_deadline: Duration::from_millis(50), ..bed.options.clone() };
    let address = if bed.is_ring() { Address::Ring(path) } else { Address::GrpcUnix(path) };
    let outcome = link::connect::<TokenBatch, DetokenizerReply>(&address, hello("dialer"), &options).await;
    assert!(matches!(outcome, Err(LinkError::Deadline { doing: "connecting" })));
}
