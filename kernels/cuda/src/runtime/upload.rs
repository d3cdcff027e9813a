//! Numbers on their way to the device, copied beside the stream into memory that no step under way reads: the stream
//! does not stop for them.

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::context::{Beside, Event, Memory, Pinned};
use crate::runtime::device::Device;

/// Copies under way at most: what is planned ahead does not wait for what runs.
const SLOTS: usize = 3;

/// Numbers sent now and then. What was sent last can be read on the stream until the next is sent.
#[derive(Default)]
pub(crate) struct Upload {
    slots: Vec<Slot>,
    /// Which one was sent last.
    last: usize,
    capacity: usize,
}

struct Slot {
    pinned: Pinned,
    memory: Memory,
    /// When the copy is done, and when nothing on the stream reads it any more.
    arrived: Event,
    free: Event,
}

impl Slot {
    fn new(device: &mut Device, bytes: usize) -> Option<Self> {
        let memory = device.allocate(bytes, "what is sent for a step")?;
        Some(Self { pinned: device.pin(bytes)?, memory, arrived: device.event()?, free: device.event()? })
    }
}

impl Upload {
    /// Makes room for `count` numbers; true if there was less.
    pub(crate) fn reserve(&mut self, device: &mut Device, count: usize) -> bool {
        if count <= self.capacity {
            return false;
        }
        device.synchronize();
        self.slots.clear();
        self.capacity = count;
        self.slots.extend((0..SLOTS).filter_map(|_| Slot::new(device, count * size_of::<u32>())));
        true
    }

    /// Lets `fill` write the first `count` numbers and sends them; where they will be.
    pub(crate) fn send(&mut self, device: &mut Device, count: usize, fill: impl FnOnce(&mut [u32])) -> CUdeviceptr {
        if self.slots.len() < SLOTS || device.refuse(|| "a step sends numbers".to_owned()) {
            return 0;
        }
        let event = || "an event".to_owned();
        device.attempt(event, |_| self.slots[self.last].free.record());
        self.last = (self.last + 1) % SLOTS;
        let Slot { pinned, memory, arrived, free } = &mut self.slots[self.last];
        device.attempt(|| "a step".to_owned(), |_| arrived.wait());
        fill(pinned.slice_mut(count));
        device.upload_beside(pinned, count * size_of::<u32>(), memory.ptr, Beside { free, arrived });
        memory.ptr
    }
}
