//! Which sizes of steps are captured, and what they are replayed from. A step of one row a sequence is padded to the
//! next size's rows, captured or not, so that it gives the same bits either way.

use std::collections::{BTreeMap, VecDeque};

use kernels::ops::CaptureOwner;

use crate::graph::cuda_graph::Graph;
use crate::jit::specialization::Special;
use crate::runtime::activations::View;
use crate::whole_step::WholeStep;
use crate::whole_step::tactic::Choice;

/// Device memory that a graph takes, at most: of a kernel, and beside kernels.
const KERNEL_BYTES: u64 = 8 << 10;
const GRAPH_BYTES: u64 = 256 << 10;
/// Kernels of a layer, and of a step beside its layers, at most as far as memory is concerned.
const LAYER_KERNELS: u64 = 16;
const OTHER_KERNELS: u64 = 16;

/// Which of a size's steps: they differ in what is launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Plain,
    /// With cascade attention. Which sequences share what is read from the batch in device memory.
    Cascade,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Plain, Self::Cascade];

    pub(crate) fn of(shares_prefix: bool) -> Self {
        if shares_prefix { Self::Cascade } else { Self::Plain }
    }
}

/// Steps with cascade attention that are kept captured for a network: those captured last.
const MOST_CASCADES: usize = 8;

/// A step that can be replayed.
pub(crate) enum CapturedStep {
    /// Its kernels; and one that would do all of it, which is still being compiled.
    Graph { graph: Graph, awaits: Option<Special> },
    /// The same, and one kernel in their place, for sequences of lengths that are chosen.
    Either { step: Box<WholeStep>, graph: Graph, choice: Choice },
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
            Self::Either { step, choice, .. } if tokens <= choice.up_to() => Some(step),
            Self::Graph { .. } | Self::Either { .. } => None,
        }
    }

    /// Its kernels.
    pub(crate) fn graph(&self) -> &Graph {
        match self {
            Self::Graph { graph, .. } | Self::Either { graph, .. } => graph,
        }
    }

    fn is_undecided(&self) -> bool {
        matches!(self, Self::Either { choice, .. } if choice.is_open()) && self.is_current()
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
    /// Steps with cascade attention of each that may be captured.
    most_cascades: usize,
}

impl Captures {
    /// `cascades`: whether steps may have cascade attention.
    pub(crate) fn new(cascades: bool) -> Self {
        Self { most_cascades: if cascades { MOST_CASCADES } else { 0 }, ..Self::default() }
    }

    /// What was captured for an owner is dropped.
    pub(crate) fn set(&mut self, owner: CaptureOwner, rows: &[usize], layers: usize) {
        self.owners.insert(owner, NetworkCaptures::new(rows, layers));
    }

