//! A GPU: its context, one stream for all operations and two for copies beside it, and memory on it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::OpenError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute};

use crate::runtime::arch::{Arch, LOWEST};
use crate::runtime::libraries;

/// Lowest driver, as CUDA counts versions: 12.0. NVRTC and cuBLASLt must be of the driver's major version or lower.
const LOWEST_DRIVER: c_int = 12_000;

/// A device's primary context, current on whichever thread works with it.
#[derive(Debug)]
pub(crate) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(crate) stream: sys::CUstream,
    /// Copies to the device that the stream does not stop for.
    copies: sys::CUstream,
    /// Copies to the device that take longer than steps wait for.
    background: sys::CUstream,
    pub(crate) name: String,
    pub(crate) arch: Arch,
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory that a block may ask for, and that a multiprocessor has.
    pub(crate) shared_of_block: usize,
    pub(crate) shared_of_multiprocessor: usize,
    /// Pieces of device memory freed so far.
    frees: AtomicU64,
}

// SAFETY: contexts and streams are handles that any thread may use; the driver locks what needs it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The device with this number, or why it cannot be used.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Self>, OpenError> {
        let count = count()?;
        if ordinal >= count {
            return Err(OpenError::NoSuchGpu { ordinal, count });
        }
        let failed = |error| failed(format!("GPU {ordinal}"), error);
        let device = result::device::get(ordinal as c_int).map_err(failed)?;
        let attribute = |attribute| {
            // SAFETY: the device was just got from the driver.
            unsafe { result::device::get_attribute(device, attribute) }.map(|value| value as u32).map_err(failed)
        };
        let name = result::device::get_name(device).map_err(failed)?;
        let major = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let arch = Arch::new(major, minor);
        if arch < LOWEST {
            let (has, needed) = (arch.capability(), LOWEST.capability());
            return Err(OpenError::GpuTooOld { ordinal, name, has, needed });
        }
        let size = |which| attribute(which).map(|value| value as usize);
        let multiprocessors = size(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_of_block = size(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let shared_of_multiprocessor =
            size(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        // SAFETY: the device is the driver's; the context is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(failed)?;
        // Dropped on the way out, it releases the context.
        let [stream, copies, background] = [std::ptr::null_mut(); 3];
        let mut this = Self {
            device,
            context,
            stream,
            copies,
            background,
            name,
            arch,
            multiprocessors,
            shared_of_block,
            shared_of_multiprocessor,
            frees: AtomicU64::new(0),
        };
        this.bind().map_err(failed)?;
        for stream in [&mut this.stream, &mut this.copies, &mut this.background] {
            *stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed)?;
        }
        Ok(Arc::new(this))
    }

    /// Makes the context the calling thread's.
    pub(crate) fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as this.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// How often device memory was freed. Addresses that were good at the same count are good now.
    pub(crate) fn frees(&self) -> u64 {
        self.frees.load(Ordering::Relaxed)
    }

    /// Whether the driver can tell the time between two events in the way that is asked for here: from CUDA 12.8 on.
    pub(crate) fn tells_time(&self) -> bool {
        driver_version().is_ok_and(|version| version >= 12_080)
    }

    /// As the driver counts the devices it shows.
    pub(crate) fn ordinal(&self) -> u32 {
        self.device.cast_unsigned()
    }

    /// Makes memory of another device of this process usable from this one's kernels.
    pub(crate) fn reach(&self, ordinal: u32) -> Result<(), String> {
        let failed = |error| format!("GPU {ordinal} from GPU {}: {}", self.ordinal(), explain(error));
        let other = result::device::get(ordinal.cast_signed()).map_err(failed)?;
        // SAFETY: the device is the driver's, and its context alive (its memory was named); released right after.
        let enabled = unsafe {
            let context = result::primary_ctx::retain(other).map_err(failed)?;
            let enabled = sys::cuCtxEnablePeerAccess(context, 0);
            let _ = result::primary_ctx::release(other);
            enabled
        };
        match enabled {
            sys::cudaError_enum::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            enabled => enabled.result().map_err(failed),
        }
    }

    /// Waits until all work is done.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream lives as long as this.
        unsafe { result::stream::synchronize(self.stream) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.bind();
        let streams = [self.stream, self.copies, self.background];
        for stream in streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: the stream is this one's, and not used again.
            let _ = unsafe { result::stream::destroy(stream) };
        }
        // SAFETY: retained once in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// How many GPUs the driver shows this process; at least one, or why there is none.
pub(crate) fn count() -> Result<u32, OpenError> {
    libraries::open_driver()?;
    result::init().map_err(|error| failed("the NVIDIA driver does not start".to_owned(), error))?;
    check_driver()?;
    let count = result::device::get_count().map_err(|error| failed("counting GPUs".to_owned(), error))?;
    if count == 0 {
        return Err(OpenError::NoGpu);
    }
    Ok(count.cast_unsigned())
}

fn failed(doing: String, error: DriverError) -> OpenError {
    OpenError::Driver { doing, reason: explain(error) }
}

/// `GPU-` and the UUID of the device with this number, as the driver's tools write it.
pub(crate) fn uuid(ordinal: u32) -> Result<String, OpenError> {
    const SYMBOL: &str = "cuDeviceGetUuid_v2";
    count()?;
    // SAFETY: the driver is present, and the symbol is looked up, not used.
    if unsafe { sys::culib().get::<*const std::ffi::c_void>(SYMBOL.as_bytes()) }.is_err() {
        return Err(OpenError::Driver { doing: format!("GPU {ordinal}"), reason: format!("there is no {SYMBOL}") });
    }
    let device = result::device::get(ordinal.cast_signed());
    let uuid = device.and_then(result::device::get_uuid).map_err(|error| failed(format!("GPU {ordinal}"), error))?;
    let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", byte.cast_unsigned())).collect();
    Ok(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

/// The newest CUDA that the driver knows, as CUDA counts versions.
pub(crate) fn driver_version() -> Result<c_int, DriverError> {
    let mut version = 0;
    // SAFETY: the driver is present, and the pointer is to an integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map(|()| version)
}

fn check_driver() -> Result<(), OpenError> {
    let failed = |error| failed("the NVIDIA driver does not say its version".to_owned(), error);
    let version = driver_version().map_err(failed)?;
    if version >= LOWEST_DRIVER {
        return Ok(());
    }
    let text = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    Err(OpenError::DriverTooOld { known: text(version), needed: text(LOWEST_DRIVER) })
}

/// What the driver says about an error.
pub(crate) fn explain(error: DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, DriverError>| text.map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(words)) => format!("{words} ({name})"),
        _ => format!("CUDA error {:?}", error.0),
    }
}

/// Device memory, freed when dropped, or when the last part of it is.
#[derive(Debug)]
pub(crate) struct Memory {
    context: Arc<Context>,
    pub(crate) ptr: sys::CUdeviceptr,
    pub(crate) bytes: usize,
    /// What it is a part of.
    whole: Option<Arc<Memory>>,
}

impl Memory {
    /// Memory for `bytes` bytes, aligned to 256, with nothing in it yet.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        // SAFETY: the context is current (every entry of the backend binds it); the size is not zero.
        let ptr = unsafe { result::malloc_sync(bytes.max(1)) }?;
        Ok(Self { context: context.clone(), ptr, bytes, whole: None })
    }

    /// Some bytes of `whole`, which no other part has.
    pub(crate) fn part(whole: &Arc<Self>, start: usize, bytes: usize) -> Self {
        assert!(start + bytes <= whole.bytes, "{bytes} bytes at {start} of {}", whole.bytes);
        Self { context: whole.context.clone(), ptr: whole.ptr + start as u64, bytes, whole: Some(whole.clone()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        self.context.frees.fetch_add(1, Ordering::Relaxed);
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new`; freeing waits for work that uses it.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// Host memory that the device copies from and to without help, freed when dropped.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    ptr: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        // No flags: memory that the host reads back must not be write-combined.
        // SAFETY: the context is current, and the size is not zero.
        let ptr = unsafe { result::malloc_host(bytes.max(1), 0) }?;
        // SAFETY: just allocated with this size; zeroed so that it may be read.
        unsafe { ptr.cast::<u8>().write_bytes(0, bytes.max(1)) };
        Ok(Self { context: context.clone(), ptr: ptr.cast(), bytes })
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Where kernels find it: the same address, as devices and host share one space of them.
    pub(crate) fn on_device(&self) -> sys::CUdeviceptr {
        self.ptr as sys::CUdeviceptr
    }

    /// The first `count` elements.
    pub(crate) fn slice<T: Plain>(&self, count: usize) -> &[T] {
        assert!(count * size_of::<T>() <= self.bytes);
        // SAFETY: initialised at birth, large enough (checked), aligned to a page, and any bits are a `T`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), count) }
    }

    /// The same for writing.
    pub(crate) fn slice_mut<T: Plain>(&mut self, count: usize) -> &mut [T] {
        assert!(count * size_of::<T>() <= self.bytes);
        // SAFETY: as above, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), count) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new`; owners wait for copies before they let go.
            let _ = unsafe { result::free_host(self.ptr.cast()) };
        }
    }
}

/// When a copy beside the stream may begin, and when it is done.
#[derive(Clone, Copy)]
pub(crate) struct Beside<'a> {
    pub(crate) free: &'a Event,
    pub(crate) arrived: &'a Event,
}

