//! GEMM tactics of this machine: measured once for a problem, then kept in a folder.
//!
//! A problem that was never measured runs with the default tactic. It is measured while the worker is idle
//! (`background`), or by a later step that needs it, if the last one that measured is long enough ago; from then on its
//! tactic stays for the life of the process. Files lie beside compiled kernels and are written as they are
//! (`jit::cache`): processes that start together may share the folder, and a damaged file is measured again. They are
//! text: what was measured, the tactic, and what each tactic took.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::gemm::cublaslt::{self, Algorithm};
use crate::gemm::product::OutputFunction;
use crate::jit::cache::{self, digest};
use crate::jit::sources::{KERNELS, SPECIAL, headers};
use crate::options::GemmTactics;
use crate::runtime::context::{Context, driver_version};
use kernels::ops::DType;

/// Products that share a tactic: the autotuner's key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GemmProblem {
    /// See [`bucket`].
    pub(crate) rows: usize,
    n: usize,
    k: usize,
    input: DType,
    output: DType,
    bias: bool,
    /// What gates the outputs or is taken of each, as its number.
    gate: Option<u32>,
}

/// How a product is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tactic {
    /// cuBLASLt as it chooses itself; for a product with an activation the tactic of that without, and then a pass.
    Default,
    /// cuBLASLt with this algorithm.
    Library(Algorithm),
    /// The warpgroup kernel, `matmul_wgmma.cu`.
    Wgmma,
    /// The split-K kernel, `matmul_split_k.cu`.
    SplitK,
}

impl GemmProblem {
    pub(crate) fn of(key: &cublaslt::Key, gate: Option<OutputFunction>) -> Self {
        let cublaslt::Key { rows, n, k, input, output, bias, .. } = *key;
        Self { rows: bucket(rows), n, k, input, output, bias, gate: gate.map(|function| function.number()) }
    }

    /// The same with other rows.
    pub(crate) fn of_rows(self, rows: usize) -> Self {
        Self { rows: bucket(rows), ..self }
    }
}

impl std::fmt::Display for GemmProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rows, n, k, input, output, bias, gate } = self;
        write!(f, "{} to {}, [{n}, {k}], {rows} rows or some less", input.name(), output.name())?;
        write!(f, "{}", if *bias { ", bias" } else { "" })?;
        gate.map_or(Ok(()), |number| write!(f, ", gate {number}"))
    }
}

impl Tactic {
    fn text(self) -> String {
        match self {
            Self::Default => "default".to_owned(),
            Self::Wgmma => "wgmma".to_owned(),
            Self::SplitK => "split-k".to_owned(),
            Self::Library(algorithm) => algorithm.text(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "default" => Some(Self::Default),
            "wgmma" => Some(Self::Wgmma),
            "split-k" => Some(Self::SplitK),
            _ => Algorithm::parse(text).map(Self::Library),
        }
    }
}

/// Rows that are measured as one: the next of a list that grows finer towards few rows, where the tiles of a product
/// count most. Up to 256, each number that decode steps are padded to is of its own: tiles of cuBLASLt come in all
/// multiples of 8. Of more than 512, those a little past a multiple of the largest tile, as decodes beside prompts make
/// them, are of their own too: what is the fastest for full tiles wastes most of one.
pub(crate) fn bucket(rows: usize) -> usize {
    /// Rows of the largest tile, and of what begins another one and is little.
    const TILE: usize = 256;
    const LITTLE: usize = 64;
    let step = match rows {
        ..=256 => 8,
        257..=512 => 64,
        513..=1024 => 128,
        1025..=2048 => 256,
        2049..=4096 => 512,
        _ => 2048,
    };
    let past = rows % TILE;
    if rows > 2 * TILE && (1..=LITTLE).contains(&past) {
        return (rows - past).next_multiple_of(step) + LITTLE;
    }
    rows.next_multiple_of(step)
}

/// The autotune cache: tactics known so far.
pub(crate) struct TacticCache {
    cache: Option<cache::Cache>,
    /// What a measurement is good for beside its problem: device, driver, library, own kernels.
    machine: String,
    known: HashMap<GemmProblem, Tactic>,
    /// Kinds that were asked for and are not known, with the step that did first; those of them that nobody was told
    /// of.
    missing: HashMap<GemmProblem, u64>,
    wanted: Vec<GemmProblem>,
    gemms: GemmTactics,
    /// Current step number, and whether it is a dummy run.
    step: u64,
    idle: bool,
    /// Before then, steps that somebody waits for measure nothing.
    rest_until: Option<Instant>,
}

/// Kinds that steps have asked for in vain.
pub(crate) struct Asked {
    missing: HashMap<GemmProblem, u64>,
    wanted: Vec<GemmProblem>,
}

impl TacticCache {
    /// How many times as long as steps measured they go on without measuring: a server that is always busy gives a
    /// fiftieth of its time to it.
    const REST: u32 = 49;
    /// How long a step that measures is held up, if no single tactic takes longer.
    const PIECE: Duration = Duration::from_millis(5);
    /// A server that had no time to measure for so long is busy, and steps measure.
    const BUSY: Duration = Duration::from_secs(1);

