//! The background autotuner: while the worker is idle, a few milliseconds at a time, kernels are loaded and the tactics
//! of GEMMs measured that steps would otherwise wait for, for all numbers of rows that a step can have.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use crate::CudaBackend;
use crate::autotune::measure;
use crate::autotune::tactics::{GemmProblem, bucket};
use crate::autotune::trial::Trial;
use crate::gemm::matmul::Matmul;
use crate::gemm::product::{Activated, Gate, Product};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, MOMENT};
use crate::weights::Weights;
use kernels::ops::{Activation, DType, Epilogue, Matrix, Vector};

const NOW: Duration = Duration::ZERO;
/// Products of fewer rows are always done in the same tactic.
const LEAST_ROWS: usize = 17;

/// A product that steps ask for, with one of the matrices that it is done with, and buffers whose content means nothing
/// between steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallSite {
    pub(crate) x: View,
    pub(crate) w: Matrix,
    pub(crate) bias: Option<Vector>,
    pub(crate) out: View,
    /// What gates its outputs next or is taken of each, and where to.
    pub(crate) gate: Option<(Activated, Activation, View)>,
}

impl CallSite {
    /// Rows that its buffers have room for.
    fn room(&self) -> usize {
        let gated = self.gate.map_or(usize::MAX, |(.., out)| out.most_rows);
        self.x.most_rows.min(self.out.most_rows).min(gated)
    }
}

/// How soon something is to be done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Urgency {
    /// A step has needed it.
    Wanted,
    Usual,
    /// It waits for something that is under tactic.
    Deferred,
}

/// A product to be measured or loaded, with its number of rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Task {
    urgency: Urgency,
    rows: usize,
    site: usize,
}

/// What is left to do: from few rows to many, all products of as many rows together.
#[derive(Debug, Default)]
pub(crate) struct TuningQueue {
    left: BTreeSet<Task>,
    /// Rows of each site's highest task so far.
    most: Vec<usize>,
    /// Ranges of rows of which something is done otherwise than before.
    changed: HashSet<usize>,
}

impl TuningQueue {
    /// A site comes with at most `most` rows.
    fn add(&mut self, site: usize, most: usize) {
        self.most.resize(self.most.len().max(site + 1), LEAST_ROWS - 1);
        let mut rows = self.most[site];
        while rows < most {
            rows = bucket(rows + 1).min(most);
            self.left.insert(Task { urgency: Urgency::Usual, rows, site });
        }
        self.most[site] = self.most[site].max(rows);
    }

    fn pop(&mut self) -> Option<Task> {
        self.left.pop_first()
    }

    /// Whether something is left to do for `rows` rows.
    fn has(&self, rows: usize) -> bool {
        self.left.iter().any(|task| bucket(task.rows) == bucket(rows))
    }

    /// All that is left, as a stack: powers of two first, then what lies in the middle between those, and so on.
    fn coarse_to_fine(&self) -> Vec<Task> {
        let mut all: Vec<Task> = self.left.iter().copied().collect();
        all.sort_by_key(|task| (!task.rows.is_power_of_two(), Reverse(task.rows.trailing_zeros())));
        all.reverse();
        all
    }

    /// A step has needed it.
    fn prefer(&mut self, site: usize, rows: usize) {
        let usual = self.left.iter().find(|task| task.site == site && bucket(task.rows) == bucket(rows)).copied();
        if let Some(task) = usual.filter(|task| task.urgency == Urgency::Usual) {
            self.left.remove(&task);
            self.left.insert(Task { urgency: Urgency::Wanted, ..task });
        }
    }

    /// What it takes is not there yet.
    fn defer(&mut self, task: Task) {
        self.left.insert(Task { urgency: Urgency::Deferred, ..task });
    }

    /// A task is done; `changed`: so that its product is done otherwise than before. Whether with it everything is
    /// known of its range of rows, and something of that has changed.
    fn end(&mut self, task: Task, changed: bool) -> bool {
        let range = bucket(task.rows);
        if changed {
            self.changed.insert(range);
        }
        self.left.iter().all(|other| bucket(other.rows) != range) && self.changed.remove(&range)
    }
}

/// Products that steps ask for, and what is left to do for them.
#[derive(Default)]
pub(crate) struct BackgroundTuner {
    sites: Vec<(GemmProblem, CallSite)>,
    queue: TuningQueue,
    trial: Option<(Task, Box<Trial>)>,
    /// What is left to be done once so that its code is there, the next one last.
    unloaded: Vec<Task>,
}

