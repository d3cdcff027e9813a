//! Activation buffers, and the one that the host is looking at.

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::context::{Memory, Pinned};
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{Act, DType};

/// All activation buffers of a backend.
#[derive(Default)]
pub(crate) struct ActivationBuffers {
    buffers: Vec<Buffer>,
    /// Rows of the step, until an operation says otherwise.
    rows: usize,
    /// A buffer's rows in f32 on the host: which, as they were fetched, and whether the host may have changed them.
    host: Option<(Act, View, Access)>,
    pinned: Option<Pinned>,
    /// The same on the device, for buffers of another type.
    widened: Option<Memory>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    Read,
    Write,
}

struct Buffer {
    /// Absent after a fault.
    memory: Option<Memory>,
    dtype: DType,
    max_rows: usize,
    width: usize,
    rows: usize,
}

/// A buffer as one operation sees it: `rows * width` elements at `ptr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct View {
    pub(crate) ptr: CUdeviceptr,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) width: usize,
    /// Rows that there is memory for; those from `rows` on may hold anything.
    pub(crate) most_rows: usize,
}

impl View {
    pub(crate) fn elements(&self) -> usize {
        self.rows * self.width
    }
}

impl ActivationBuffers {
    pub(crate) fn add(&mut self, device: &mut Device, max_rows: usize, width: usize, dtype: DType) -> Act {
        let memory = device.allocate(max_rows * width * dtype.size(), "activations");
        // Rows of padding are computed from whatever is there, which must be numbers.
        memory.iter().for_each(|memory| device.clear(memory));
        self.buffers.push(Buffer { memory, dtype, max_rows, width, rows: self.rows });
        Act(u32::try_from(self.buffers.len() - 1).expect("far fewer buffers"))
    }