    pub(crate) fn new(context: &Context, cache: Option<&Path>, gemms: GemmTactics) -> Self {
        let driver = driver_version().unwrap_or_default();
        let library = cublaslt::version();
        let own = ["matmul_wgmma", "matmul_split_k"];
        let own = SPECIAL.iter().filter(|source| own.contains(&source.name)).map(|source| source.text);
        let own = digest(own.chain(headers().map(|(_, text)| text)));
        let machine = format!(
            "{} with {} multiprocessors, driver for CUDA {driver}, cuBLASLt {library}, kernels {own}, between others",
            context.name, context.multiprocessors
        );
        let cache = cache.map(cache::Cache::new);
        Self {
            cache,
            machine,
            known: HashMap::new(),
            missing: HashMap::new(),
            wanted: Vec::new(),
            gemms,
            step: 0,
            idle: false,
            rest_until: None,
        }
    }

    /// Whether kinds are measured when nothing else is to be done.
    pub(crate) fn are_measured_ahead(&self) -> bool {
        self.gemms == GemmTactics::Autotuned
    }

    /// Another step begins, of rows that are somebody's or not.
    pub(crate) fn begin(&mut self, idle: bool) {
        (self.step, self.idle) = (self.step + 1, idle);
    }

    /// Whether a problem that is not known is to be measured by the product that asks, at this time: where nobody waits
    /// for the step, or an earlier step has asked, there was no time since, and steps have not measured anything for a
    /// while.
    pub(crate) fn are_due(&self, problem: GemmProblem, now: Instant) -> bool {
        let asked_before = || self.missing.get(&problem).is_some_and(|first| *first < self.step);
        let rested = || self.rest_until.is_none_or(|until| until <= now);
        match self.gemms {
            GemmTactics::AutotunedAtOnce => true,
            GemmTactics::Autotuned => self.idle || asked_before() && rested(),
            GemmTactics::Library | GemmTactics::Wgmma | GemmTactics::SplitK => false,
        }
    }

    /// Whether a product that measures has held its step up long enough: a later one goes on.
    pub(crate) fn is_enough(&self, took: Duration) -> bool {
        !self.idle && self.gemms != GemmTactics::AutotunedAtOnce && took >= Self::PIECE
    }

    /// There was time to measure while no request waited: for a while, steps need not.
    pub(crate) fn was_idle(&mut self, now: Instant) {
        self.rest_until = self.rest_until.max(now.checked_add(Self::BUSY));
    }

    /// What steps have asked for in vain so far.
    pub(crate) fn asked(&self) -> Asked {
        Asked { missing: self.missing.clone(), wanted: self.wanted.clone() }
    }

    /// What was asked for since was asked for by no step.
    pub(crate) fn restore_asked(&mut self, Asked { missing, wanted }: Asked) {
        (self.missing, self.wanted) = (missing, wanted);
    }

    /// A product was held up for so long, until now, to measure its problem.
    pub(crate) fn rest(&mut self, took: Duration, now: Instant) {
        if !self.idle {
            self.rest_until = now.checked_add(took * Self::REST);
        }
    }

    /// How long a product that measures may wait for a kernel that takes part to be compiled: not at all in a step that
    /// somebody waits for.
    pub(crate) fn patience(&self) -> Duration {
        let waits = self.idle || self.gemms == GemmTactics::AutotunedAtOnce;
        if waits { Duration::from_secs(30) } else { Duration::ZERO }
    }

    /// The same for all kinds, measured or not.
    fn only(&self) -> Option<Tactic> {
        match self.gemms {
            GemmTactics::Autotuned | GemmTactics::AutotunedAtOnce => None,
            GemmTactics::Library => Some(Tactic::Default),
            GemmTactics::Wgmma => Some(Tactic::Wgmma),
            GemmTactics::SplitK => Some(Tactic::SplitK),
        }
    }

    /// Whether products may be done in this tactic.
    pub(crate) fn may_be(&self, tactic: Tactic) -> bool {
        self.only().is_none_or(|only| only == tactic)
    }

    /// Kinds that were asked for in vain since the last call.
    pub(crate) fn take_wanted(&mut self) -> Vec<GemmProblem> {
        std::mem::take(&mut self.wanted)
    }