/// Queues a copy from pinned host memory beside the stream. It begins when the stream has passed `free`; `arrived` is
/// when it is done.
///
/// # Safety
/// There are `bytes` bytes at `from`, which stay as they are until then, and room for them at `to`.
pub(crate) unsafe fn copy_beside(
    from: *const u8,
    to: sys::CUdeviceptr,
    bytes: usize,
    Beside { free, arrived }: Beside<'_>,
) -> Result<(), DriverError> {
    let copies = free.context.copies;
    // SAFETY: the events and the stream are alive and of one context; the memory is the caller's.
    unsafe {
        sys::cuStreamWaitEvent(copies, free.event, 0).result()?;
        sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, copies).result()?;
        sys::cuEventRecord(arrived.event, copies).result()
    }
}

/// Queues a copy from pinned host memory in the background.
///
/// # Safety
/// There are `bytes` bytes at `from`, which stay as they are until the copy is done, and room for them at `to`, which
/// nothing on the stream reads meanwhile.
pub(crate) unsafe fn copy_in_background(
    context: &Context,
    from: *const u8,
    to: sys::CUdeviceptr,
    bytes: usize,
) -> Result<(), DriverError> {
    // SAFETY: the stream is alive; the memory is the caller's.
    unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, context.background).result() }
}

