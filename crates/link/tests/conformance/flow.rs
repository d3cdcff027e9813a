//! Messages under way: order, bounds, backpressure, deadlines, cancellation.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;
use link::LinkError;
use prost::Message;
use proto::{DetokenizerReply, TokenBatch};

use crate::bed::{Bed, batch, large_batch};

/// Polls a future once and drops it: whether it was ready.
async fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

pub async fn both_directions_keep_their_order(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    let echo = tokio::spawn(async move {
        while let Ok(batch) = b.receiver.recv().await {
            b.sender
                .send(&DetokenizerReply { stopped: vec![batch.token[0].into()], ..Default::default() })
                .await
                .unwrap();
        }
    });
    let mut sender = a.sender;
    let sending = tokio::spawn(async move {
        for n in 0..5000 {
            sender.send(&batch(n)).await.unwrap();
        }
        sender
    });
    for n in 0..5000 {
        assert_eq!(a.receiver.recv().await.unwrap().stopped, [n]);
    }
    drop(sending.await.unwrap());
    drop(a.receiver);
    echo.await.unwrap();
}

pub async fn many_small_messages_arrive_in_order(bed: Bed) {
    const COUNT: u32 = 50_000;
    let (mut a, mut b, _listener) = bed.link().await;
    let sending = tokio::spawn(async move {
        for n in 0..COUNT {
            a.sender.send(&batch(n)).await.unwrap();
        }
        a
    });
    for n in 0..COUNT {
        assert_eq!(b.receiver.recv().await.unwrap().token, [n]);
    }
    sending.await.unwrap();
    assert!(b.receiver.try_recv().is_err() || b.receiver.try_recv().is_ok_and(|none| none.is_none()));
}

pub async fn a_batch_arrives_in_order(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    // More than fits at once.
    let messages: Vec<_> = (0..200).map(|n| large_batch(n, 1000)).collect();
    let expected = messages.clone();
    let sending = tokio::spawn(async move { a.sender.send_many(&messages).await.map(|()| a) });
    for message in expected {
        assert_eq!(b.receiver.recv().await.unwrap(), message);
    }
    assert!(sending.await.unwrap().is_ok());
}

pub async fn encoded_and_plain_messages_are_the_same(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    let encoded = Bytes::from(batch(1).encode_to_vec());
    a.sender.send_encoded(&encoded).await.unwrap();
    assert!(a.sender.try_send(&batch(2)).unwrap());
    a.sender.send(&batch(3)).await.unwrap();
    // An empty message is a message too.
    a.sender.send(&TokenBatch::default()).await.unwrap();
    for n in 1..=3 {
        assert_eq!(b.receiver.recv().await.unwrap(), batch(n));
    }
    assert_eq!(b.receiver.recv().await.unwrap(), TokenBatch::default());
}

pub async fn large_messages_arrive_whole(bed: Bed) {
    let bed = bed.with_capacity(8 << 20);
    let (mut a, mut b, _listener) = bed.link().await;
    let sizes = [3 << 20, 1, 7 << 20, 5 << 20, 100, 6 << 20];
    let messages: Vec<_> = (0..).zip(sizes).map(|(n, bytes)| large_batch(n, bytes)).collect();
    let expected = messages.clone();
    let sending = tokio::spawn(async move {
        for message in &messages {
            a.sender.send(message).await.unwrap();
        }
        a
    });
    for message in expected {
        assert!(b.receiver.recv().await.unwrap() == message, "not the message that was sent");
    }
    sending.await.unwrap();
}

/// Exactly the limit passes, one byte more is refused, and the link goes on.
pub async fn a_too_large_message_is_refused_and_harms_nothing(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    let limit = bed.options.message_limit();
    let too_large = large_batch(1, limit);
    let refused = a.sender.send(&too_large).await;
    assert!(matches!(refused, Err(LinkError::TooLarge { bytes, limit: l })
            if l == limit && bytes == too_large.encoded_len()));
    assert!(matches!(a.sender.try_send(&too_large), Err(LinkError::TooLarge { .. })));
    let encoded = Bytes::from(vec![0; limit + 1]);
    assert!(matches!(a.sender.send_encoded(&encoded).await, Err(LinkError::TooLarge { .. })));
    let largest =
        (1..limit).rev().map(|bytes| large_batch(1, bytes)).find(|batch| batch.encoded_len() <= limit).unwrap();
    assert_eq!(largest.encoded_len(), limit);
    a.sender.send(&largest).await.unwrap();
    assert!(b.receiver.recv().await.unwrap() == largest);
}

