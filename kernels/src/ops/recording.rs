//! Steps that a device records once and then replays as a whole, and what it tells of the time that they take.

/// A kind of step that a device would record: of `rows` sequences with one row each, whose tokens it chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recordable {
    /// Rows of the step, those of no sequence included.
    pub rows: usize,
    /// Such a step has run, so that nothing is left to be compiled, chosen or allocated.
    pub has_run: bool,
    /// What the device would compile for its first run is compiled. Where not, [`Backend::prepare`](super::Backend::prepare) brings that nearer.
    pub is_ready: bool,
}

/// Something that a device did: a kernel, or the replay of a recorded step.
#[derive(Clone, PartialEq, Debug)]
pub struct Timing {
    /// The device's name for it.
    pub name: String,
    /// When it began, in microseconds since the profile did.
    pub begin: f64,
    /// When it had ended.
    pub end: f64,
}