impl BackgroundTuner {
    /// A step asks for a product of this kind; whether it is the first one.
    pub(crate) fn note(&mut self, kind: GemmProblem, site: CallSite) -> bool {
        let kind = kind.of_rows(LEAST_ROWS);
        let known = self.sites.iter().position(|(known, _)| *known == kind);
        let index = known.unwrap_or_else(|| {
            self.sites.push((kind, site));
            self.sites.len() - 1
        });
        if site.room() > self.sites[index].1.room() {
            self.sites[index].1 = site;
        }
        self.queue.add(index, self.sites[index].1.room());
        known.is_none()
    }

    fn prefer(&mut self, kind: GemmProblem) {
        let same = |(known, _): &(GemmProblem, CallSite)| *known == kind.of_rows(LEAST_ROWS);
        if let Some(site) = self.sites.iter().position(same) {
            self.queue.prefer(site, kind.rows);
        }
    }
}

impl CudaBackend {
    /// Does a piece of it; whether there may be more.
    pub(crate) fn prepare_some(&mut self) -> bool {
        if self.device.is_capturing() || self.device.is_profiled() || self.device.fault().is_some() {
            return false;
        }
        self.device.bind();
        self.flush();
        self.matmul.tactics.was_idle(Instant::now());
        self.device.grant()
            || self.load_some()
            || self.choose_whole_step()
            || self.measure_some()
            || self.device.await_orders()
    }

    /// Does every product of steps so far once with each number of rows, as it would be done now: its code is there
    /// then, and a library has chosen. Ends after `most`, and goes on in idle time; whether that was all.
    pub(crate) fn load_products(&mut self, most: Duration) -> bool {
        if self.device.is_capturing() || self.device.is_profiled() || self.device.fault().is_some() {
            return false;
        }
        if !self.matmul.tactics.are_measured_ahead() {
            return true;
        }
        self.device.bind();
        self.flush();
        let start = Instant::now();
        self.tuner.unloaded = self.tuner.queue.coarse_to_fine();
        while start.elapsed() < most && self.load_some() {}
        // Idle time may follow.
        self.matmul.tactics.was_idle(Instant::now());
        self.tuner.unloaded.is_empty()
    }

    /// The same with what steps will probably ask for, as the model's matrices and buffers say, for as long as kernels
    /// that a first step needs are being compiled.
    pub(crate) fn load_expected(&mut self) {
        if !self.matmul.tactics.are_measured_ahead() || self.device.fault().is_some() {
            return;
        }
        let sites = expected(&self.matrices, &self.acts.views());
        let mut queue = TuningQueue::default();
        sites.iter().enumerate().for_each(|(index, site)| queue.add(index, site.room()));
        let mut left = queue.coarse_to_fine();
        while !self.are_first_compiled()
            && let Some(task) = left.pop()
        {
            self.load_product(sites[task.site], task.rows);
        }
    }

    /// Does the next product once that is left of those; whether there was one.
    fn load_some(&mut self) -> bool {
        let Some(task) = self.tuner.unloaded.pop() else { return false };
        self.load_product(self.tuner.sites[task.site].1, task.rows);
        true
    }

    fn load_product(&mut self, site: CallSite, rows: usize) {
        // No step asks for it.
        let asked = self.matmul.tactics.asked();
        self.matmul.tactics.begin(false);
        self.with_product(site, rows, |matmul, device, product, gate| {
            let mut specials = matmul.specials(device, &product, gate).into_iter();
            // One that is always done by a kernel would wait for its compilation.
            if !matmul.is_small(device, &product) || specials.all(|special| device.is_compiled(special, NOW)) {
                matmul.run_kind(device, product, gate);
                device.synchronize();
            }
        });
        self.matmul.tactics.restore_asked(asked);
    }

    /// Whether the tactics of products of `rows` rows are known, or will not be found out while the worker is idle.
    pub(crate) fn is_tuned(&self, rows: usize) -> bool {
        let is_tried = self.tuner.trial.as_ref().is_some_and(|(task, _)| bucket(task.rows) == bucket(rows));
        !self.matmul.tactics.are_measured_ahead()
            || !measure::is_possible(&self.device)
            || !(is_tried || self.tuner.queue.has(rows))
    }

    /// Begins to compile what may do a product that came for the first time, with whatever number of rows.
    pub(crate) fn order(matmul: &Matmul, device: &Device, product: &mut Product<'_>, gate: Option<Gate>) {
        let (rows, room) = (product.x.rows, product.x.most_rows.min(product.out.most_rows));
        let mut next = LEAST_ROWS;
        while matmul.tactics.are_measured_ahead() && next <= room {
            product.set_rows(bucket(next).min(room));
            matmul.specials(device, product, gate).into_iter().for_each(|special| device.order(special));
            next = bucket(next) + 1;
        }
        product.set_rows(rows);
    }

