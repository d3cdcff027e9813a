//! Graph capture: decode steps that a device records once and then replays as a whole.

use super::Batch;
use crate::sample::{SampleRow, Ticket};

/// Whose steps are captured: each network on a device has capture sizes and captured steps of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CaptureOwner(pub u32);

/// A capture size: a step of `rows` sequences with one row each, whose tokens the device samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureSize {
    /// Rows of the step, padding included.
    pub rows: usize,
    /// Such a step has run, so that nothing is left to be compiled, autotuned or allocated.
    pub has_run: bool,
    /// Everything that its first run needs is compiled. Otherwise [`Device::warm_up`](super::Device::warm_up) brings
    /// that nearer.
    pub is_ready: bool,
}

/// Why a step could not be captured. No step of its owner will be captured any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CaptureError {
    /// No capture was begun.
    #[error("nothing was captured")]
    NotBegun,
    /// The step did something that a graph cannot contain; the text says what.
    #[error("{0}")]
    Refused(String),
    /// The driver did not accept the graph; the text is its reason.
    #[error("the driver does not take the captured graph: {0}")]
    Driver(String),
    /// The device failed; the text is its fault.
    #[error("{0}")]
    Device(String),
}

/// Captures decode steps and replays them. A device without graphs keeps the defaults, and captures nothing.
pub trait Capture {
    /// The capture sizes of an owner with `layers` layers, in rows, ascending: its steps of one row a sequence whose
    /// tokens the device samples are captured at these sizes, and padded to the next one. Empty: none are captured.
    /// What was captured is dropped.
    fn set_capture_sizes(&mut self, owner: CaptureOwner, rows: &[usize], layers: usize) {
        let _ = (owner, rows, layers);
    }

    /// Upper bound of the bytes that the captured steps of all owners' capture sizes take.
    fn capture_bytes(&self) -> u64 {
        0
    }

    /// The size of an owner's steps to capture next; absent when there is none (left).
    fn next_capture(&self, owner: CaptureOwner) -> Option<CaptureSize> {
        let _ = owner;
        None
    }

    /// From here on operations are recorded and do not run: from [`Ops::begin_padded`](super::Ops::begin_padded) with a
    /// batch without sequences (a dummy run) to [`Sample::sample`](super::Sample::sample) without rows, whose ticket is
    /// not taken. Such a step must have run.
    fn begin_capture(&mut self) {}

    /// Keeps the captured step, as one of the owner that [`Ops::begin_padded`](super::Ops::begin_padded) was told.
    fn end_capture(&mut self) -> Result<(), CaptureError> {
        Ok(())
    }

    /// Runs a whole step, from `begin_padded` to `sample`, as the replay of a captured one of this owner. Row `i` is
    /// that of sequence `i`, and `rows[i]` samples from its logits. Absent, and nothing happens, where no such step was
    /// captured.
    fn replay(&mut self, owner: CaptureOwner, batch: Batch<'_>, rows: &[SampleRow]) -> Option<Ticket> {
        let _ = (owner, batch, rows);
        None
    }

    /// The same up to the logits: [`Sample::sample`](super::Sample::sample) from one row a sequence follows, and
    /// nothing before it but [`Sample::set_masks`](super::Sample::set_masks). Whether such a step was captured; else
    /// nothing happens.
    fn replay_pass(&mut self, owner: CaptureOwner, batch: Batch<'_>) -> bool {
        let _ = (owner, batch);
        false
    }
}
