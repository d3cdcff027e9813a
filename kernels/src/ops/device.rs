//! A device as a whole: what it is, how much memory it has, whether it has failed, and a profile of its time.

use std::time::Duration;

use super::{ShapeLimits, StepPreference};

/// A device's own memory, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// Not allocated by any process.
    pub free: u64,
    /// All of it.
    pub total: u64,
}

/// One entry of a profile: a kernel, or the replay of a captured step.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// The device's name for it.
    pub name: String,
    /// When it began, in microseconds since the profile did.
    pub begin: f64,
    /// When it had ended.
    pub end: f64,
}

/// What the host waited for while it queued a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitFor {
    /// A kernel that was still to be compiled.
    Compiler,
    /// Code that was brought to the device, or a library's choice of it.
    Loading,
    /// The driver, which loads code when it is first launched, and waits where too much is queued.
    Driver,
    /// Tactics that were measured.
    Tuning,
}

impl WaitFor {
    /// For people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compiler => "compiling",
            Self::Loading => "loading",
            Self::Driver => "driver",
            Self::Tuning => "tuning",
        }
    }
}

/// One wait of a millisecond or more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wait {
    /// What for.
    pub reason: WaitFor,
    /// The kernel or product.
    pub name: String,
    /// How long it took.
    pub took: Duration,
}

/// What holds of a device whatever it computes.
pub trait Device: Send {
    /// For people: "cpu (amx, 2 threads)".
    fn describe(&self) -> String;

    /// Why the device can no longer be used. From then on operations do nothing, and values read are undefined.
    fn fault(&self) -> Option<&str> {
        None
    }

    /// How much memory the device has and how much of it is free; absent where it is the machine's own.
    fn memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// The largest shapes that it computes.
    fn limits(&self) -> ShapeLimits {
        ShapeLimits::NONE
    }

    /// Which steps suit it with a model whose attention has this many query heads on this rank, if it has attention.
    fn step_preference(&self, _query_heads: Option<usize>) -> StepPreference {
        StepPreference::CPU
    }

    /// Waits for the kernels that a first step is sure to need, where they are still being compiled: some seconds at
    /// most, after which that step waits for what is left.
    fn await_first_kernels(&mut self) {}

    /// Whether the first steps of a size take longer than later ones, since kernels are loaded by them. A device on
    /// which that is so is given some steps before it serves.
    fn has_cold_steps(&self) -> bool {
        false
    }

    /// Loads what steps of other sizes than those that ran will need, for so long at most; whether that was all.
    /// Conditions and losses are those of [`Device::warm_up`].
    fn load_ahead(&mut self, _most: Duration) -> bool {
        true
    }

    /// What the host waited for since the last call, in order; a bounded number of waits.
    fn take_waits(&mut self) -> Vec<Wait> {
        Vec::new()
    }

    /// Does one piece of warm-up (loading kernels, autotuning GEMMs) that later steps would otherwise wait for: a few
    /// milliseconds at most, unless something has to be loaded. Returns whether there may be more of it.
    ///
    /// No step may be in flight; the content of activation buffers and logits is lost.
    fn warm_up(&mut self) -> bool {
        false
    }

    /// From here on the device records when each of its operations begins and ends. Operations that used to overlap may
    /// no longer do so.
    fn start_profile(&mut self) {}

    /// Stops the profile, waits for the device, and returns the profile's entries in order; empty for a device that
    /// cannot tell.
    fn end_profile(&mut self) -> Vec<Timing> {
        Vec::new()
    }
}