    /// Device memory that the graphs of all owners take at most.
    pub(crate) fn bytes(&self) -> u64 {
        self.owners.values().map(|captures| captures.bytes(self.most_cascades)).sum()
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

    /// Takes a step of one row that may be one kernel out, of which is not known yet where that is faster.
    pub(crate) fn take_undecided(&mut self) -> Option<(CaptureOwner, CapturedStep)> {
        self.owners.iter_mut().find_map(|(owner, captures)| {
            let captured = &mut captures.size(1)?.kinds[Kind::Plain as usize].captured;
            captured.take_if(|captured| captured.is_undecided()).map(|captured| (*owner, captured))
        })
    }

    /// Puts it back.
    pub(crate) fn put_back(&mut self, owner: CaptureOwner, captured: CapturedStep) {
        if let Some(size) = self.owners.get_mut(&owner).and_then(|captures| captures.size(1)) {
            size.kinds[Kind::Plain as usize].captured = Some(captured);
        }
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
    /// Steps of a kind cannot be captured; they are padded all the same.
    refused: [bool; Kind::ALL.len()],
    /// Rows of the captured steps with cascade attention, in the order of their capture.
    cascades: VecDeque<usize>,
}

struct SizeCapture {
    rows: usize,
    kinds: [KindCapture; Kind::ALL.len()],
}

#[derive(Default)]
struct KindCapture {
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
        let size = |&rows: &usize| SizeCapture { rows, kinds: Default::default() };
        Self { sizes: rows.iter().map(size).collect(), layers, refused: Default::default(), cascades: VecDeque::new() }
    }

    /// Device memory that its graphs take at most.
    fn bytes(&self, most_cascades: usize) -> u64 {
        let kernels = self.layers as u64 * LAYER_KERNELS + OTHER_KERNELS;
        let steps = self.sizes.len() + self.sizes.len().min(most_cascades);
        steps as u64 * (kernels * KERNEL_BYTES + GRAPH_BYTES)
    }

    fn padded(&self, rows: usize) -> usize {
        self.sizes.iter().map(|size| size.rows).find(|&padded| padded >= rows).unwrap_or(rows)
    }

    /// A step of `rows` rows, padding included, ran kernel by kernel.
    pub(crate) fn ran(&mut self, rows: usize, kind: Kind) {
        if let Some(size) = self.size(rows) {
            size.kinds[kind as usize].has_run = true;
        }
    }

    /// Rows of the next step, and whether such a step has run. What has comes first: it will run again.
    pub(crate) fn next(&self, is_compiled: impl Fn(Special) -> bool) -> Option<(usize, bool)> {
        let kind_of = |size: &SizeCapture| self.left(size, &is_compiled).map(|kind| (size.rows, size.has_run(kind)));
        let left = || self.sizes.iter().filter_map(kind_of);
        left().find(|(_, has_run)| *has_run).or_else(|| left().next())
    }

    /// The kind of a size's steps to capture, if one is left. Cascades follow where such a step has run: few sizes have
    /// any.
    fn left(&self, size: &SizeCapture, is_compiled: impl Fn(Special) -> bool) -> Option<Kind> {
        let is_left = |kind: &Kind| match size.current(*kind) {
            _ if self.refused[*kind as usize] => false,
            Some(captured) => size.kinds[*kind as usize].outdated || captured.awaits().is_some_and(&is_compiled),
            None => *kind == Kind::Plain || size.has_run(*kind),
        };
        let mut left = Kind::ALL.into_iter().filter(is_left);
        let first = left.next()?;
        Some(left.find(|kind| size.has_run(*kind) && !size.has_run(first)).unwrap_or(first))
    }

    /// The kind of the steps of `rows` rows to capture.
    pub(crate) fn kind(&self, rows: usize, is_compiled: impl Fn(Special) -> bool) -> Kind {
        let size = self.sizes.iter().find(|size| size.rows == rows);
        size.and_then(|size| self.left(size, is_compiled)).unwrap_or(Kind::Plain)
    }

    /// `logits`: where the step leaves them.
    pub(crate) fn keep(&mut self, rows: usize, kind: Kind, captured: CapturedStep, logits: Option<View>) {
        if let Some(size) = self.size(rows) {
            let kept = &mut size.kinds[kind as usize];
            (kept.outdated, kept.captured, kept.logits) = (false, Some(captured), logits);
        }
        if kind == Kind::Cascade {
            self.newest_cascade(rows);
        }
    }

    /// Lets go of the one that was captured first, if there are too many.
    fn newest_cascade(&mut self, rows: usize) {
        self.cascades.retain(|other| *other != rows);
        self.cascades.push_back(rows);
        let is_full = self.cascades.len() > MOST_CASCADES;
        let first = if is_full { self.cascades.pop_front() } else { None };
        if let Some(size) = first.and_then(|first| self.size(first)) {
            size.kinds[Kind::Cascade as usize] = KindCapture::default();
        }
    }

    fn renew(&mut self, are: impl Fn(usize) -> bool) {
        let kinds = self.sizes.iter_mut().filter(|size| are(size.rows)).flat_map(|size| &mut size.kinds);
        kinds.filter(|kind| kind.captured.is_some()).for_each(|kind| kind.outdated = true);
    }

    fn forget_stale(&mut self) {
        let kinds = self.sizes.iter_mut().flat_map(|size| &mut size.kinds);
        kinds.filter(|kind| kind.current().is_none()).for_each(|kind| kind.captured = None);
    }

    /// Nothing of this kind will be captured any more.
    pub(crate) fn refuse(&mut self, kind: Kind) {
        self.refused[kind as usize] = true;
        self.sizes.iter_mut().for_each(|size| size.kinds[kind as usize].captured = None);
    }

    /// Whether steps of a kind run kernel by kernel for good.
    pub(crate) fn refuses(&self, kind: Kind) -> bool {
        self.refused[kind as usize]
    }

    /// The captured step of `rows` rows, padding included, and the logits that it leaves.
    pub(crate) fn of(&self, rows: usize, kind: Kind) -> Option<(&CapturedStep, Option<View>)> {
        let size = self.sizes.iter().find(|size| size.rows == rows)?;
        Some((size.current(kind)?, size.kinds[kind as usize].logits))
    }

    fn size(&mut self, rows: usize) -> Option<&mut SizeCapture> {
        self.sizes.iter_mut().find(|size| size.rows == rows)
    }
}

impl SizeCapture {
    fn current(&self, kind: Kind) -> Option<&CapturedStep> {
        self.kinds[kind as usize].current()
    }

    fn has_run(&self, kind: Kind) -> bool {
        self.kinds[kind as usize].has_run
    }
}

impl KindCapture {
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
        captures.ran(4, Kind::Plain);
        captures.ran(3, Kind::Plain);
        assert_eq!(next(&captures), Some((4, true)));
        captures.refuse(Kind::Plain);
        assert_eq!(next(&captures), None);
        assert_eq!(captures.padded(3), 4);
    }

    #[test]
    fn cascades_are_recorded_once_they_have_run() {
        let mut captures = NetworkCaptures::new(&[2, 4], 1);
        let kind = |captures: &NetworkCaptures, rows| captures.kind(rows, |_| true);
        assert_eq!([2, 4].map(|rows| kind(&captures, rows)), [Kind::Plain, Kind::Plain]);
        captures.ran(4, Kind::Cascade);
        assert_eq!(captures.next(|_| true), Some((4, true)));
        assert_eq!(kind(&captures, 4), Kind::Cascade);
        // What cannot be recorded with it is without.
        captures.refuse(Kind::Cascade);
        assert!(captures.refuses(Kind::Cascade) && !captures.refuses(Kind::Plain));
        assert_eq!(captures.next(|_| true), Some((2, false)));
        assert_eq!(kind(&captures, 4), Kind::Plain);
    }

    #[test]
    fn cascades_captured_long_ago_give_way() {
        let sizes: Vec<usize> = (1..=MOST_CASCADES + 2).collect();
        let mut captures = NetworkCaptures::new(&sizes, 1);
        for &rows in &sizes {
            captures.ran(rows, Kind::Cascade);
            captures.newest_cascade(rows);
        }
        captures.newest_cascade(3);
        let has_run = |rows: usize| captures.sizes[rows - 1].has_run(Kind::Cascade);
        assert_eq!(sizes.iter().filter(|&&rows| has_run(rows)).count(), MOST_CASCADES);
        assert_eq!([1, 2, 3].map(has_run), [false, false, true]);
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
        // With cascade attention some sizes count twice.
        captures.most_cascades = 1;
        assert_eq!(captures.bytes(), (both - alone) / 2 * 3);
    }
}
