//! Socket files: made, replaced when stale, left alone when alive or somebody else's.

use std::{os::unix::fs::FileTypeExt, path::Path};

use link::{Address, Link, LinkError, LinkOptions, Listener};
use proto::Inbound;

async fn bind(path: &Path) -> Result<Listener, LinkError> {
    Listener::bind(&Address::Ring(path.to_owned()), link::hello("a", "tokens", ""), LinkOptions::default()).await
}

fn words(outcome: Result<Listener, LinkError>) -> String {
    outcome.err().expect("it listens").to_string()
}

#[tokio::test]
async fn a_live_listener_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/x.sock");
    let listener = bind(&path).await.unwrap();
    let error = words(bind(&path).await);
    assert!(error.contains("another process is listening") && error.contains("x.sock"), "{error}");
    drop(listener);
    bind(&path).await.unwrap();
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let stale = folder.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    assert!(stale.exists());
    bind(&stale).await.unwrap();

    let precious = folder.path().join("precious.txt");
    std::fs::write(&precious, "data").unwrap();
    let error = words(bind(&precious).await);
    assert!(error.contains("is not a socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "data");
}

#[tokio::test]
async fn a_socket_file_goes_with_its_listener_and_a_successors_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sock");
    let first = bind(&path).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let second = bind(&path).await.unwrap();
    drop(first);
    assert!(std::fs::metadata(&path).unwrap().file_type().is_socket());
    drop(second);
    assert!(!path.exists());
}

#[tokio::test]
async fn one_listener_listens_at_several_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let hello = |pid| link::Hello { pid, ..link::hello("a", "tokens", "") };
    let ring = Address::Ring(folder.path().join("x.sock"));
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let addresses = [ring, Address::Grpc(free.to_string())];
    let mut listener = Listener::bind_all(&addresses, hello(0), LinkOptions::default()).await.unwrap();
    for (number, address) in (1..).zip(&addresses) {
        let options = LinkOptions::default();
        let dialled = link::redial::<Inbound, Inbound>(address, hello(number), &options);
        let (link, accepted) = tokio::join!(dialled, listener.accept::<Inbound, Inbound>());
        let Link { peer, .. } = accepted.unwrap();
        assert_eq!((peer.pid, link.peer.pid), (number, 0), "{address}");
    }
    assert!(Listener::bind_all(&[], hello(0), LinkOptions::default()).await.is_err());
    let again = words(Listener::bind_all(&addresses[1..], hello(0), LinkOptions::default()).await);
    assert!(again.contains(&free.to_string()), "{again}");
}

/// Of many that start at once, exactly one listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_race_for_a_stale_socket_has_one_winner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let racers: Vec<_> =
        (0..8).map(|_| path.clone()).map(|path| tokio::spawn(async move { bind(&path).await })).collect();
    let mut listeners = Vec::new();
    for racer in racers {
        listeners.extend(racer.await.unwrap());
    }
    assert_eq!(listeners.len(), 1);
}