/// Types of which any bits are a value.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}

/// A moment in the stream that can be waited for.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: sys::CUevent,
}

// SAFETY: a handle that any thread may use.
unsafe impl Send for Event {}

impl Event {
    /// An event that nothing was recorded for: waiting for it returns at once.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Self { context: context.clone(), event })
    }

    /// One that knows when it was: the stream has got so far.
    pub(crate) fn stamp(context: &Arc<Context>) -> Result<Self, DriverError> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)?;
        let stamp = Self { context: context.clone(), event };
        stamp.record()?;
        Ok(stamp)
    }

    /// Microseconds from one stamp to another, both of which the stream has passed.
    pub(crate) fn micros_since(&self, start: &Self) -> Result<f64, DriverError> {
        let mut millis = 0.0_f32;
        // SAFETY: both events are alive, of one context, and know their times.
        unsafe { sys::cuEventElapsedTime_v2(&raw mut millis, start.event, self.event) }.result()?;
        Ok(f64::from(millis) * 1e3)
    }

    pub(crate) fn record(&self) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive and of one context.
        unsafe { result::event::record(self.event, self.context.stream) }
    }

    /// The same of the background: its copies have got so far.
    pub(crate) fn record_in_background(&self) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive and of one context.
        unsafe { result::event::record(self.event, self.context.background) }
    }

    /// Makes copies that are queued in the background from here on wait for it.
    pub(crate) fn hold_background(&self) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive and of one context.
        unsafe { sys::cuStreamWaitEvent(self.context.background, self.event, 0).result() }
    }

    /// Makes what is queued on the stream from here on wait for it.
    pub(crate) fn hold_stream(&self) -> Result<(), DriverError> {
        // SAFETY: event and stream are alive and of one context.
        unsafe { sys::cuStreamWaitEvent(self.context.stream, self.event, 0).result() }
    }

    /// Whether waiting would return at once, be it with an error.
    pub(crate) fn is_done(&self) -> bool {
        // SAFETY: the event is alive.
        unsafe { sys::cuEventQuery(self.event) != sys::cudaError_enum::CUDA_ERROR_NOT_READY }
    }

    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.event) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made in `new`, and not used again.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Free and total bytes of the current context's device.
pub(crate) fn free_and_total() -> Result<(usize, usize), DriverError> {
    result::mem_get_info()
}

/// A load of a module: machine code to functions.
pub(crate) fn load_module(cubin: &[u8]) -> Result<sys::CUmodule, DriverError> {
    let mut module = MaybeUninit::uninit();
    // SAFETY: the image is complete machine code (its checksum was right, or it came from the compiler).
    unsafe {
        sys::cuModuleLoadData(module.as_mut_ptr(), cubin.as_ptr().cast()).result()?;
        Ok(module.assume_init())
    }
}
