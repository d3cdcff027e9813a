//! Products as tasks of the pool: which kernel takes one, and many of them under one pair of calls (pack the rows, then
//! multiply). Few rows are packed by each thread for itself: that costs less than to wait for the others, and to read
//! what lies in their caches.

use super::needs::Needs;
use super::product::Product;
#[cfg(target_arch = "x86_64")]
use super::{amx, byte_tiles, skinny};
use super::{dots, lanes};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::{Reserve, Shared};
use crate::cpu::runtime::pool::Pool;
use crate::ops::{DType, WeightFormat};
use std::sync::atomic::{AtomicBool, Ordering};

/// A product with the kernel that takes it.
pub(super) enum Job<'a> {
    Lanes(lanes::Job<'a>),
    Dots(dots::Job<'a>),
    #[cfg(target_arch = "x86_64")]
    Few(skinny::Job<'a>),
    #[cfg(target_arch = "x86_64")]
    Tiles(amx::Job<'a>),
    #[cfg(target_arch = "x86_64")]
    ByteTiles(byte_tiles::Job<'a>),
}

impl<'a> Job<'a> {
    pub(super) fn new(isa: Isa, threads: usize, product: Product<'a>) -> Self {
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Amx && product.w.rounds && product.w.format == WeightFormat::Plain(DType::Bf16) {
            return match product.rows <= skinny::MAX_ROWS {
                true => Self::Few(skinny::Job::new(product)),
                false => Self::Tiles(amx::Job::new(product, threads)),
            };
        }
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::Amx
            && let Some(job) = byte_tiles::Job::new(product, threads)
        {
            return Self::ByteTiles(job);
        }
        if let Some(job) = dots::Job::new(isa, product) {
            return Self::Dots(job);
        }
        Self::Lanes(lanes::Job::new(isa, threads, product))
    }

    fn needs(&self) -> Needs {
        match self {
            Self::Lanes(job) => job.needs(),
            Self::Dots(job) => job.needs(),
            #[cfg(target_arch = "x86_64")]
            Self::Few(job) => job.needs(),
            #[cfg(target_arch = "x86_64")]
            Self::Tiles(job) => job.needs(),
            #[cfg(target_arch = "x86_64")]
            Self::ByteTiles(job) => job.needs(),
        }
    }

    /// Whether each of this number of threads packs all rows for itself.
    fn packs_alone(&self, threads: usize) -> bool {
        matches!(self, Self::Lanes(job) if threads > 1 && job.packs_alone(threads))
    }

    /// Packs some rows.
    ///
    /// # Safety
    /// `packed` is this job's memory, each task runs once, and the product's rows exist.
    unsafe fn pack(&self, task: usize, packed: Shared<u8>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Lanes(job) => job.pack(task, packed),
                Self::Dots(job) => job.pack(task, packed),
                #[cfg(target_arch = "x86_64")]
                Self::Few(job) => job.pack(packed),
                #[cfg(target_arch = "x86_64")]
                Self::Tiles(job) => job.pack(task, packed),
                #[cfg(target_arch = "x86_64")]
                Self::ByteTiles(job) => job.pack(task, packed),
            }
        }
    }

    /// Computes a part of the product.
    ///
    /// # Safety
    /// All tasks of [`Self::pack`] are done, `sums` is this thread's memory, each task runs once, and the product's
    /// rows exist.
    unsafe fn run(&self, task: usize, packed: Shared<u8>, sums: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Lanes(job) => job.run(task, packed),
                Self::Dots(job) => job.run(task, packed),
                #[cfg(target_arch = "x86_64")]
                Self::Few(job) => job.run(task, packed),
                #[cfg(target_arch = "x86_64")]
                Self::Tiles(job) => job.run(task, packed, sums),
                #[cfg(target_arch = "x86_64")]
                Self::ByteTiles(job) => job.run(task, packed, sums),
            }
        }
        let _ = sums;
    }
}

/// Memory kept from call to call.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed activations.
    x: Reserve,
    /// Sums that rest between parts of k.
    sums: Reserve,
}

/// Where a job's tasks and memory begin among those of all jobs.
struct Place {
    needs: Needs,
    first: Needs,
}

/// Runs all jobs.
///
/// # Safety
/// As [`super::matmul`].
pub(super) unsafe fn run(pool: &mut Pool, scratch: &mut Scratch, jobs: &[Job<'_>]) {
    if let [job] = jobs
        && job.packs_alone(pool.threads())
    {
        // SAFETY: the caller's promise.
        return unsafe { run_alone(pool, scratch, job) };
    }
    let mut all = Needs::default();
    let mut place = |job: &Job<'_>| {
        let needs = job.needs();
        let first = all;
        all = Needs {
            // Packed rows begin on lines of the caches.
            packed: all.packed + needs.packed.next_multiple_of(64),
            sums: all.sums.max(needs.sums),
            pack_tasks: all.pack_tasks + needs.pack_tasks,
            pack_work: all.pack_work + needs.pack_work,
            tasks: all.tasks + needs.tasks,
            work: all.work + needs.work,
        };
        Place { needs, first }
    };
    let places: Vec<Place> = jobs.iter().map(&mut place).collect();
    let packed = Shared::new(scratch.x.reserve(all.packed));
    let sums = Shared::new(scratch.sums.reserve(all.sums * pool.threads()));
    // SAFETY: each job's part was counted.
    let part = |index: usize| Shared::new(unsafe { packed.at(places[index].first.packed) });
    pool.run_sized(all.pack_tasks, all.pack_work, &|task, _| {
        let index = places.partition_point(|place| place.first.pack_tasks + place.needs.pack_tasks <= task);
        // SAFETY: the task is one of this job's, with its memory; the rest is the caller's promise.
        unsafe { jobs[index].pack(task - places[index].first.pack_tasks, part(index)) };
    });
    pool.run_sized(all.tasks, all.work, &|task, thread| {
        let index = places.partition_point(|place| place.first.tasks + place.needs.tasks <= task);
        // SAFETY: as above; packing is done, and each thread has its own sums, enough for every job.
        unsafe { jobs[index].run(task - places[index].first.tasks, part(index), sums.at(thread * all.sums)) };
    });
}

/// Runs a job whose rows every thread packs before its first task.
///
/// # Safety
/// As [`super::matmul`].
unsafe fn run_alone(pool: &mut Pool, scratch: &mut Scratch, job: &Job<'_>) {
    let (needs, threads) = (job.needs(), pool.threads());
    let size = needs.packed.next_multiple_of(64);
    let packed = Shared::new(scratch.x.reserve(size * threads));
    let sums = Shared::new(scratch.sums.reserve(needs.sums * threads));
    let is_packed: Vec<AtomicBool> = (0..threads).map(|_| AtomicBool::new(false)).collect();
    pool.run_sized(needs.tasks, needs.work, &|task, thread| {
        // SAFETY: each thread has its own part of both memories, and packs before it multiplies; the rest is the
        // caller's promise.
        unsafe {
            let own = Shared::new(packed.at(thread * size));
            if !is_packed[thread].swap(true, Ordering::Relaxed) {
                (0..needs.pack_tasks).for_each(|part| job.pack(part, own));
            }
            job.run(task, own, sums.at(thread * needs.sums));
        }
    });
}
