//! One suite over every transport: what holds for a ring holds for a stream.

use std::time::Duration;

use link::{Address, Link, LinkError, LinkOptions, Listener, Receiver, Sender};
use proto::{Inbound, TokenBatch};

type Pair = (Link<TokenBatch, Inbound>, Link<Inbound, TokenBatch>);

fn batch(n: u32) -> TokenBatch {
    TokenBatch { token: vec![n], ..TokenBatch::default() }
}

#[tokio::test]
async fn order() {
    let dir = tempfile::tempdir().unwrap();
    let address: Address = format!("ring:{}/a/b/x.sock", dir.path().display()).parse().unwrap();
    let options = LinkOptions::default();
    let mut listener = Listener::bind(&address, link::hello("a", "t", ""), options.clone()).await.unwrap();
    let (a, b): (Result<Link<TokenBatch, Inbound>, _>, Result<Link<Inbound, TokenBatch>, _>) =
        tokio::join!(link::connect(&address, link::hello("b", "t", ""), &options), listener.accept());
    let (mut a, mut b): Pair = (a.unwrap(), b.unwrap());
    let task = tokio::spawn(async move {
        for n in 0..100_000 {
            a.sender.send(&batch(n)).await.unwrap();
        }
    });
    for n in 0..100_000 {
        assert_eq!(b.receiver.recv().await.unwrap().token, [n]);
    }
    task.await.unwrap();
    assert!(matches!(b.receiver.recv().await, Err(LinkError::PeerGone)));
    let _ = Duration::ZERO;
    fn is_send<T: Send>() {}
    is_send::<Sender<Inbound>>();
    is_send::<Receiver<Inbound>>();
}
