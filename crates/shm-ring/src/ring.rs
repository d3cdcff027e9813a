//! The protocol: who may touch which byte when, and who must wake whom.
//!
//! The producer owns the bytes from `tail` up to `head + capacity`, the consumer those from `head` up to `tail`. Moving
//! a position hands bytes over: its Release store is read by the other side's Acquire load. A side believes only its
//! own position; the other's is checked against it at every load.
//!
//! Going to sleep is a store and then a load (I wait; is there anything?); waking is also a store and then a load (here
//! is something; does anyone wait?). Two sequentially consistent fences, [`Consumer::must_wait`] with
//! [`Producer::publish`] and [`Producer::must_wait`] with [`Consumer::release`], let at least one side see the other's
//! store, so no wake-up is lost, and a busy ring makes no system call at all.

use std::mem::MaybeUninit;

use crate::{
    control::Side,
    error::RingError,
    memory::Memory,
    sync::{Ordering, fence},
};

/// Bytes of a record's length word.
const LENGTH_BYTES: usize = 4;

/// Bytes that a record of `len` payload bytes takes in the ring.
fn record_bytes(len: usize) -> u64 {
    (LENGTH_BYTES + len).next_multiple_of(8) as u64
}

/// What the caller of an operation owes the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a sleeping peer that is not woken sleeps for ever"]
pub enum Wake {
    /// The other side sleeps: signal it.
    Signal,
    /// The other side is awake.
    None,
}

impl Side {
    /// Says that this side is about to sleep. The caller's fence and re-check follow.
    fn announce_wait(&self) {
        self.waiting.store(1, Ordering::Relaxed);
    }

    /// Whether this side must be woken; the caller's fence comes before. Takes the duty, so that one wake-up serves.
    fn take_wait(&self) -> Wake {
        if self.waiting.load(Ordering::Relaxed) != 0 && self.waiting.swap(0, Ordering::Relaxed) != 0 {
            Wake::Signal
        } else {
            Wake::None
        }
    }
}

/// The writing end.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    /// Written so far, published or not.
    staged: u64,
    /// Published so far: what `tail` holds, unless the peer scribbled there.
    published: u64,
    /// The consumer's position when last looked at.
    head: u64,
}

impl<M: Memory> Producer<M> {
    /// The producer of a ring that nothing was written to yet.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, staged: 0, published: 0, head: 0 }
    }

    /// Payload bytes of the largest record.
    pub fn limit(&self) -> usize {
        self.memory.capacity() - 8
    }

    /// Writes a record behind the published ones; `false` when there is no room now. Seen only after [`Self::publish`].
    pub fn push(&mut self, record: &[u8]) -> Result<bool, RingError> {
        let size = self.size_of(record.len())?;
        if !self.has_room(size)? {
            return Ok(false);
        }
        let length = record.len() as u32;
        self.write(self.staged, &length.to_le_bytes());
        self.write(self.staged + LENGTH_BYTES as u64, record);
        self.staged += size;
        Ok(true)
    }

    /// Makes all written records visible with one store.
    pub fn publish(&mut self) -> Wake {
        if self.staged == self.published {
            return Wake::None;
        }
        self.published = self.staged;
        // Release: the records' bytes come before it. Partner: the Acquire load in `Consumer::available`.
        self.memory.control().tail.0.store(self.published, Ordering::Release);
        // Partner: the fence in `Consumer::must_wait`.
        fence(Ordering::SeqCst);
        self.memory.control().consumer.take_wait()
    }

    /// Announces that this side will sleep until there is room for a record of `len` bytes; `false` when it need not,
    /// because there is room already or the consumer has left. Publish first: a consumer that sees nothing frees
    /// nothing.
    pub fn must_wait(&mut self, len: usize) -> Result<bool, RingError> {
        let size = self.size_of(len)?;
        self.memory.control().producer.announce_wait();
        // Partner: the fence in `Consumer::release` and in `Consumer::close`.
        fence(Ordering::SeqCst);
        Ok(!self.has_room(size)? && !self.peer_closed())
    }

    /// Whether a record of `len` bytes fits now.
    pub fn has_room_for(&mut self, len: usize) -> Result<bool, RingError> {
        let size = self.size_of(len)?;
        self.has_room(size)
    }

    /// Whether the consumer has left in order.
    pub fn peer_closed(&self) -> bool {
        self.memory.control().consumer.closed.load(Ordering::Acquire) != 0
    }

    /// Leaves in order. Records not yet published are lost.
    pub fn close(&mut self) -> Wake {
        // Release: what was published comes before it. Partner: the Acquire load in `Consumer::peer_closed`.
        self.memory.control().producer.closed.store(1, Ordering::Release);
        // Partner: the fence in `Consumer::must_wait`.
        fence(Ordering::SeqCst);
        self.memory.control().consumer.take_wait()
    }

    fn size_of(&self, len: usize) -> Result<u64, RingError> {
        let limit = self.limit();
        if len > limit { Err(RingError::TooLarge { bytes: len, limit }) } else { Ok(record_bytes(len)) }
    }

    fn has_room(&mut self, size: u64) -> Result<bool, RingError> {
        let capacity = self.memory.capacity() as u64;
        if capacity - (self.staged - self.head) >= size {
            return Ok(true);
        }
        // Acquire: the consumer has finished with the bytes. Partner: the Release store in `Consumer::release`.
        let head = self.memory.control().head.0.load(Ordering::Acquire);
        if head < self.head || head > self.published || !head.is_multiple_of(8) {
            return Err(RingError::Corrupt { what: "head", value: head });
        }
        self.head = head;
        Ok(capacity - (self.staged - head) >= size)
    }

    /// Copies `bytes` to a position, in two pieces where they reach over the end.
    fn write(&mut self, position: u64, bytes: &[u8]) {
        let capacity = self.memory.capacity();
        let offset = (position as usize) & (capacity - 1);
        let (first, second) = bytes.split_at(bytes.len().min(capacity - offset));
        // SAFETY: `first` ends at or before the capacity. `second` is what is left of at most `limit` bytes, shorter
        // than the capacity. `has_room` found the whole range free, and this is the only producer.
        unsafe {
            self.memory.write(offset, first);
            self.memory.write(0, second);
        }
    }
}