    /// The tactic of a problem, if it was measured or settled before.
    pub(crate) fn get(&mut self, problem: GemmProblem) -> Option<Tactic> {
        let known = self.only().or_else(|| self.known.get(&problem).copied());
        if known.is_some() || self.missing.contains_key(&problem) {
            return known;
        }
        let stored = self.stored(problem);
        match stored {
            Some(tactic) => drop(self.known.insert(problem, tactic)),
            None => {
                self.missing.insert(problem, self.step);
                self.wanted.push(problem);
            }
        }
        stored
    }

    fn stored(&self, problem: GemmProblem) -> Option<Tactic> {
        let stored = self.cache.as_ref()?.content(&self.file_name(problem))?;
        let mut lines = std::str::from_utf8(&stored).ok()?.lines();
        lines.next().filter(|line| *line == self.title(problem)).and_then(|_| Tactic::parse(lines.next()?))
    }

    /// From now on a problem is done in this tactic; `times` (text) is what measuring it showed, without which nothing
    /// is stored.
    pub(crate) fn settle(&mut self, problem: GemmProblem, tactic: Tactic, times: Option<&str>) {
        self.missing.remove(&problem);
        self.known.insert(problem, tactic);
        if let (Some(cache), Some(times)) = (&self.cache, times) {
            let content = format!("{}\n{}\n{times}\n", self.title(problem), tactic.text());
            // What cannot be written is measured again at the next start.
            let _ = cache.store(&self.file_name(problem), content.as_bytes());
        }
    }

    /// For how many of its lengths a step is one kernel, if that was measured on this machine.
    pub(crate) fn step(&self, step: &str) -> Option<usize> {
        let title = self.step_title(step);
        let stored = self.cache.as_ref()?.content(&step_file(&title))?;
        let mut lines = std::str::from_utf8(&stored).ok()?.lines();
        lines.next().filter(|line| *line == title).and_then(|_| lines.next()?.parse().ok())
    }

    /// Keeps that for the next process.
    pub(crate) fn keep_step(&self, step: &str, wins: usize) {
        if let Some(cache) = &self.cache {
            let title = self.step_title(step);
            // What cannot be written is measured again at the next start.
            let _ = cache.store(&step_file(&title), format!("{title}\n{wins}\n").as_bytes());
        }
    }

    fn step_title(&self, step: &str) -> String {
        let all = digest(KERNELS.iter().chain(SPECIAL).map(|source| source.text));
        format!("{step}; all kernels {all}; {}", self.machine)
    }

    fn title(&self, problem: GemmProblem) -> String {
        format!("{problem}; {}", self.machine)
    }

    fn file_name(&self, problem: GemmProblem) -> String {
        format!("gemm-{}.tactic", digest([self.title(problem).as_str()].into_iter()))
    }
}

fn step_file(title: &str) -> String {
    format!("step-{}.tactic", digest([title].into_iter()))
}

#[cfg(test)]
impl TacticCache {
    /// What a machine of this name keeps in a folder.
    pub(crate) fn of_test(folder: &Path, machine: &str) -> Self {
        Self {
            cache: Some(cache::Cache::new(folder)),
            machine: machine.to_owned(),
            known: HashMap::new(),
            missing: HashMap::new(),
            wanted: Vec::new(),
            gemms: GemmTactics::Autotuned,
            step: 0,
            idle: false,
            rest_until: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::Epilogue;

    fn tactics(folder: &Path, machine: &str) -> TacticCache {
        TacticCache::of_test(folder, machine)
    }

    fn problem(rows: usize, gate: bool) -> GemmProblem {
        let (n, k, input, output) = (28672, 4096, DType::Bf16, DType::Bf16);
        let key = cublaslt::Key { rows, n, k, input, output, bias: false, epilogue: Epilogue::Store };
        GemmProblem::of(&key, gate.then(|| OutputFunction::gate(kernels::ops::Activation::Silu)))
    }

    #[test]
    fn rows_share_a_problem_with_those_up_to_the_next_of_a_list() {
        let rows = [17, 32, 33, 64, 65, 250, 264, 513, 1000, 1039, 1100, 4100, 8192];
        assert_eq!(rows.map(bucket), [24, 32, 40, 64, 72, 256, 320, 576, 1024, 1088, 1280, 4160, 8192]);
        for rows in 1..20_000 {
            assert!(bucket(rows) >= rows && bucket(bucket(rows)) == bucket(rows), "{rows}");
        }
        assert_eq!(problem(250, false), problem(256, false));
        assert_ne!(problem(250, false), problem(250, true));
    }

    #[test]
    fn what_was_measured_is_known_at_the_next_start_of_the_same_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let algorithm = Algorithm::parse(&format!("cublaslt{}", " 1f".repeat(8))).expect("an algorithm");
        let mut first = tactics(folder.path(), "one");
        for (rows, tactic) in
            [(64, Tactic::Default), (128, Tactic::Wgmma), (192, Tactic::SplitK), (256, Tactic::Library(algorithm))]
        {
            assert_eq!(first.get(problem(rows, false)), None);
            first.settle(problem(rows, false), tactic, Some("1.0 2.0"));
            assert_eq!(tactics(folder.path(), "one").get(problem(rows, false)), Some(tactic));
            assert_eq!(tactics(folder.path(), "another").get(problem(rows, false)), None);
            assert_eq!(tactics(folder.path(), "one").get(problem(rows, true)), None);
        }
    }

    #[test]
    fn a_server_that_is_always_busy_measures_a_fiftieth_of_its_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut tactics, now) = (tactics(folder.path(), "one"), Instant::now());
        let took = Duration::from_millis(50);
        tactics.get(problem(64, false));
        tactics.begin(false);
        assert!(tactics.are_due(problem(64, false), now));
        tactics.rest(took, now);
        assert!(
            !tactics.are_due(problem(64, false), now + 48 * took)
                && tactics.are_due(problem(64, false), now + 49 * took)
        );
        // What nobody waits for may take its time.
        tactics.begin(true);
        assert!(tactics.are_due(problem(64, false), now));
        tactics.rest(took, now + 100 * took);
        tactics.begin(false);
        assert!(tactics.are_due(problem(64, false), now + 100 * took));
    }

