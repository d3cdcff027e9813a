//! Which kinds of steps are recorded, and what they are replayed from. A step of one row a sequence is padded to the
//! next kind's rows, recorded or not, so that it gives the same bits either way.

use std::collections::BTreeMap;

use kernels::ops::CaptureOwner;

use crate::graph::cuda_graph::Graph;
use crate::jit::specialization::Special;
use crate::runtime::activations::View;
use crate::whole_step::WholeStep;

/// Device memory that a graph takes, at most: of a kernel, and beside kernels.
const KERNEL_BYTES: u64 = 8 << 10;
const GRAPH_BYTES: u64 = 256 << 10;
/// Kernels of a layer, and of a step beside its layers, at most as far as memory is concerned.
const LAYER_KERNELS: u64 = 16;
const OTHER_KERNELS: u64 = 16;

/// A step that can be replayed.
pub(crate) enum Recorded {
    /// Its kernels; and one that would do all of it, which is still being compiled.
    Graph { graph: Graph, awaits: Option<Special> },
    /// The same, and one kernel in their place for sequences of up to so many tokens.
    Either { step: Box<WholeStep>, graph: Graph, up_to: usize },
}

impl Recorded {
    /// Whether the memory that it names is still there.
    pub(crate) fn is_current(&self) -> bool {
        match self {
            Self::Graph { graph, .. } => graph.is_current(),
            Self::Either { step, graph, .. } => step.is_current() && graph.is_current(),
        }
    }

    /// One kernel for all of it, where that is faster for sequences of up to `tokens` tokens.
    pub(crate) fn as_whole(&self, tokens: usize) -> Option<&WholeStep> {
        match self {
            Self::Either { step, up_to, .. } if tokens <= *up_to => Some(step),
            Self::Graph { .. } | Self::Either { .. } => None,
        }
    }

    /// Its kernels.
    pub(crate) fn graph(&self) -> &Graph {
        match self {
            Self::Graph { graph, .. } | Self::Either { graph, .. } => graph,
        }
    }

    fn awaits(&self) -> Option<Special> {
        match self {
            Self::Graph { awaits, .. } => *awaits,
            Self::Either { .. } => None,
        }
    }
}

/// The captured steps of every network on a device.
#[derive(Default)]
pub(crate) struct Captures {
    owners: BTreeMap<CaptureOwner, Recordings>,
}

impl Captures {
    /// What was captured for an owner is dropped.
    pub(crate) fn set(&mut self, owner: CaptureOwner, rows: &[usize]) {
        self.owners.insert(owner, Recordings::new(rows));
    }

    /// Rows that a step of `rows` is padded to.
    pub(crate) fn padded(&self, owner: CaptureOwner, rows: usize) -> usize {
        self.owners.get(&owner).map_or(rows, |recordings| recordings.padded(rows))
    }

    /// Absent where an owner has no capture sizes.
    pub(crate) fn of(&self, owner: CaptureOwner) -> Option<&Recordings> {
        self.owners.get(&owner)
    }

    pub(crate) fn of_mut(&mut self, owner: CaptureOwner) -> Option<&mut Recordings> {
        self.owners.get_mut(&owner)
    }

    /// Steps of such rows are to be captured again, if they are captured; until then they are replayed as they are.
    pub(crate) fn renew(&mut self, are: impl Fn(usize) -> bool) {
        self.owners.values_mut().for_each(|recordings| recordings.renew(&are));
    }

    /// Lets go of what is stale. To be done before a capture: it frees memory, which makes everything stale that was
    /// captured before.
    pub(crate) fn forget_stale(&mut self) {
        self.owners.values_mut().for_each(Recordings::forget_stale);
    }
}

/// The capture sizes of one network, in the order of their rows.
pub(crate) struct Recordings {
    kinds: Vec<Kind>,
    /// Steps cannot be recorded; they are padded all the same.
    refused: bool,
}

struct Kind {
    rows: usize,
    has_run: bool,
    /// Its products are done otherwise by now.
    outdated: bool,
    recorded: Option<Recorded>,
    /// Where that leaves them.
    logits: Option<View>,
}

impl Recordings {
    fn new(rows: &[usize]) -> Self {
        assert!(rows.is_sorted_by(|a, b| a < b), "kinds of steps in another order: {rows:?}");
        let kind = |&rows: &usize| Kind { rows, has_run: false, outdated: false, recorded: None, logits: None };
        Self { kinds: rows.iter().map(kind).collect(), refused: false }
    }

