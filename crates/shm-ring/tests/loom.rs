//! Every interleaving of the protocol, small: `RUSTFLAGS="--cfg loom" cargo test -p shm-ring --test loom --release`.
//!
//! loom fails a run in which a byte is touched by both sides at once, or in which everybody sleeps: a torn record or a
//! lost wake-up.
#![cfg(loom)]

use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};
use shm_ring::{Consumer, Heap, Producer, heap::HeapHandle, ring::Wake};

/// What an eventfd does: keeps a signal until somebody waits.
#[derive(Default)]
struct Event {
    signalled: Mutex<bool>,
    arrived: Condvar,
}

impl Event {
    fn pass(&self, wake: Wake) {
        if wake == Wake::Signal {
            *self.signalled.lock().unwrap() = true;
            self.arrived.notify_one();
        }
    }

    fn wait(&self) {
        let mut signalled = self.signalled.lock().unwrap();
        while !*signalled {
            signalled = self.arrived.wait(signalled).unwrap();
        }
        *signalled = false;
    }
}

#[derive(Default)]
struct Events {
    data: Event,
    room: Event,
}

fn send(producer: &mut Producer<HeapHandle>, events: &Events, record: &[u8]) {
    while !producer.push(record).unwrap() {
        if producer.must_wait(record.len()).unwrap() {
            events.room.wait();
        }
    }
    events.data.pass(producer.publish());
}

/// The next record, or `None` once the producer has left.
fn recv(consumer: &mut Consumer<HeapHandle>, events: &Events) -> Option<Vec<u8>> {
    let mut record = Vec::new();
    loop {
        let closed = consumer.peer_closed();
        if consumer.pop(&mut record).unwrap().is_some() {
            events.room.pass(consumer.release());
            return Some(record);
        }
        if closed {
            return None;
        }
        if consumer.must_wait().unwrap() {
            events.data.wait();
        }
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// Three records through room for two: both sides sleep and are woken, and the third record reuses the first one's
/// bytes.
#[test]
fn no_wakeup_is_lost_and_no_record_torn() {
    model(|| {
        let (mut producer, mut consumer) = Heap::ring(16);
        let events = Arc::new(Events::default());
        let theirs = events.clone();
        let sending = thread::spawn(move || {
            for n in 0..3u8 {
                send(&mut producer, &theirs, &[n; 4]);
            }
        });
        for n in 0..3u8 {
            assert_eq!(recv(&mut consumer, &events), Some(vec![n; 4]));
        }
        sending.join().unwrap();
    });
}

/// Records that reach over the end of the ring.
#[test]
fn a_record_over_the_end_is_whole() {
    model(|| {
        let (mut producer, mut consumer) = Heap::ring(32);
        let events = Arc::new(Events::default());
        let theirs = events.clone();
        let sending = thread::spawn(move || {
            for n in 0..2u8 {
                send(&mut producer, &theirs, &[n; 12]);
            }
            send(&mut producer, &theirs, &[2; 20]);
        });
        for n in 0..2u8 {
            assert_eq!(recv(&mut consumer, &events), Some(vec![n; 12]));
        }
        assert_eq!(recv(&mut consumer, &events), Some(vec![2; 20]));
        sending.join().unwrap();
    });
}

/// A batch is seen wholly or not at all, and the producer's leaving is told after its last record.
#[test]
fn leaving_comes_after_the_last_record() {
    model(|| {
        let (mut producer, mut consumer) = Heap::ring(32);
        let events = Arc::new(Events::default());
        let theirs = events.clone();
        let sending = thread::spawn(move || {
            assert!(producer.push(&[1]).unwrap() && producer.push(&[2]).unwrap());
            theirs.data.pass(producer.publish());
            theirs.data.pass(producer.close());
        });
        assert_eq!(recv(&mut consumer, &events), Some(vec![1]));
        assert!(consumer.has_record().unwrap(), "a batch came in parts");
        assert_eq!(recv(&mut consumer, &events), Some(vec![2]));
        assert_eq!(recv(&mut consumer, &events), None);
        sending.join().unwrap();
    });
}

/// A producer that waits for room learns that the consumer has left.
#[test]
fn a_leaving_consumer_wakes_the_producer() {
    model(|| {
        let (mut producer, mut consumer) = Heap::ring(16);
        let events = Arc::new(Events::default());
        let theirs = events.clone();
        let leaving = thread::spawn(move || theirs.room.pass(consumer.close()));
        assert!(producer.push(&[0; 8]).unwrap());
        events.data.pass(producer.publish());
        while producer.must_wait(8).unwrap() {
            events.room.wait();
        }
        assert!(producer.peer_closed());
        leaving.join().unwrap();
    });
}