    fn measure_some(&mut self) -> bool {
        if !self.matmul.tactics.are_measured_ahead() || !measure::is_possible(&self.device) {
            return false;
        }
        for kind in self.matmul.tactics.take_wanted() {
            self.tuner.prefer(kind);
        }
        match self.tuner.trial.take() {
            Some((task, trial)) => self.go_on(task, trial),
            None => {
                let Some(task) = self.tuner.queue.pop() else { return false };
                self.begin_task(task);
            }
        }
        true
    }

    /// Begins to measure a kind of product; one that is known already is done once, so that its code is there.
    fn begin_task(&mut self, task: Task) {
        let ahead = self.with_product(self.tuner.sites[task.site].1, task.rows, |matmul, device, mut product, gate| {
            if !matmul.has_tactics(device, &product, gate) {
                return Begun::Nothing;
            }
            if !matmul.specials(device, &product, gate).into_iter().all(|special| device.is_compiled(special, MOMENT)) {
                return Begun::Later;
            }
            fill(device, &product);
            if matmul.is_known(&product, gate) {
                matmul.run_kind(device, product, gate);
                device.synchronize();
                return Begun::Nothing;
            }
            Begun::Trial(Box::new(matmul.trial(device, &mut product, gate)))
        });
        match ahead {
            None | Some(Begun::Nothing) => self.end_task(task, false),
            Some(Begun::Later) => self.tuner.queue.defer(task),
            Some(Begun::Trial(trial)) => self.tuner.trial = Some((task, trial)),
        }
    }

    /// Lets one tactic more be tried.
    fn go_on(&mut self, task: Task, mut trial: Box<Trial>) {
        let more = self.with_product(self.tuner.sites[task.site].1, task.rows, |matmul, device, mut product, gate| {
            matmul.turn(device, &mut trial, &mut product, gate)
        });
        if more == Some(true) {
            self.tuner.trial = Some((task, trial));
        } else {
            let changed = self.matmul.settle(*trial);
            self.end_task(task, changed);
        }
    }

    /// Steps that were recorded with other tactics are recorded anew.
    fn end_task(&mut self, task: Task, changed: bool) {
        if self.tuner.queue.end(task, changed) {
            self.captures.renew(|rows| bucket(rows) == bucket(task.rows));
        }
    }