    #[test]
    fn steps_measure_in_pieces_and_not_where_there_is_idle_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut tactics, now) = (tactics(folder.path(), "one"), Instant::now());
        tactics.get(problem(64, false));
        tactics.begin(false);
        assert!(tactics.are_due(problem(64, false), now));
        assert!(tactics.is_enough(TacticCache::PIECE) && !tactics.is_enough(TacticCache::PIECE / 2));
        tactics.was_idle(now);
        assert!(!tactics.are_due(problem(64, false), now + TacticCache::BUSY / 2));
        assert!(tactics.are_due(problem(64, false), now + TacticCache::BUSY));
        // A longer rest stays.
        tactics.rest(TacticCache::BUSY, now);
        tactics.was_idle(now);
        assert!(!tactics.are_due(problem(64, false), now + TacticCache::BUSY));
        // Nobody waits for a dummy run.
        tactics.begin(true);
        assert!(!tactics.is_enough(TacticCache::BUSY));
    }

    #[test]
    fn what_is_asked_for_in_vain_is_wanted_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut tactics, now) = (tactics(folder.path(), "one"), Instant::now());
        assert_eq!([64, 60, 64].map(|rows| tactics.get(problem(rows, false))), [None; 3]);
        assert_eq!(tactics.take_wanted(), [problem(64, false)]);
        assert_eq!((tactics.get(problem(64, false)), tactics.take_wanted()), (None, vec![]));
        // What is done ahead of steps is wanted by none; what they have asked for stays.
        tactics.get(problem(96, false));
        let asked = tactics.asked();
        tactics.get(problem(128, false));
        tactics.restore_asked(asked);
        assert_eq!(tactics.take_wanted(), [problem(96, false)]);
        // The step that asked first does not wait for it; the next one would, and one that is nobody's.
        assert!(!tactics.are_due(problem(64, false), now));
        tactics.begin(false);
        assert!(tactics.are_due(problem(64, false), now) && !tactics.are_due(problem(128, false), now));
        tactics.begin(true);
        assert!(tactics.are_due(problem(128, false), now));
        tactics.settle(problem(64, false), Tactic::Default, None);
        assert_eq!(tactics.get(problem(64, false)), Some(Tactic::Default));
        assert_eq!(problem(64, true).of_rows(100), problem(104, true));
    }

    #[test]
    fn what_was_not_measured_is_not_stored_and_a_damaged_file_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut here = tactics(folder.path(), "one");
        here.settle(problem(64, false), Tactic::Wgmma, None);
        assert_eq!(tactics(folder.path(), "one").get(problem(64, false)), None);
        here.settle(problem(64, false), Tactic::Wgmma, Some("1.0"));
        let path = folder.path().join(here.file_name(problem(64, false)));
        let mut bytes = std::fs::read(&path).expect("stored");
        let last = bytes.len() - 2;
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).expect("damaged");
        assert_eq!(tactics(folder.path(), "one").get(problem(64, false)), None);
        std::fs::write(&path, &bytes[..20]).expect("cut");
        assert_eq!(tactics(folder.path(), "one").get(problem(64, false)), None);
        // In the process that knows it nothing changes.
        assert_eq!(here.get(problem(64, false)), Some(Tactic::Wgmma));
    }
}
