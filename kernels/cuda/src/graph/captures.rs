//! Which sizes of steps are captured, and what they are replayed from. A step of one row a sequence is padded to the
//! next size's rows, captured or not, so that it gives the same bits either way.

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
pub(crate) enum CapturedStep {
    /// Its kernels; and one that would do all of it, which is still being compiled.
    Graph { graph: Graph, awaits: Option<Special> },
    /// The same, and one kernel in their place for sequences of at most `up_to` tokens.
    Either { step: Box<WholeStep>, graph: Graph, up_to: usize },
}

impl CapturedStep {
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
    owners: BTreeMap<CaptureOwner, NetworkCaptures>,
}

impl Captures {
    /// What was captured for an owner is dropped.
    pub(crate) fn set(&mut self, owner: CaptureOwner, rows: &[usize], layers: usize) {
        self.owners.insert(owner, NetworkCaptures::new(rows, layers));
    }

    /// Device memory that the graphs of all owners take at most.
    pub(crate) fn bytes(&self) -> u64 {
        self.owners.values().map(NetworkCaptures::bytes).sum()
    }

    /// Rows that a step of `rows` is padded to.
    pub(crate) fn padded(&self, owner: CaptureOwner, rows: usize) -> usize {
        self.owners.get(&owner).map_or(rows, |captures| captures.padded(rows))
    }

    /// Absent where an owner has no capture sizes.
    pub(crate) fn of(&self, owner: CaptureOwner) -> Option<&NetworkCaptures> {
        self.owners.get(&owner)
    }

    pub(crate) fn of_mut(&mut self, owner: CaptureOwner) -> Option<&mut NetworkCaptures> {
        self.owners.get_mut(&owner)
    }

    /// Steps of such rows are to be captured again, if they are captured; until then they are replayed as they are.
    pub(crate) fn renew(&mut self, are: impl Fn(usize) -> bool) {
        self.owners.values_mut().for_each(|captures| captures.renew(&are));
    }

    /// Lets go of what is stale. To be done before a capture: it frees memory, which makes everything stale that was
    /// captured before.
    pub(crate) fn forget_stale(&mut self) {
        self.owners.values_mut().for_each(NetworkCaptures::forget_stale);
    }
}

/// The capture sizes of one network, in the order of their rows.
pub(crate) struct NetworkCaptures {
    sizes: Vec<SizeCapture>,
    /// Layers of the network.
    layers: usize,
    /// Steps cannot be captured; they are padded all the same.
    refused: bool,
}

struct SizeCapture {
    rows: usize,
    has_run: bool,
    /// Its GEMMs have other tactics by now.
    outdated: bool,
    captured: Option<CapturedStep>,
    /// Where that leaves them.
    logits: Option<View>,
}

impl NetworkCaptures {
    fn new(rows: &[usize], layers: usize) -> Self {
        assert!(rows.is_sorted_by(|a, b| a < b), "capture sizes in another order: {rows:?}");
        let size = |&rows: &usize| SizeCapture { rows, has_run: false, outdated: false, captured: None, logits: None };
        Self { sizes: rows.iter().map(size).collect(), layers, refused: false }
    }

    /// Device memory that its graphs take at most.
    fn bytes(&self) -> u64 {
        let kernels = self.layers as u64 * LAYER_KERNELS + OTHER_KERNELS;
        self.sizes.len() as u64 * (kernels * KERNEL_BYTES + GRAPH_BYTES)
    }

    fn padded(&self, rows: usize) -> usize {
        self.sizes.iter().map(|size| size.rows).find(|&padded| padded >= rows).unwrap_or(rows)
    }

    /// A step of `rows` rows, padding included, ran kernel by kernel.
    pub(crate) fn ran(&mut self, rows: usize) {
        if let Some(size) = self.size(rows) {
            size.has_run = true;
        }
    }