    /// Rows that the largest buffer has room for.
    pub(crate) fn most_rows(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.max_rows).max().unwrap_or(0)
    }

    /// All buffers, each with as many rows as it has room for.
    pub(crate) fn views(&self) -> Vec<View> {
        let whole = |Buffer { memory, dtype, max_rows, width, .. }: &Buffer| View {
            ptr: memory.as_ref().map_or(0, |memory| memory.ptr),
            dtype: *dtype,
            rows: *max_rows,
            width: *width,
            most_rows: *max_rows,
        };
        self.buffers.iter().map(whole).collect()
    }

    /// A step of `rows` rows begins.
    pub(crate) fn begin(&mut self, rows: usize) {
        self.rows = rows;
        self.buffers.iter_mut().for_each(|buffer| buffer.rows = rows);
    }

    /// The current rows of a buffer.
    pub(crate) fn view(&self, act: Act) -> View {
        let buffer = &self.buffers[act.0 as usize];
        assert!(buffer.rows <= buffer.max_rows, "{} rows in a buffer for {}", buffer.rows, buffer.max_rows);
        View {
            ptr: self.address(act),
            dtype: buffer.dtype,
            rows: buffer.rows,
            width: buffer.width,
            most_rows: buffer.max_rows,
        }
    }

    /// Where a buffer lies, which may have room for fewer rows than the step has.
    pub(crate) fn address(&self, act: Act) -> CUdeviceptr {
        self.buffers[act.0 as usize].memory.as_ref().map_or(0, |memory| memory.ptr)
    }

    /// The first `rows` rows of a buffer, whatever the step has, and how many elements these are.
    pub(crate) fn first_rows(&self, act: Act, rows: usize) -> (Elements, usize) {
        let buffer = &self.buffers[act.0 as usize];
        assert!(rows <= buffer.max_rows, "{rows} rows in a buffer for {}", buffer.max_rows);
        (Elements { ptr: self.address(act), dtype: buffer.dtype }, rows * buffer.width)
    }

    /// Its columns.
    pub(crate) fn width(&self, act: Act) -> usize {
        self.buffers[act.0 as usize].width
    }

    /// A buffer about to receive `rows` rows of `width`.
    pub(crate) fn target(&mut self, act: Act, rows: usize, width: usize) -> View {
        let buffer = &mut self.buffers[act.0 as usize];
        assert_eq!(buffer.width, width, "width of the output buffer, and of what is written");
        buffer.rows = rows;
        self.view(act)
    }

    /// Before an operation: what the host wrote goes back to the device, and the host's copy is forgotten.
    pub(crate) fn settle(&mut self, device: &mut Device) {
        let Some((_, view, access)) = self.host.take() else { return };
        if access == Access::Read || view.elements() == 0 {
            return;
        }
        let bytes = view.elements() * size_of::<f32>();
        let Some(pinned) = &self.pinned else { return };
        if view.dtype == DType::F32 {
            device.upload(pinned, 0..bytes, view.ptr);
        } else if let Some(widened) = &self.widened {
            device.upload(pinned, 0..bytes, widened.ptr);
            let from = Elements { ptr: widened.ptr, dtype: DType::F32 };
            cast(device, from, view.into(), view.elements());
        }
        // The host may write to the pinned memory again at once.
        device.synchronize();
    }

    /// The current rows on the host, for reading.
    pub(crate) fn read(&mut self, device: &mut Device, act: Act) -> &[f32] {
        self.fetch(device, act, Access::Read);
        let count = self.view(act).elements();
        self.pinned.as_ref().map_or(&[], |pinned| pinned.slice(count))
    }

    /// The same for writing.
    pub(crate) fn write(&mut self, device: &mut Device, act: Act) -> &mut [f32] {
        self.fetch(device, act, Access::Write);
        let count = self.view(act).elements();
        self.pinned.as_mut().map_or(&mut [], |pinned| pinned.slice_mut(count))
    }

    fn fetch(&mut self, device: &mut Device, act: Act, access: Access) {
        if let Some((current, view, before)) = self.host
            && current == act
        {
            self.host = Some((act, view, if before == Access::Write { before } else { access }));
            return;
        }
        self.settle(device);
        let view = self.view(act);
        let bytes = view.elements() * size_of::<f32>();
        self.reserve(device, bytes, view.dtype != DType::F32);
        let Some(pinned) = &mut self.pinned else { return };
        match (view.dtype, &self.widened) {
            (DType::F32, _) => device.download(view.ptr, pinned, bytes),
            (_, Some(widened)) => {
                let to = Elements { ptr: widened.ptr, dtype: DType::F32 };
                cast(device, view.into(), to, view.elements());
                device.download(widened.ptr, pinned, bytes);
            }
            (_, None) => {}
        }
        self.host = Some((act, view, access));
    }

    /// Room for `bytes` bytes. It only ever grows, to the largest buffer that is read.
    fn reserve(&mut self, device: &mut Device, bytes: usize, widen: bool) {
        if self.pinned.as_ref().is_none_or(|pinned| pinned.bytes < bytes) {
            self.pinned = None;
            // After a fault, or where pinned memory is short, readers still get as many numbers as they expect.
            self.pinned = device.pin(bytes);
        }
        if widen && self.widened.as_ref().is_none_or(|memory| memory.bytes < bytes) {
            self.widened = None;
            self.widened = device.allocate(bytes, "a copy of activations");
        }
    }
}

/// Elements in device memory.
#[derive(Clone, Copy)]
pub(crate) struct Elements {
    pub(crate) ptr: CUdeviceptr,
    pub(crate) dtype: DType,
}

impl From<View> for Elements {
    fn from(View { ptr, dtype, .. }: View) -> Self {
        Self { ptr, dtype }
    }
}

/// `to = from` in another element type.
pub(crate) fn cast(device: &mut Device, from: Elements, to: Elements, count: usize) {
    let name = Name::of("cast", &[from.dtype, to.dtype]);
    device.launch(name, Shape::elements(count), args![from.ptr, to.ptr, count as u64]);
}