    /// The product of a site with so many rows, on its buffers; none where its input is not there.
    fn with_product<T>(
        &mut self,
        CallSite { x, w, bias, out, gate }: CallSite,
        rows: usize,
        run: impl FnOnce(&mut Matmul, &mut Device, Product<'_>, Option<Gate>) -> T,
    ) -> Option<T> {
        let w = &self.matrices[w.0 as usize];
        let x = self.matmul.input(View { rows, ..x }, w)?;
        let bias = bias.map(|bias| &mut self.vectors[bias.0 as usize]);
        let product = Product { x, w, bias, epilogue: Epilogue::Store, out: View { rows, ..out }, prepared: None };
        let gate = gate.map(|(of, activation, out)| Gate { of, activation, out: View { rows, ..out }, prepared: None });
        Some(run(&mut self.matmul, &mut self.device, product, gate))
    }
}

/// Products that steps will probably ask for, one of each shape: of 16-bit matrices with buffers as wide as they are.
/// What is added to a residual is f32, so that comes first where there are several.
fn expected(matrices: &[Weights], buffers: &[View]) -> Vec<CallSite> {
    let mut sites: Vec<CallSite> = Vec::new();
    let mut shapes = HashSet::new();
    for (index, w) in (0..).zip(matrices) {
        if w.packed.is_some() || w.dtype.size() != 2 || w.compute != w.dtype || !shapes.insert([w.rows, w.cols]) {
            continue;
        }
        let inputs = buffers.iter().filter(|view| view.width == w.cols && view.dtype == w.dtype);
        let Some(x) = inputs.max_by_key(|view| view.most_rows) else { continue };
        let outputs = buffers.iter().filter(|view| view.width == w.rows && view.ptr != x.ptr);
        let outputs = outputs.filter(|view| view.dtype == DType::F32 || view.dtype == w.dtype);
        if let Some(out) = outputs.max_by_key(|view| (view.dtype == DType::F32, view.most_rows)) {
            sites.push(CallSite { x: *x, w: Matrix(index), bias: None, out: *out, gate: None });
        }
    }
    sites
}

/// What came of beginning a task.
enum Begun {
    /// There is nothing to be measured (any more).
    Nothing,
    /// A kernel that takes part is being compiled.
    Later,
    Trial(Box<Trial>),
}

/// Makes a product's input as random as its weights are: zeros are multiplied faster.
fn fill(device: &mut Device, Product { x, w, .. }: &Product<'_>) {
    let (bytes, piece) = (x.elements() * x.dtype.size(), w.rows * w.cols * w.dtype.size());
    for at in (0..bytes).step_by(piece.max(1)) {
        device.copy(w.ptr(), x.ptr + at as u64, piece.min(bytes - at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that is left, in its order: rows and site.
    fn rest(queue: &mut TuningQueue) -> Vec<(usize, usize)> {
        std::iter::from_fn(|| queue.pop()).map(|task| (task.rows, task.site)).collect()
    }

    #[test]
    fn sites_share_rungs_up_to_what_their_buffers_hold() {
        let mut queue = TuningQueue::default();
        queue.add(0, 40);
        queue.add(1, 30);
        assert_eq!(rest(&mut queue), [(24, 0), (24, 1), (30, 1), (32, 0), (40, 0)]);
        // Nothing is done twice; with more room there is more to do.
        queue.add(1, 30);
        queue.add(0, 50);
        assert_eq!(rest(&mut queue), [(48, 0), (50, 0)]);
        queue.add(2, 16);
        assert_eq!(rest(&mut queue), []);
        queue.add(2, 8192);
        let all = rest(&mut queue);
        assert_eq!((all.first(), all.last()), (Some(&(24, 2)), Some(&(8192, 2))));
        assert!(all.iter().all(|(rows, _)| bucket(*rows) == *rows) && all.len() <= 60, "{all:?}");
    }

    #[test]
    fn what_steps_will_ask_for_is_seen_from_matrices_and_buffers() {
        let weights = |rows, cols, dtype| Weights { memory: None, dtype, rows, cols, compute: dtype, packed: None };
        let view = |ptr, width, dtype, most_rows| View { ptr, dtype, rows: most_rows, width, most_rows };
        let (short, long) = (DType::Bf16, DType::F32);
        // Two layers and a head; the last but one is multiplied in f32, and for the last no buffer is as wide as its
        // outputs.
        let layer = [weights(96, 64, short), weights(64, 64, short)];
        let others = [weights(1000, 64, short), weights(64, 96, long), weights(48, 64, short)];
        let matrices = layer.iter().chain(&layer).chain(&others).cloned().collect::<Vec<_>>();
        let buffers = [
            view(1, 64, long, 512),
            view(2, 64, short, 512),
            view(3, 64, short, 8),
            view(4, 96, short, 512),
            view(5, 1000, long, 32),
        ];
        let sites = expected(&matrices, &buffers);
        let seen: Vec<_> = sites.iter().map(|site| (site.w.0, site.x.ptr, site.out.ptr, site.room())).collect();
        assert_eq!(seen, [(0, 2, 4, 512), (1, 2, 1, 512), (4, 2, 5, 32)]);
        // A product overwrites no input of its own.
        assert!(expected(&matrices[1..2], &buffers[1..2]).is_empty());
    }

    #[test]
    fn what_is_loaded_ahead_begins_with_powers_of_two() {
        let mut queue = TuningQueue::default();
        (0..2).for_each(|site| queue.add(site, 64));
        let order = queue.coarse_to_fine().iter().rev().map(|task| (task.rows, task.site)).collect::<Vec<_>>();
        assert_eq!(order, [64, 32, 48, 24, 40, 56].map(|rows| [(rows, 0), (rows, 1)]).concat());
    }

    #[test]
    fn what_steps_have_needed_comes_first_and_what_is_not_there_yet_last() {
        let mut queue = TuningQueue::default();
        (0..2).for_each(|site| queue.add(site, 40));
        // Of the range that 33 to 40 rows share.
        queue.prefer(1, 35);
        queue.prefer(1, 35);
        let first = queue.pop().expect("a task");
        assert_eq!((first.rows, first.site), (40, 1));
        let second = queue.pop().expect("a task");
        queue.defer(second);
        queue.prefer(0, 24);
        assert_eq!(rest(&mut queue), [(24, 1), (32, 0), (32, 1), (40, 0), (24, 0)]);
    }

    #[test]
    fn a_range_of_rows_has_changed_once_all_of_it_is_known() {
        let mut queue = TuningQueue::default();
        (0..2).for_each(|site| queue.add(site, 32));
        let ended: Vec<bool> = [true, false, false, false]
            .map(|changed| {
                let task = queue.pop().expect("a task");
                queue.end(task, changed)
            })
            .into();
        assert_eq!(ended, [false, true, false, false]);
        // One that is deferred holds its range up.
        (2..4).for_each(|site| queue.add(site, 24));
        let [first, second] = [(); 2].map(|()| queue.pop().expect("a task"));
        queue.defer(first);
        assert!(!queue.end(second, true));
        let first = queue.pop().expect("the deferred one");
        assert!(queue.end(first, false));
    }
}