    /// Rows of the next step, and whether such a step has run. What has comes first: it will run again.
    pub(crate) fn next(&self, is_compiled: impl Fn(Special) -> bool) -> Option<(usize, bool)> {
        let is_left = |size: &SizeCapture| match size.current() {
            _ if self.refused => false,
            Some(captured) => size.outdated || captured.awaits().is_some_and(&is_compiled),
            None => true,
        };
        let left = || self.sizes.iter().filter(|size| is_left(size));
        let size = left().find(|size| size.has_run).or_else(|| left().next())?;
        Some((size.rows, size.has_run))
    }

    /// `logits`: where the step leaves them.
    pub(crate) fn keep(&mut self, rows: usize, captured: CapturedStep, logits: Option<View>) {
        if let Some(size) = self.size(rows) {
            (size.outdated, size.captured, size.logits) = (false, Some(captured), logits);
        }
    }

    fn renew(&mut self, are: impl Fn(usize) -> bool) {
        let captured = self.sizes.iter_mut().filter(|size| size.captured.is_some());
        captured.filter(|size| are(size.rows)).for_each(|size| size.outdated = true);
    }

    fn forget_stale(&mut self) {
        self.sizes.iter_mut().filter(|size| size.current().is_none()).for_each(|size| size.captured = None);
    }

    /// Nothing will be captured any more.
    pub(crate) fn refuse(&mut self) {
        self.refused = true;
        self.sizes.iter_mut().for_each(|size| size.captured = None);
    }

    /// The captured step of `rows` rows, padding included, and the logits that it leaves.
    pub(crate) fn of(&self, rows: usize) -> Option<(&CapturedStep, Option<View>)> {
        let size = self.sizes.iter().find(|size| size.rows == rows)?;
        Some((size.current()?, size.logits))
    }

    fn size(&mut self, rows: usize) -> Option<&mut SizeCapture> {
        self.sizes.iter_mut().find(|size| size.rows == rows)
    }
}

impl SizeCapture {
    fn current(&self) -> Option<&CapturedStep> {
        self.captured.as_ref().filter(|captured| captured.is_current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_padded_to_the_next_kind() {
        let (target, draft) = (CaptureOwner(0), CaptureOwner(1));
        let mut captures = Captures::default();
        assert_eq!(captures.padded(target, 3), 3);
        captures.set(target, &[1, 2, 4, 8], 30);
        assert_eq!([1, 3, 5, 8, 9].map(|rows| captures.padded(target, rows)), [1, 4, 8, 8, 9]);
        // Another network's steps are padded to its own sizes.
        assert_eq!(captures.padded(draft, 3), 3);
        captures.set(draft, &[6], 2);
        assert_eq!([target, draft].map(|owner| captures.padded(owner, 3)), [4, 6]);
    }

    #[test]
    fn what_has_run_is_recorded_first() {
        let next = |captures: &NetworkCaptures| captures.next(|_| true);
        assert_eq!(next(&NetworkCaptures::new(&[], 1)), None);
        let mut captures = NetworkCaptures::new(&[1, 2, 4], 1);
        assert_eq!(next(&captures), Some((1, false)));
        captures.ran(4);
        captures.ran(3);
        assert_eq!(next(&captures), Some((4, true)));
        captures.refuse();
        assert_eq!(next(&captures), None);
        assert_eq!(captures.padded(3), 4);
    }

    #[test]
    fn every_network_counts_in_the_memory_of_graphs() {
        let (target, draft) = (CaptureOwner(0), CaptureOwner(1));
        let mut captures = Captures::default();
        assert_eq!(captures.bytes(), 0);
        captures.set(target, &[1, 2, 4, 8], 30);
        let alone = captures.bytes();
        captures.set(draft, &[1, 2], 2);
        let both = captures.bytes();
        // As many sizes of as many kernels; sizes that are set again are not counted twice.
        assert_eq!(both - alone, 2 * ((2 * LAYER_KERNELS + OTHER_KERNELS) * KERNEL_BYTES + GRAPH_BYTES));
        captures.set(target, &[1, 2, 4, 8], 30);
        assert_eq!(captures.bytes(), both);
        captures.set(target, &[], 30);
        assert_eq!(captures.bytes(), both - alone);
    }
}