/// The reading end.
#[derive(Debug)]
pub struct Consumer<M> {
    memory: M,
    /// Read so far, released or not.
    taken: u64,
    /// Released so far: what `head` holds, unless the peer scribbled there.
    released: u64,
    /// The producer's position when last looked at.
    tail: u64,
}

impl<M: Memory> Consumer<M> {
    /// The consumer of a ring that nothing was read from yet.
    pub(crate) fn new(memory: M) -> Self {
        Self { memory, taken: 0, released: 0, tail: 0 }
    }

    /// Copies the next record to the end of `out`; `None` when there is none now, else its length.
    ///
    /// It is copied before anyone parses it, because the peer could still change the ring's bytes. Its room is free for
    /// the producer only after [`Self::release`].
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Result<Option<usize>, RingError> {
        let available = self.available()?;
        if available == 0 {
            return Ok(None);
        }
        let mut word = [MaybeUninit::new(0); LENGTH_BYTES];
        self.read(self.taken, &mut word);
        // SAFETY: initialised above, whatever `read` did.
        let length = u32::from_le_bytes(word.map(|byte| unsafe { byte.assume_init() })) as usize;
        // The sum cannot overflow: a length is a u32, and usize has 64 bits.
        let size = record_bytes(length);
        if size > available {
            return Err(RingError::Corrupt { what: "a record's length", value: length as u64 });
        }
        out.reserve(length);
        self.read(self.taken + LENGTH_BYTES as u64, &mut out.spare_capacity_mut()[..length]);
        // SAFETY: `reserve` made room for `length` bytes, and `read` filled them.
        unsafe { out.set_len(out.len() + length) };
        self.taken += size;
        Ok(Some(length))
    }

    /// Gives the room of all records read so far back to the producer, with one store.
    pub fn release(&mut self) -> Wake {
        if self.taken == self.released {
            return Wake::None;
        }
        self.released = self.taken;
        // Release: the copies out come before it. Partner: the Acquire load in `Producer::has_room`.
        self.memory.control().head.0.store(self.released, Ordering::Release);
        // Partner: the fence in `Producer::must_wait`.
        fence(Ordering::SeqCst);
        self.memory.control().producer.take_wait()
    }

    /// Announces that this side will sleep until there is a record; `false` when it need not, because there is one
    /// already or the producer has left. Release first: a producer without room publishes nothing.
    pub fn must_wait(&mut self) -> Result<bool, RingError> {
        self.memory.control().consumer.announce_wait();
        // Partner: the fence in `Producer::publish` and in `Producer::close`.
        fence(Ordering::SeqCst);
        Ok(self.available()? == 0 && !self.peer_closed())
    }

    /// Whether the producer has left in order. Look for records once more after it said so.
    pub fn peer_closed(&self) -> bool {
        self.memory.control().producer.closed.load(Ordering::Acquire) != 0
    }

    /// Leaves in order: the producer learns that nobody reads any more.
    pub fn close(&mut self) -> Wake {
        self.memory.control().consumer.closed.store(1, Ordering::Release);
        // Partner: the fence in `Producer::must_wait`.
        fence(Ordering::SeqCst);
        self.memory.control().producer.take_wait()
    }

    /// Whether a record is there now.
    pub fn has_record(&mut self) -> Result<bool, RingError> {
        Ok(self.available()? > 0)
    }

    /// Published bytes not read yet.
    fn available(&mut self) -> Result<u64, RingError> {
        if self.tail == self.taken {
            // Acquire: the records' bytes are there. Partner: the Release store in `Producer::publish`.
            let tail = self.memory.control().tail.0.load(Ordering::Acquire);
            if tail < self.tail || tail - self.released > self.memory.capacity() as u64 || !tail.is_multiple_of(8) {
                return Err(RingError::Corrupt { what: "tail", value: tail });
            }
            self.tail = tail;
        }
        Ok(self.tail - self.taken)
    }

    /// Copies from a position on, in two pieces where they reach over the end.
    fn read(&self, position: u64, out: &mut [MaybeUninit<u8>]) {
        let capacity = self.memory.capacity();
        let offset = (position as usize) & (capacity - 1);
        let middle = out.len().min(capacity - offset);
        let (first, second) = out.split_at_mut(middle);
        // SAFETY: `first` ends at or before the capacity, and `second` is what is left of at most `capacity` bytes. The
        // caller checked that the range is published, and this is the only consumer.
        unsafe {
            self.memory.read(offset, first);
            self.memory.read(0, second);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
