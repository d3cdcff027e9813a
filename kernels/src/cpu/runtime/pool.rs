//! A pool of threads for one operation at a time: tasks are taken from a counter, the caller works too, idle threads
//! sleep.
//!
//! One job is open at a time. Its gate word counts the threads inside; a thread enters only while the gate is open, so
//! the caller never waits for one that was asleep and found nothing left to do. During a pass threads spin a little
//! between jobs, because waking a halted processor takes longer than a small operation; outside a pass they sleep on a
//! futex at once.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// What a task is told: its number, and which thread runs it (for scratch memory).
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// How often a thread looks for the next job of a running pass before it sleeps (about 100 us).
const SPINS: u32 = 3000;
/// Work that one thread finishes about as fast as two (some microseconds).
const SMALL_WORK: usize = 1 << 14;
/// Gate bit: threads may still enter. The bits below count those inside.
const OPEN: u32 = 1 << 31;

/// The threads of a backend. Thread 0 is the caller of [`Pool::run`].
pub(crate) struct Pool {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

/// What caller and threads share.
struct Desk {
    /// Number of the newest job; the futex that idle threads sleep on.
    job: AtomicU32,
    gate: AtomicU32,
    next: AtomicUsize,
    /// Tasks and body of the open job; written only while the gate is closed and nobody is inside.
    work: UnsafeCell<(usize, *const Body<'static>)>,
    sleeping: AtomicU32,
    in_pass: AtomicBool,
    panicked: AtomicBool,
    stop: AtomicBool,
}

// SAFETY: `work` is written by the one caller while the gate is closed and empty, and read only by threads that entered
// an open gate; opening the gate (Release) and entering it (Acquire) order the two. Everything else is atomic.
unsafe impl Sync for Desk {}
// SAFETY: the pointer in `work` is used only while the caller that owns its target waits in `run`.
unsafe impl Send for Desk {}

impl Pool {
    /// A pool of `threads` threads, the caller included.
    pub(crate) fn new(threads: usize) -> Self {
        fn nothing(_: usize, _: usize) {}
        let desk = Arc::new(Desk {
            job: AtomicU32::new(0),
            gate: AtomicU32::new(0),
            next: AtomicUsize::new(0),
            work: UnsafeCell::new((0, &nothing as *const Body<'static>)),
            sleeping: AtomicU32::new(0),
            in_pass: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let spawn = |number: usize| {
            let desk = Arc::clone(&desk);
            std::thread::Builder::new()
                .name(format!("kernels-{number}"))
                .spawn(move || desk.serve(number))
                .unwrap_or_else(|error| panic!("no thread for the kernel pool: {error}"))
        };
        let threads = (1..threads.max(1)).map(spawn).collect();
        Self { desk, threads }
    }

    /// Threads, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// A pass begins or ends: threads spin between jobs only inside one.
    pub(crate) fn set_in_pass(&self, in_pass: bool) {
        self.desk.in_pass.store(in_pass, Ordering::Relaxed);
    }

    /// [`Self::run`], but on this thread alone when the work (in multiplications, or reads of memory) is not worth a
    /// wake-up.
    pub(crate) fn run_sized(&mut self, tasks: usize, work: usize, body: &Body<'_>) {
        if work < SMALL_WORK { (0..tasks).for_each(|task| body(task, 0)) } else { self.run(tasks, body) }
    }

    /// Runs `body(task, thread)` for every task below `tasks`, and returns when all are done. Panics if a task did.
    pub(crate) fn run(&mut self, tasks: usize, body: &Body<'_>) {
        if tasks <= 1 || self.threads.is_empty() {
            (0..tasks).for_each(|task| body(task, 0));
            return;
        }
        let desk = &*self.desk;
        // SAFETY: only the lifetime is erased. Threads use the pointer only between entering and leaving the gate, and
        // `close` below returns after the last of them left, so the body outlives every use.
        let body: *const Body<'static> = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        // SAFETY: the gate is closed and empty (`close` ended the previous job; `&mut self` excludes another caller).
        unsafe { *desk.work.get() = (tasks, body) };
        desk.next.store(0, Ordering::Relaxed);
        desk.gate.store(OPEN, Ordering::Release);
        desk.job.fetch_add(1, Ordering::SeqCst);
        if desk.sleeping.load(Ordering::SeqCst) > 0 {
            wake_all(&desk.job);
        }
        desk.work_off(tasks, body, 0);
        desk.close();
        assert!(!desk.panicked.swap(false, Ordering::Relaxed), "a task of the kernel pool panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::SeqCst);
        self.desk.job.fetch_add(1, Ordering::SeqCst);
        wake_all(&self.desk.job);
        for thread in self.threads.drain(..) {
            // A panic was already reported by the `run` it happened in.
            let _ = thread.join();
        }
    }
}

impl Desk {
    /// The life of a pool thread.
    fn serve(&self, number: usize) {
        let mut seen = 0;
        loop {
            seen = self.await_job(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if self.enter() {
                // SAFETY: inside the gate, so the caller has written the job and waits for us.
                let (tasks, body) = unsafe { *self.work.get() };
                self.work_off(tasks, body, number);
                self.gate.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Returns the number of a job newer than `seen`.
    fn await_job(&self, seen: u32) -> u32 {
        let mut spins = 0;
        loop {
            let job = self.job.load(Ordering::SeqCst);
            if job != seen {
                return job;
            }
            if spins < SPINS && self.in_pass.load(Ordering::Relaxed) {
                spins += 1;
                std::hint::spin_loop();
                continue;
            }
            // Pairs with `run`: it raises `job`, then looks at `sleeping`; the futex re-reads `job`, so no wake-up is
            // lost.
            self.sleeping.fetch_add(1, Ordering::SeqCst);
            wait_while(&self.job, seen);
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Steps inside an open gate.
    fn enter(&self) -> bool {
        let step_in = |gate: u32| (gate & OPEN != 0).then_some(gate + 1);
        self.gate.fetch_update(Ordering::Acquire, Ordering::Relaxed, step_in).is_ok()
    }

    /// Takes tasks until none are left.
    fn work_off(&self, tasks: usize, body: *const Body<'static>, thread: usize) {
        let all = || {
            loop {
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    return;
                }
                // SAFETY: the caller of `run` keeps the body alive until the gate is closed and empty; we are inside or
                // the caller.
                unsafe { (*body)(task, thread) };
            }
        };
        if catch_unwind(AssertUnwindSafe(all)).is_err() {
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    /// Lets nobody in any more and waits until all are out (Acquire: their writes are visible).
    fn close(&self) {
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0_u32;
        while self.gate.load(Ordering::Acquire) != 0 {
            spins += 1;
            // A thread inside may have lost its processor to another process; then spinning only keeps it away.
            if spins.is_multiple_of(SPINS) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

fn wait_while(word: &AtomicU32, value: u32) {
    // SAFETY: the word outlives the call; the kernel only reads it. A spurious return is fine: the caller looks again.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

fn wake_all(word: &AtomicU32) {
    // SAFETY: the word's address is only a key here.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads);
            for tasks in [0, 1, 2, 3, 64, 1000] {
                let seen: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                pool.set_in_pass(tasks % 2 == 0);
                pool.run(tasks, &|task, thread| {
                    assert!(thread < threads);
                    seen[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    seen.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn many_short_jobs_lose_no_task() {
        let mut pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        for job in 0..5000 {
            pool.set_in_pass(job % 7 != 0);
            pool.run(4, &|task, _| {
                total.fetch_add(task, Ordering::Relaxed);
            });
        }
        assert_eq!(total.into_inner(), 5000 * 6);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let mut pool = Pool::new(2);
        let run = catch_unwind(AssertUnwindSafe(|| pool.run(8, &|task, _| assert!(task != 5, "on purpose"))));
        assert!(run.is_err());
        let count = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 8);
    }
}