    fn padded(&self, rows: usize) -> usize {
        self.kinds.iter().map(|kind| kind.rows).find(|&padded| padded >= rows).unwrap_or(rows)
    }

    /// A step of so many rows, padding included, ran kernel by kernel.
    pub(crate) fn ran(&mut self, rows: usize) {
        if let Some(kind) = self.kind(rows) {
            kind.has_run = true;
        }
    }

    /// Rows of the next step, and whether such a step has run. What has comes first: it will run again.
    pub(crate) fn next(&self, is_compiled: impl Fn(Special) -> bool) -> Option<(usize, bool)> {
        let is_left = |kind: &Kind| match kind.current() {
            _ if self.refused => false,
            Some(recorded) => kind.outdated || recorded.awaits().is_some_and(&is_compiled),
            None => true,
        };
        let left = || self.kinds.iter().filter(|kind| is_left(kind));
        let kind = left().find(|kind| kind.has_run).or_else(|| left().next())?;
        Some((kind.rows, kind.has_run))
    }

    /// `logits`: where the step leaves them.
    pub(crate) fn keep(&mut self, rows: usize, recorded: Recorded, logits: Option<View>) {
        if let Some(kind) = self.kind(rows) {
            (kind.outdated, kind.recorded, kind.logits) = (false, Some(recorded), logits);
        }
    }

    fn renew(&mut self, are: impl Fn(usize) -> bool) {
        let recorded = self.kinds.iter_mut().filter(|kind| kind.recorded.is_some());
        recorded.filter(|kind| are(kind.rows)).for_each(|kind| kind.outdated = true);
    }

    fn forget_stale(&mut self) {
        self.kinds.iter_mut().filter(|kind| kind.current().is_none()).for_each(|kind| kind.recorded = None);
    }

    /// Nothing will be recorded any more.
    pub(crate) fn refuse(&mut self) {
        self.refused = true;
        self.kinds.iter_mut().for_each(|kind| kind.recorded = None);
    }

    /// The recording of a step of so many rows, padding included, and the logits that it leaves.
    pub(crate) fn of(&self, rows: usize) -> Option<(&Recorded, Option<View>)> {
        let kind = self.kinds.iter().find(|kind| kind.rows == rows)?;
        Some((kind.current()?, kind.logits))
    }

    fn kind(&mut self, rows: usize) -> Option<&mut Kind> {
        self.kinds.iter_mut().find(|kind| kind.rows == rows)
    }
}

impl Kind {
    fn current(&self) -> Option<&Recorded> {
        self.recorded.as_ref().filter(|recorded| recorded.is_current())
    }
}

/// Device memory of as many graphs at most.
pub(crate) fn bytes(kinds: usize, layers: usize) -> u64 {
    let kernels = layers as u64 * LAYER_KERNELS + OTHER_KERNELS;
    kinds as u64 * (kernels * KERNEL_BYTES + GRAPH_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_padded_to_the_next_kind() {
        let (target, draft) = (CaptureOwner(0), CaptureOwner(1));
        let mut captures = Captures::default();
        assert_eq!(captures.padded(target, 3), 3);
        captures.set(target, &[1, 2, 4, 8]);
        assert_eq!([1, 3, 5, 8, 9].map(|rows| captures.padded(target, rows)), [1, 4, 8, 8, 9]);
        // Another network's steps are padded to its own sizes.
        assert_eq!(captures.padded(draft, 3), 3);
        captures.set(draft, &[6]);
        assert_eq!([target, draft].map(|owner| captures.padded(owner, 3)), [4, 6]);
    }

    #[test]
    fn what_has_run_is_recorded_first() {
        let next = |recordings: &Recordings| recordings.next(|_| true);
        assert_eq!(next(&Recordings::new(&[])), None);
        let mut recordings = Recordings::new(&[1, 2, 4]);
        assert_eq!(next(&recordings), Some((1, false)));
        recordings.ran(4);
        recordings.ran(3);
        assert_eq!(next(&recordings), Some((4, true)));
        recordings.refuse();
        assert_eq!(next(&recordings), None);
        assert_eq!(recordings.padded(3), 4);
    }
}
