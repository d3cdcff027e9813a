//! Positions and lengths that a peer might write and that must not be followed.

use super::*;
use crate::heap::{Heap, HeapHandle};

fn ring() -> (Producer<HeapHandle>, Consumer<HeapHandle>) {
    Heap::ring(64)
}

fn check_corrupt<T: std::fmt::Debug>(outcome: Result<T, RingError>, expected: &str) {
    match outcome {
        Err(RingError::Corrupt { what, .. }) => assert_eq!(what, expected),
        other => panic!("expected a corrupt {expected}, got {other:?}"),
    }
}

/// Positions that the producer might write and the consumer must not follow: too far, backwards, unaligned.
#[test]
fn a_tail_that_cannot_be_is_an_error() {
    for tail in [72, 64 + 16, 3, u64::MAX, 1 << 63, 8] {
        let (mut producer, mut consumer) = ring();
        assert!(producer.push(&[1; 12]).unwrap());
        let _ = producer.publish();
        assert_eq!(consumer.pop(&mut Vec::new()).unwrap(), Some(12));
        let _ = consumer.release();
        producer.memory.control().tail.0.store(if tail == 72 { 16 + 72 } else { tail }, Ordering::Release);
        if tail == 64 + 16 {
            // Exactly full: allowed. What lies there is then read as records of length 0, never out of bounds.
            assert!(consumer.has_record().unwrap());
        } else {
            check_corrupt(consumer.pop(&mut Vec::new()), "tail");
            check_corrupt(consumer.must_wait(), "tail");
        }
    }
}

#[test]
fn a_head_that_cannot_be_is_an_error() {
    for head in [72, 1, u64::MAX] {
        let (mut producer, consumer) = ring();
        assert!(producer.push(&[1; 56]).unwrap());
        let _ = producer.publish();
        consumer.memory.control().head.0.store(head, Ordering::Release);
        check_corrupt(producer.push(&[1]), "head");
        check_corrupt(producer.must_wait(1), "head");
    }
}

#[test]
fn a_length_beyond_what_is_published_is_an_error() {
    for length in [13, 60, 61, u32::MAX] {
        let (mut producer, mut consumer) = ring();
        assert!(producer.push(&[1; 12]).unwrap());
        let _ = producer.publish();
        // SAFETY: within the capacity, and nobody else touches this test's ring.
        unsafe { producer.memory.write(0, &length.to_le_bytes()) };
        let mut out = Vec::new();
        check_corrupt(consumer.pop(&mut out), "a record's length");
        assert!(out.is_empty());
    }
}
