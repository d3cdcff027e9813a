//! NCCL, found at run time: sums, gathers and rows from stage to stage between GPUs, on the stream of the operations
//! around them.
//!
//! Functions are looked up in the library that [`Folders`] finds: cudarc opens NCCL by a name that Python's packages do
//! not have. Results are plain numbers here, since a newer NCCL may give ones that cudarc's enum does not know.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use cudarc::driver::sys::{CUdeviceptr, CUstream};
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};

use crate::runtime::activations::Elements;
use crate::runtime::libraries::{Folders, Opened};
use kernels::ops::{DType, RankPlacement};

/// Bytes of the id by which ranks find each other.
pub(crate) const ID_BYTES: usize = size_of::<ncclUniqueId>();
/// Lowest version, as NCCL counts them: 2.18 (the first for CUDA 12).
const LOWEST: c_int = 2_18_00;

type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> c_int;
type AllGather = unsafe extern "C" fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, CUstream) -> c_int;
type Send = unsafe extern "C" fn(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> c_int;

/// The library's functions.
#[derive(Clone, Copy)]
pub(crate) struct Nccl {
    /// As NCCL counts versions: 2.28.9 is 22809.
    pub(crate) version: c_int,
    unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> c_int,
    init: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int,
    all_reduce: AllReduce,
    all_gather: AllGather,
    send: Send,
    receive: Receive,
    abort: unsafe extern "C" fn(ncclComm_t) -> c_int,
    words: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Nccl {
    /// The library, or why it cannot be used, with what to do.
    pub(crate) fn open(folders: &Folders) -> Result<Self, String> {
        let library = folders.open_nccl()?;
        let version = version(library)?;
        if version < LOWEST {
            return Err(format!("NCCL {} is too old: {} is the lowest", dotted(version), dotted(LOWEST)));
        }
        // SAFETY: these are the signatures of nccl.h, unchanged since before `LOWEST`.
        unsafe {
            Ok(Self {
                version,
                unique_id: library.function(c"ncclGetUniqueId")?,
                init: library.function(c"ncclCommInitRank")?,
                all_reduce: library.function(c"ncclAllReduce")?,
                all_gather: library.function(c"ncclAllGather")?,
                send: library.function(c"ncclSend")?,
                receive: library.function(c"ncclRecv")?,
                abort: library.function(c"ncclCommAbort")?,
                words: library.function(c"ncclGetErrorString")?,
            })
        }
    }

    /// An id for a new group, to be told to all of its ranks.
    pub(crate) fn unique_id(&self) -> Result<[u8; ID_BYTES], String> {
        let mut id = MaybeUninit::<ncclUniqueId>::zeroed();
        // SAFETY: the pointer is to room for an id, which any bytes are.
        let id = unsafe {
            self.check("an id for the group", (self.unique_id)(id.as_mut_ptr()))?;
            id.assume_init()
        };
        Ok(id.internal.map(|byte| byte.cast_unsigned()))
    }

    /// Meets the other ranks; the current context is this rank's GPU. Waits for all.
    pub(crate) fn meet(&self, id: [u8; ID_BYTES], placement: RankPlacement) -> Result<Communicator, String> {
        let id = ncclUniqueId { internal: id.map(u8::cast_signed) };
        let mut comm = std::ptr::null_mut();
        let (rank, size) = (placement.rank as c_int, placement.size as c_int);
        // SAFETY: the pointer is to room for a handle; a context is current (the backend binds it).
        let result = unsafe { (self.init)(&raw mut comm, size, id, rank) };
        self.check("meeting the other ranks", result)?;
        Ok(Communicator { nccl: *self, comm })
    }

    fn check(&self, what: &str, result: c_int) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a C string that is never freed.
        let words = unsafe { CStr::from_ptr((self.words)(result)) };
        Err(format!("NCCL failed: {what}: {} (NCCL_DEBUG=INFO tells more)", words.to_string_lossy()))
    }
}

/// A rank's end of a group. Dropping it gives the group up.
pub(crate) struct Communicator {
    nccl: Nccl,
    comm: ncclComm_t,
}

impl Communicator {
    /// Queues `data = sum over ranks of data`, `count` elements.
    pub(crate) fn sum(&self, data: CUdeviceptr, count: usize, dtype: DType, stream: CUstream) -> Result<(), String> {
        let data = data as *mut c_void;
        // SAFETY: the caller's buffer has `count` elements; the communicator is alive.
        let result = unsafe {
            (self.nccl.all_reduce)(data, data, count, element(dtype), ncclRedOp_t::ncclSum, self.comm, stream)
        };
        self.nccl.check("a sum over ranks", result)
    }

    /// Queues `to = [from of rank 0 | from of rank 1 | ...]`, `count` f32 of each.
    pub(crate) fn gather(
        &self,
        from: CUdeviceptr,
        to: CUdeviceptr,
        count: usize,
        stream: CUstream,
    ) -> Result<(), String> {
        let (from, to) = (from as *const c_void, to as *mut c_void);
        // SAFETY: the caller's buffers have `count` elements, and as many for each rank; the communicator is alive.
        let result = unsafe { (self.nccl.all_gather)(from, to, count, ncclDataType_t::ncclFloat32, self.comm, stream) };
        self.nccl.check("a gathering over ranks", result)
    }

    /// Queues that `count` elements go to another rank, which receives as many.
    pub(crate) fn send(&self, from: Elements, count: usize, to: usize, stream: CUstream) -> Result<(), String> {
        let (data, dtype) = (from.ptr as *const c_void, element(from.dtype));
        // SAFETY: the caller's buffer has `count` elements; the communicator is alive.
        let result = unsafe { (self.nccl.send)(data, count, dtype, to as c_int, self.comm, stream) };
        self.nccl.check("rows for the next stage", result)
    }

    /// Queues the other end of [`Self::send`].
    pub(crate) fn receive(&self, to: Elements, count: usize, from: usize, stream: CUstream) -> Result<(), String> {
        let (data, dtype) = (to.ptr as *mut c_void, element(to.dtype));
        // SAFETY: the caller's buffer has room for `count` elements; the communicator is alive.
        let result = unsafe { (self.nccl.receive)(data, count, dtype, from as c_int, self.comm, stream) };
        self.nccl.check("rows of the stage before", result)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Not `ncclCommDestroy`, which may wait for ranks that are gone.
        // SAFETY: the handle is this one's, and not used again.
        let _ = unsafe { (self.nccl.abort)(self.comm) };
    }
}

fn version(library: Opened) -> Result<c_int, String> {
    let mut version = 0;
    // SAFETY: the signature of nccl.h; the pointer is to an integer.
    let result = unsafe {
        let get: unsafe extern "C" fn(*mut c_int) -> c_int = library.function(c"ncclGetVersion")?;
        get(&raw mut version)
    };
    if result == 0 { Ok(version) } else { Err(format!("NCCL does not say its version (error {result})")) }
}

/// "2.28.9".
fn dotted(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn element(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::Bf16 => ncclDataType_t::ncclBfloat16,
        DType::F16 => ncclDataType_t::ncclFloat16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_counts_them() {
        assert_eq!((dotted(22809), dotted(LOWEST)), ("2.28.9".to_owned(), "2.18.0".to_owned()));
    }
}
