//! The ring against a `VecDeque`: any sequence of operations gives the same. Over heap memory, so that miri can run it.
#![cfg(not(loom))]

use std::collections::VecDeque;

use proptest::prelude::*;
use shm_ring::{Heap, RingError};

const CAPACITY: usize = 256;

#[derive(Clone, Debug)]
enum Operation {
    /// So many bytes of a value.
    Push(usize, u8),
    Publish,
    Pop,
    Release,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..CAPACITY + 8, any::<u8>()).prop_map(|(len, byte)| Operation::Push(len, byte)),
        4 => (0..24usize, any::<u8>()).prop_map(|(len, byte)| Operation::Push(len, byte)),
        3 => Just(Operation::Publish),
        5 => Just(Operation::Pop),
        3 => Just(Operation::Release),
    ]
}

/// What the ring should do: records with their state, and room counted in bytes.
#[derive(Default)]
struct Model {
    staged: VecDeque<Vec<u8>>,
    published: VecDeque<Vec<u8>>,
    /// Bytes of popped records whose room was not given back yet.
    unreleased: usize,
    used: usize,
}

fn size(record: &[u8]) -> usize {
    (4 + record.len()).next_multiple_of(8)
}

fn check(operations: Vec<Operation>) {
    let (mut producer, mut consumer) = Heap::ring(CAPACITY);
    let mut model = Model::default();
    for operation in operations {
        match operation {
            Operation::Push(len, byte) if len > CAPACITY - 8 => {
                let refused = producer.push(&vec![byte; len]);
                assert!(matches!(refused, Err(RingError::TooLarge { limit, .. }) if limit == CAPACITY - 8));
            }
            Operation::Push(len, byte) => {
                let record = vec![byte; len];
                let fits = model.used + size(&record) <= CAPACITY;
                assert_eq!(producer.has_room_for(record.len()).unwrap(), fits);
                assert_eq!(producer.push(&record).unwrap(), fits);
                if fits {
                    model.used += size(&record);
                    model.staged.push_back(record);
                }
            }
            Operation::Publish => {
                let _ = producer.publish();
                model.published.append(&mut model.staged);
            }
            Operation::Pop => {
                let mut got = vec![0xAA];
                let popped = consumer.pop(&mut got).unwrap();
                let expected = model.published.pop_front();
                assert_eq!(popped, expected.as_ref().map(Vec::len));
                model.unreleased += expected.as_deref().map_or(0, size);
                assert_eq!((got[0], &got[1..]), (0xAA, expected.unwrap_or_default().as_slice()));
            }
            Operation::Release => {
                let _ = consumer.release();
                model.used -= std::mem::take(&mut model.unreleased);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_ring_is_a_queue(operations in prop::collection::vec(operation(), 0..if cfg!(miri) { 40 } else { 400 })) {
        check(operations);
    }
}

/// Two threads, no wake-ups: order and content under real concurrency.
#[test]
fn threads_agree() {
    let count = if cfg!(miri) { 50 } else { 20_000u32 };
    let (mut producer, mut consumer) = Heap::ring(CAPACITY);
    let sending = std::thread::spawn(move || {
        for n in 0..count {
            let record = vec![n as u8; n as usize % 100];
            while !producer.push(&record).unwrap() {
                let _ = producer.publish();
                std::thread::yield_now();
            }
            let _ = producer.publish();
        }
    });
    let mut record = Vec::new();
    for n in 0..count {
        record.clear();
        while consumer.pop(&mut record).unwrap().is_none() {
            std::thread::yield_now();
        }
        let _ = consumer.release();
        assert_eq!(record, vec![n as u8; n as usize % 100]);
    }
    sending.join().unwrap();
}
