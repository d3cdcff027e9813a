//! One suite over every transport: what holds for a ring holds for a stream.

use std::time::Duration;

use link::{Address, LinkError, LinkOptions, Listener, Receiver, Sender};
use proto::{Inbound, TokenBatch};

fn batch(n: u32) -> TokenBatch {
    TokenBatch { token: vec![n], ..TokenBatch::default() }
}

async fn order(form: &str) {
    let dir = tempfile::tempdir().unwrap();
    let address: Address = form.replace("DIR", &dir.path().display().to_string()).parse().unwrap();
    let options = LinkOptions::default();
    let mut listener = Listener::bind(&address, link::hello("a", "t", ""), options.clone()).await.unwrap();
    let address = listener.address().clone();
    let (a, b) = tokio::join!(
        link::connect::<TokenBatch, Inbound>(&address, link::hello("b", "t", ""), &options),
        listener.accept::<Inbound, TokenBatch>()
    );
    let (mut a, mut b) = (a.unwrap(), b.unwrap());
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

#[tokio::test]
async fn order_ring() {
    order("ring:DIR/a/b.sock").await;
}
#[tokio::test]
async fn order_grpc() {
    order("grpc://127.0.0.1:0").await;
}
#[tokio::test]
async fn order_grpc_unix() {
    order("grpc+unix:DIR/a/b.sock").await;
}
