//! Which kinds of steps are recorded, and their graphs. A step of one row a sequence is padded to the next kind's rows, recorded or not, so
//! that it gives the same bits either way.

use super::acts::View;
use super::graph::Graph;
use kernels::ops::Recordable;

/// Device memory that a graph takes, at most: of a kernel, and beside kernels.
const KERNEL_BYTES: u64 = 8 << 10;
const GRAPH_BYTES: u64 = 256 << 10;
/// Kernels of a layer, and of a step beside its layers, at most as far as memory is concerned.
const LAYER_KERNELS: u64 = 16;
const OTHER_KERNELS: u64 = 16;

/// All kinds, in the order of their rows.
#[derive(Default)]
pub(crate) struct Recordings {
    kinds: Vec<Kind>,
    /// Steps cannot be recorded; they are padded all the same.
    refused: bool,
    /// Where the step under recording leaves its logits.
    pub(crate) logits: Option<View>,
}

struct Kind {
    rows: usize,
    has_run: bool,
    graph: Option<Graph>,
    /// Where the graph leaves them.
    logits: Option<View>,
}

impl Recordings {
    pub(crate) fn set(&mut self, rows: &[usize]) {
        assert!(rows.is_sorted_by(|a, b| a < b), "kinds of steps in another order: {rows:?}");
        self.kinds = rows.iter().map(|&rows| Kind { rows, has_run: false, graph: None, logits: None }).collect();
    }

    /// Rows that a step of `rows` is padded to.
    pub(crate) fn padded(&self, rows: usize) -> usize {
        self.kinds.iter().map(|kind| kind.rows).find(|&padded| padded >= rows).unwrap_or(rows)
    }

    /// A step of so many rows, padding included, ran kernel by kernel.
    pub(crate) fn ran(&mut self, rows: usize) {
        if let Some(kind) = self.kind(rows) {
            kind.has_run = true;
        }
    }

    /// What has run comes first: it will run again.
    pub(crate) fn next(&self) -> Option<Recordable> {
        let left = || self.kinds.iter().filter(|kind| !self.refused && kind.current().is_none());
        let kind = left().find(|kind| kind.has_run).or_else(|| left().next())?;
        Some(Recordable { rows: kind.rows, has_run: kind.has_run })
    }

    pub(crate) fn keep(&mut self, rows: usize, graph: Graph) {
        let logits = self.logits.take();
        if let Some(kind) = self.kind(rows) {
            (kind.graph, kind.logits) = (Some(graph), logits);
        }
    }

    /// Nothing will be recorded any more.
    pub(crate) fn refuse(&mut self) {
        self.refused = true;
        self.kinds.iter_mut().for_each(|kind| kind.graph = None);
    }

    /// The recording of a step of so many rows, padding included, and the logits that it leaves.
    pub(crate) fn graph(&self, rows: usize) -> Option<(&Graph, Option<View>)> {
        let kind = self.kinds.iter().find(|kind| kind.rows == rows)?;
        Some((kind.current()?, kind.logits))
    }

    fn kind(&mut self, rows: usize) -> Option<&mut Kind> {
        self.kinds.iter_mut().find(|kind| kind.rows == rows)
    }
}

impl Kind {
    fn current(&self) -> Option<&Graph> {
        self.graph.as_ref().filter(|graph| graph.is_current())
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
        let mut recordings = Recordings::default();
        assert_eq!(recordings.padded(3), 3);
        recordings.set(&[1, 2, 4, 8]);
        assert_eq!([1, 3, 5, 8, 9].map(|rows| recordings.padded(rows)), [1, 4, 8, 8, 9]);
    }

    #[test]
    fn what_has_run_is_recorded_first() {
        let mut recordings = Recordings::default();
        assert_eq!(recordings.next(), None);
        recordings.set(&[1, 2, 4]);
        assert_eq!(recordings.next(), Some(Recordable { rows: 1, has_run: false }));
        recordings.ran(4);
        recordings.ran(3);
        assert_eq!(recordings.next(), Some(Recordable { rows: 4, has_run: true }));
        recordings.refuse();
        assert_eq!(recordings.next(), None);
        assert_eq!(recordings.padded(3), 4);
    }
}
