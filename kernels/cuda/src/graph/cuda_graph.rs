//! CUDA graphs: what is queued on the stream between two moments, recorded instead of run, to be launched as one.

use std::sync::Arc;

use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use crate::runtime::context::Context;

/// Queued work that can be launched any number of times. It names memory by address: see [`Graph::is_current`].
pub(crate) struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
    /// What [`Context::frees`] was.
    frees: u64,
}

/// From here on the context's stream records.
pub(crate) fn begin(context: &Context) -> Result<(), DriverError> {
    // Relaxed: what may not be done meanwhile is the device's own concern, which knows it (`Device::refuse`).
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(context.stream, mode).result() }
}

/// Ends that; what was recorded is dropped.
pub(crate) fn abandon(context: &Context) {
    let _ = captured(context);
}

/// Ends it and makes what was recorded ready to be launched.
pub(crate) fn end(context: &Arc<Context>) -> Result<Graph, DriverError> {
    let captured = captured(context)?;
    let mut executable = std::ptr::null_mut();
    // SAFETY: the graph was just captured.
    unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, captured.0, 0) }.result()?;
    let graph = Graph { context: context.clone(), executable, frees: context.frees() };
    // SAFETY: both are alive. So the first launch is as fast as the others.
    unsafe { sys::cuGraphUpload(executable, context.stream) }.result()?;
    Ok(graph)
}

/// A graph as it was recorded.
struct Captured(sys::CUgraph);

impl Drop for Captured {
    fn drop(&mut self) {
        // SAFETY: made by a capture, and not used again.
        let _ = unsafe { sys::cuGraphDestroy(self.0) };
    }
}

fn captured(context: &Context) -> Result<Captured, DriverError> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is alive. A capture that failed gives no graph.
    unsafe { sys::cuStreamEndCapture(context.stream, &raw mut graph) }.result()?;
    Ok(Captured(graph))
}

impl Graph {
    /// Whether no memory was freed since this was recorded: else it may name some that is another's by now.
    pub(crate) fn is_current(&self) -> bool {
        self.frees == self.context.frees()
    }

    /// Queues all of it.
    pub(crate) fn launch(&self) -> Result<(), DriverError> {
        // SAFETY: the graph is alive, and its memory too (the caller asked `is_current`).
        unsafe { sys::cuGraphLaunch(self.executable, self.context.stream) }.result()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: made in `end`, and not used again; a launch under way is finished first.
            let _ = unsafe { sys::cuGraphExecDestroy(self.executable) };
        }
    }
}
