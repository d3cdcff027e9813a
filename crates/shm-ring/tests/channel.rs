//! The two ends within one process: wake-up, batches, ends, and offers that are no offers.
#![cfg(not(any(loom, miri)))]

use std::time::Duration;

use shm_ring::{Receiver, RingError, Sender};
use tokio::{io::AsyncWriteExt, net::UnixStream};

async fn pair(capacity: usize) -> ((Sender, Receiver), (Sender, Receiver)) {
    let (a, b) = UnixStream::pair().unwrap();
    tokio::try_join!(shm_ring::offer(a, capacity), shm_ring::take(b)).unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("hangs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_directions_sleep_and_wake() {
    let ((mut a_out, mut a_in), (mut b_out, mut b_in)) = pair(4096).await;
    let echo = tokio::spawn(async move {
        let mut record = Vec::new();
        while b_in.recv(&mut record).await.is_ok() {
            b_out.send(&record).await.unwrap();
            record.clear();
        }
    });
    let mut got = Vec::new();
    for n in 0..2000usize {
        let record = vec![n as u8; n % 4000];
        soon(a_out.send(&record)).await.unwrap();
        got.clear();
        assert_eq!(soon(a_in.recv(&mut got)).await.unwrap(), record.len());
        assert_eq!(got, record);
    }
    drop(a_out);
    soon(echo).await.unwrap();
}

#[tokio::test]
async fn a_batch_is_read_as_a_batch() {
    let ((mut sender, _a), (_b, mut receiver)) = pair(4096).await;
    for n in 0..10u8 {
        assert!(sender.stage(&[n]).unwrap());
    }
    assert!(receiver.try_recv(&mut Vec::new()).unwrap().is_none(), "seen before it was published");
    sender.publish();
    let (mut bytes, mut lengths) = (Vec::new(), Vec::new());
    soon(receiver.recv_many(&mut bytes, &mut lengths, 7)).await.unwrap();
    assert_eq!((bytes.as_slice(), lengths.len()), ([0, 1, 2, 3, 4, 5, 6].as_slice(), 7));
    soon(receiver.recv_many(&mut bytes, &mut lengths, 7)).await.unwrap();
    assert_eq!(lengths, [1; 10]);
}

#[tokio::test]
async fn what_was_sent_is_read_before_the_end_is_told() {
    let ((mut a_out, a_in), (b_out, mut b_in)) = pair(4096).await;
    a_out.send(b"last").await.unwrap();
    drop((a_out, a_in));
    let mut got = Vec::new();
    assert_eq!(soon(b_in.recv(&mut got)).await.unwrap(), 4);
    assert!(matches!(soon(b_in.recv(&mut got)).await, Err(RingError::Gone)));
    assert!(b_out.is_gone());
}

#[tokio::test]
async fn dropping_one_direction_ends_that_direction_only() {
    let ((a_out, mut a_in), (mut b_out, mut b_in)) = pair(4096).await;
    drop(a_out);
    assert!(matches!(soon(b_in.recv(&mut Vec::new())).await, Err(RingError::Gone)));
    soon(b_out.send(b"still here")).await.unwrap();
    assert_eq!(soon(a_in.recv(&mut Vec::new())).await.unwrap(), 10);
    drop(a_in);
    assert!(matches!(b_out.send(b"nobody reads").await, Err(RingError::Gone)));
}

#[tokio::test]
async fn a_full_ring_refuses_then_waits() {
    let ((mut sender, _a), (_b, mut receiver)) = pair(4096).await;
    let mut sent = 0;
    while sender.try_send(&[0; 100]).unwrap() {
        sent += 1;
    }
    assert_eq!(sent, 4096 / 104);
    assert!(matches!(sender.try_send(&[0; 4089]), Err(RingError::TooLarge { bytes: 4089, limit: 4088 })));
    let waiting = tokio::spawn(async move { sender.send(&[1; 4088]).await.map(|()| sender) });
    for _ in 0..sent {
        assert_eq!(soon(receiver.recv(&mut Vec::new())).await.unwrap(), 100);
    }
    assert_eq!(soon(receiver.recv(&mut Vec::new())).await.unwrap(), 4088);
    assert!(soon(waiting).await.unwrap().is_ok());
}

#[tokio::test]
async fn an_offer_without_rings_is_refused() {
    let (mut a, b) = UnixStream::pair().unwrap();
    a.write_all(b"R").await.unwrap();
    assert!(matches!(shm_ring::take(b).await, Err(RingError::Foreign { what: "descriptors", .. })));
    let (mut a, b) = UnixStream::pair().unwrap();
    a.write_all(b"x").await.unwrap();
    assert!(matches!(shm_ring::take(b).await, Err(RingError::Foreign { what: "mark", .. })));
    let (a, b) = UnixStream::pair().unwrap();
    drop(a);
    assert!(matches!(shm_ring::take(b).await, Err(RingError::Gone)));
}