/// A reader that does not read stops the writer after a bounded number of bytes.
pub async fn a_full_link_refuses_and_goes_on_when_read(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    let sent = fill(&mut a.sender).await;
    // A stream holds its queue, one frame, and the peer's window of at least HTTP/2's 64 KiB.
    let most = if bed.is_ring() { 64 << 10 } else { 512 << 10 };
    assert!(sent > 10 && sent * 1000 <= most, "{sent} messages of 1000 bytes were taken");
    let sending = tokio::spawn(async move { a.sender.send(&large_batch(sent as u32, 1000)).await.map(|()| a) });
    for n in 0..=sent {
        assert_eq!(b.receiver.recv().await.unwrap().token[0], n as u32);
    }
    assert!(sending.await.unwrap().is_ok());
}

/// Sends until the link takes no more, numbering from 0; how many it took.
pub async fn fill(sender: &mut link::Sender<TokenBatch>) -> usize {
    let mut sent = 0;
    loop {
        while sender.try_send(&large_batch(sent as u32, 1000)).unwrap() {
            sent += 1;
        }
        // A stream's own tasks may still move bytes towards the peer. Full is when nothing moves for a while.
        let moved = async {
            while !sender.try_send(&large_batch(sent as u32, 1000)).unwrap() {
                tokio::task::yield_now().await;
            }
        };
        match tokio::time::timeout(Duration::from_millis(200), moved).await {
            Ok(()) => sent += 1,
            Err(_) => return sent,
        }
    }
}

pub async fn a_send_without_room_ends_at_its_deadline(mut bed: Bed) {
    bed.options.send_deadline = Duration::from_millis(50);
    let (mut a, mut b, _listener) = bed.link().await;
    let sent = fill(&mut a.sender).await;
    let outcome = a.sender.send(&large_batch(0, 1000)).await;
    assert!(matches!(outcome, Err(LinkError::Deadline { doing: "waiting for room" })), "{outcome:?}");
    // What was not sent is not sent later either.
    for n in 0..sent {
        assert_eq!(b.receiver.recv().await.unwrap().token[0], n as u32);
    }
    a.sender.send(&batch(7)).await.unwrap();
    assert_eq!(b.receiver.recv().await.unwrap(), batch(7));
}

pub async fn a_cancelled_recv_loses_nothing(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    let sending = tokio::spawn(async move {
        for n in 0..2000 {
            a.sender.send(&large_batch(n, 500)).await.unwrap();
            if n % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        a
    });
    let mut cancelled = 0;
    for n in 0..2000 {
        let message = loop {
            if let Some(message) = poll_once(b.receiver.recv()).await {
                break message.unwrap();
            }
            cancelled += 1;
            if let Some(message) = b.receiver.try_recv().unwrap() {
                break message;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(message, large_batch(n, 500));
    }
    assert!(cancelled > 0, "nothing was ever cancelled");
    sending.await.unwrap();
}

pub async fn a_cancelled_send_is_sent_wholly_or_not_at_all(bed: Bed) {
    let (mut a, mut b, _listener) = bed.link().await;
    let reading = tokio::spawn(async move {
        let mut got = Vec::new();
        loop {
            match b.receiver.recv().await {
                Ok(message) => got.push(message),
                Err(_) => return got,
            }
        }
    });
    let (mut sent, mut cancelled) = (Vec::new(), 0);
    for n in 0..3000 {
        let message = large_batch(n, 3000);
        match poll_once(a.sender.send(&message)).await {
            Some(outcome) => {
                outcome.unwrap();
                sent.push(message);
            }
            None => cancelled += 1,
        }
    }
    drop(a);
    let got = reading.await.unwrap();
    assert!(got == sent, "{} were sent, {} cancelled, {} arrived", sent.len(), cancelled, got.len());
}
