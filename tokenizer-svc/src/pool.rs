//! A bounded pool of threads with two lanes: long prompts have threads of their own, so that they delay no short one.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Text from this size on is long: encoding it takes some milliseconds.
const LONG_BYTES: usize = 16 << 10;

/// What a thread of the pool does.
type Work = Box<dyn FnOnce() + Send>;

/// Threads that encode; cloning shares.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    lanes: Mutex<Lanes>,
    arrived: Condvar,
    limits: Limits,
}

/// What may wait at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) jobs: usize,
    pub(crate) bytes: usize,
}

#[derive(Default)]
struct Lanes {
    short: VecDeque<(usize, Work)>,
    long: VecDeque<(usize, Work)>,
    bytes: usize,
    closed: bool,
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lane {
    /// Only short ones.
    Short,
    /// Long ones first, and short ones when there are none.
    Long,
    /// The only thread takes all, short ones first.
    Any,
}

/// The pool is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Pool {
    /// Starts `threads` threads, half of them for long jobs. They end when [`Pool::close`] is called.
    pub(crate) fn start(threads: usize, limits: Limits) -> io::Result<Self> {
        let shared = Arc::new(Shared { lanes: Mutex::default(), arrived: Condvar::new(), limits });
        for index in 0..threads.max(1) {
            let lane = match (threads, index % 2) {
                (..=1, _) => Lane::Any,
                (_, 0) => Lane::Short,
                _ => Lane::Long,
            };
            let shared = shared.clone();
            thread::Builder::new().name(format!("encode-{index}")).spawn(move || shared.work(lane))?;
        }
        Ok(Self { shared })
    }

    /// Queues `work` for `bytes` of text.
    pub(crate) fn submit(&self, bytes: usize, work: impl FnOnce() + Send + 'static) -> Result<(), Full> {
        let limits = self.shared.limits;
        let mut lanes = self.shared.lock();
        let waiting = lanes.short.len() + lanes.long.len();
        // An idle pool takes any text; else one above the bound could never be encoded.
        if waiting >= limits.jobs || waiting > 0 && lanes.bytes + bytes > limits.bytes {
            return Err(Full);
        }
        lanes.bytes += bytes;
        let lane = if bytes < LONG_BYTES { &mut lanes.short } else { &mut lanes.long };
        lane.push_back((bytes, Box::new(work)));
        drop(lanes);
        // Not every thread may take every job, so all look.
        self.shared.arrived.notify_all();
        Ok(())
    }

    /// Ends the threads when they have done what waits.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.arrived.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, lane: Lane) {
        while let Some(work) = self.next(lane) {
            work();
        }
    }

    fn next(&self, lane: Lane) -> Option<Work> {
        let mut lanes = self.lock();
        loop {
            let job = match lane {
                Lane::Short => lanes.short.pop_front(),
                Lane::Long => lanes.long.pop_front().or_else(|| lanes.short.pop_front()),
                Lane::Any => lanes.short.pop_front().or_else(|| lanes.long.pop_front()),
            };
            if let Some((bytes, work)) = job {
                lanes.bytes -= bytes;
                return Some(work);
            }
            if lanes.closed {
                return None;
            }
            lanes = self.arrived.wait(lanes).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    fn pool(threads: usize, jobs: usize, bytes: usize) -> Pool {
        Pool::start(threads, Limits { jobs, bytes }).expect("threads")
    }

    /// A job that says it has begun and ends when told.
    fn blocker(begun: &Sender<()>) -> (Sender<()>, impl FnOnce() + Send + 'static) {
        let (release, wait) = mpsc::channel::<()>();
        let begun = begun.clone();
        (release, move || {
            let _ = begun.send(());
            let _ = wait.recv();
        })
    }

    #[test]
    fn long_jobs_delay_no_short_ones() {
        let pool = pool(2, 16, usize::MAX);
        let (begun, running): (_, Receiver<()>) = mpsc::channel();
        let mut held = Vec::new();
        for _ in 0..3 {
            let (release, job) = blocker(&begun);
            held.push(release);
            pool.submit(LONG_BYTES, job).expect("room");
        }
        running.recv().expect("one long job runs");
        for _ in 0..4 {
            let (done, wait) = mpsc::channel();
            pool.submit(10, move || {
                let _ = done.send(());
            })
            .expect("room");
            wait.recv().expect("the short job ran beside the long ones");
        }
        drop(held);
        pool.close();
    }

    #[test]
    fn full_is_full() {
        let pool = pool(1, 2, 100);
        let (begun, running) = mpsc::channel();
        let (release, job) = blocker(&begun);
        pool.submit(1 << 20, job).expect("an idle pool takes any text");
        running.recv().expect("it runs");
        pool.submit(60, || {}).expect("room");
        assert_eq!(pool.submit(60, || {}), Err(Full));
        pool.submit(30, || {}).expect("room");
        assert_eq!(pool.submit(0, || {}), Err(Full));
        drop(release);
        pool.close();
    }
}
