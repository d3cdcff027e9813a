//! A ring on the heap, shared by threads: for tests, loom and miri.

use std::mem::MaybeUninit;

use crate::{
    control::Control,
    memory::{MAX_CAPACITY, MIN_CAPACITY, Memory},
    ring::{Consumer, Producer},
    sync::{Arc, UnsafeCell},
};

/// Heap memory of a ring. Copies byte by byte, so that loom and miri see each access.
#[derive(Debug)]
pub struct Heap {
    control: Control,
    bytes: Box<[UnsafeCell<u8>]>,
}

// SAFETY: the bytes are reached only through `Memory`, whose contract gives each byte to one side at a time; the
// control words are atomics.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

/// One side's handle on a [`Heap`].
#[derive(Debug)]
pub struct HeapHandle(Arc<Heap>);

impl Heap {
    /// An empty ring of `capacity` bytes, rounded up to a power of two, as its two ends.
    pub fn ring(capacity: usize) -> (Producer<HeapHandle>, Consumer<HeapHandle>) {
        let capacity = capacity.clamp(MIN_CAPACITY, MAX_CAPACITY).next_power_of_two();
        let bytes = (0..capacity).map(|_| UnsafeCell::new(0)).collect();
        let heap = Arc::new(Self { control: Control::default(), bytes });
        (Producer::new(HeapHandle(heap.clone())), Consumer::new(HeapHandle(heap)))
    }
}

// SAFETY: the capacity is a power of two within bounds and never changes; `ring`, the only maker, makes one producer
// and one consumer; indexing is checked.
unsafe impl Memory for HeapHandle {
    fn control(&self) -> &Control {
        &self.0.control
    }

    fn capacity(&self) -> usize {
        self.0.bytes.len()
    }

    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        for (cell, byte) in self.0.bytes[offset..offset + bytes.len()].iter().zip(bytes) {
            // SAFETY: the caller owns these bytes until it publishes them.
            cell.with_mut(|place| unsafe { *place = *byte });
        }
    }

    unsafe fn read(&self, offset: usize, out: &mut [MaybeUninit<u8>]) {
        let len = out.len();
        for (cell, out) in self.0.bytes[offset..offset + len].iter().zip(out) {
            // SAFETY: the bytes are published, and the caller owns them until it releases them.
            cell.with(|place| out.write(unsafe { *place }));
        }
    }
}
