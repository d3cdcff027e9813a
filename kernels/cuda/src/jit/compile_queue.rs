//! The JIT compile queue: kernels that a model will need are compiled on threads beside the one that works with the
//! device. A caller that needs a kernel at once waits for no more than what is left of its compilation.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::jit::compiler::{Compiler, MOST_THREADS};
use crate::jit::sources::Source;
use crate::runtime::arch::Arch;

/// Whether kernels are being compiled now, for whoever watches over a step that may wait for one. Cloning shares.
#[derive(Clone, Debug, Default)]
pub struct Compilations(Arc<AtomicUsize>);

impl Compilations {
    /// Whether any is under way.
    pub fn are_under_way(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts one for as long as the result lives.
    pub fn begin(&self) -> Compilation {
        self.0.fetch_add(1, Ordering::Relaxed);
        Compilation(self.clone())
    }
}

/// One that is under way until this is dropped.
#[derive(Debug)]
pub struct Compilation(Compilations);

impl Drop for Compilation {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes the code of one kernel.
type Make = dyn Fn(Source) -> Result<Vec<u8>, String> + Send + Sync;

/// Orders, and what became of them.
pub(crate) struct CompileQueue {
    make: Arc<Make>,
    benches: usize,
    shelf: Arc<Shelf>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    compilations: Compilations,
}

#[derive(Default)]
struct Shelf {
    orders: Mutex<Orders>,
    /// Something was finished.
    news: Condvar,
}

#[derive(Default)]
struct Orders {
    /// Those that nobody has begun, the first of them the next.
    waiting: VecDeque<Source>,
    /// Those that come when none of these is left.
    later: VecDeque<Source>,
    /// Those that were begun; absent: under way.
    made: HashMap<Source, Option<Result<Vec<u8>, String>>>,
    /// Threads that make them.
    busy: usize,
    /// None will be begun any more.
    closed: bool,
}

impl Orders {
    fn is_open(&self, source: Source) -> bool {
        self.is_waiting(source) || matches!(self.made.get(&source), Some(None))
    }

    fn is_waiting(&self, source: Source) -> bool {
        self.waiting.contains(&source) || self.later.contains(&source)
    }

    /// Leaves it to the caller, if no thread has begun it.
    fn withdraw(&mut self, source: Source) {
        for waiting in [&mut self.waiting, &mut self.later] {
            waiting.retain(|waiting| *waiting != source);
        }
    }

    fn begin(&mut self) -> Option<Source> {
        let next = self.waiting.pop_front().or_else(|| self.later.pop_front());
        let source = next.filter(|_| !self.closed)?;
        self.made.insert(source, None);
        Some(source)
    }
}

impl Shelf {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does: one order after the other, until there is none.
    fn work(&self, make: &Make) {
        yield_to_others();
        let mut orders = self.lock();
        while let Some(source) = orders.begin() {
            drop(orders);
            let made = make(source);
            orders = self.lock();
            orders.made.insert(source, Some(made));
            self.news.notify_all();
        }
        orders.busy -= 1;
        self.news.notify_all();
    }
}

/// Threads that compile on a machine with `hardware_threads`. Two of these on one core slow each other down, and a
/// start waits for its longest file; a small machine has no time to lose.
fn benches(hardware_threads: usize) -> usize {
    const FEW: usize = 4;
    (hardware_threads / 2).max(hardware_threads.min(FEW)).min(MOST_THREADS)
}

/// Gives this thread a low priority: with one on every core, steps and the threads of requests would wait for them.
fn yield_to_others() {
    const NICENESS: i32 = 10;
    // A thread that keeps its priority compiles all the same.
    // SAFETY: the call takes numbers alone; 0 is the calling thread, as Linux has it.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
}

impl CompileQueue {
    pub(crate) fn new(compiler: Compiler, arch: Arch) -> Self {
        let benches = benches(std::thread::available_parallelism().map_or(1, usize::from));
        let compilations = Compilations::default();
        let counted = compilations.clone();
        let make = move |source: Source| {
            let _counted = counted.begin();
            compiler.one(source, arch).map(|(cubin, _)| cubin)
        };
        let mut queue = Self::with(Arc::new(make), benches);
        queue.compilations = compilations;
        queue
    }

    fn with(make: Arc<Make>, benches: usize) -> Self {
        Self { make, benches, shelf: Arc::default(), threads: Mutex::default(), compilations: Compilations::default() }
    }

    /// Whether it compiles now.
    pub(crate) fn compilations(&self) -> Compilations {
        self.compilations.clone()
    }

    /// Sees to it that a kernel is made, after those that were ordered before.
    pub(crate) fn order(&self, source: Source) {
        self.place(source, |orders| &mut orders.waiting);
    }

    /// Sees to it that a kernel is made once nothing else is to be.
    pub(crate) fn order_last(&self, source: Source) {
        self.place(source, |orders| &mut orders.later);
    }

    fn place(&self, source: Source, of: impl FnOnce(&mut Orders) -> &mut VecDeque<Source>) {
        let mut orders = self.shelf.lock();
        if orders.made.contains_key(&source) || orders.is_waiting(source) {
            return;
        }
        of(&mut orders).push_back(source);
        if orders.busy == self.benches {
            return;
        }
        let (make, shelf) = (self.make.clone(), self.shelf.clone());
        match std::thread::Builder::new().name("compile".to_owned()).spawn(move || shelf.work(&*make)) {
            Ok(thread) => {
                orders.busy += 1;
                drop(orders);
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
            }
            // If no thread could be spawned, kernels are compiled at first use.
            Err(_) if orders.busy == 0 => (orders.waiting, orders.later) = Default::default(),
            Err(_) => {}
        }
    }

    /// Orders a kernel and waits so long at most; whether it is made, or cannot be.
    pub(crate) fn is_made(&self, source: Source, most: Duration) -> bool {
        self.order(source);
        let is_open = |orders: &mut Orders| orders.is_open(source);
        let waited = self.shelf.news.wait_timeout_while(self.shelf.lock(), most, is_open);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Whether orders are open.
    pub(crate) fn is_busy(&self) -> bool {
        self.shelf.lock().busy > 0
    }

    /// Waits until no order is open, so long at most; whether one was.
    pub(crate) fn wait(&self, most: Duration) -> bool {
        let orders = self.shelf.lock();
        let was_busy = orders.busy > 0;
        drop(self.shelf.news.wait_timeout_while(orders, most, |orders| orders.busy > 0));
        was_busy
    }

    /// The code of a kernel. Who needs one that nobody has begun makes it, however many were ordered before.
    pub(crate) fn take(&self, source: Source) -> Result<Vec<u8>, String> {
        let mut orders = self.shelf.lock();
        orders.withdraw(source);
        let made = self.shelf.news.wait_while(orders, |orders| orders.is_open(source));
        let found = made.unwrap_or_else(PoisonError::into_inner).made.remove(&source).flatten();
        found.unwrap_or_else(|| (self.make)(source))
    }
}

impl Drop for CompileQueue {
    /// Threads use the compiler, which may be unloaded when the process ends.
    fn drop(&mut self) {
        self.shelf.lock().closed = true;
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::jit::specialization::Special;
    use kernels::ops::DType;

    #[test]
    fn compilations_are_counted_while_they_are_under_way() {
        let compilations = Compilations::default();
        let (first, second) = (compilations.begin(), compilations.clone().begin());
        drop(first);
        assert!(compilations.are_under_way());
        drop(second);
        assert!(!compilations.are_under_way());
    }

    #[test]
    fn large_machines_leave_half_of_their_hardware_threads_alone() {
        assert_eq!([1, 2, 4, 6, 8, 16, 64].map(benches), [1, 2, 4, 4, 4, 8, 16]);
    }

    fn special(size: usize) -> Source {
        Source::of(Special::new("matmul_skinny", DType::Bf16, &[("WARPS", size)]))
    }

    #[test]
    fn what_was_ordered_is_made_once_and_waited_for() {
        let (go, gate) = channel::<()>();
        let (gate, count) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        let queue = CompileQueue::with(
            Arc::new(move |special| {
                counted.fetch_add(1, Ordering::Relaxed);
                gate.lock().unwrap().recv().unwrap();
                Ok(format!("{special:?}").into_bytes())
            }),
            2,
        );
        queue.order(special(1));
        assert!(!queue.is_made(special(1), Duration::ZERO));
        go.send(()).unwrap();
        assert_eq!(queue.take(special(1)).unwrap(), format!("{:?}", special(1)).into_bytes());
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // Not ordered: made by who takes it.
        go.send(()).unwrap();
        queue.take(special(2)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 2);
        go.send(()).unwrap();
        assert!(queue.is_made(special(3), Duration::from_secs(60)));
        queue.take(special(3)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }

    /// A kernel that is made at once.
    const EASY: usize = 100;

    /// A queue whose kernels are made when a message comes or none can any more, and which ones were begun.
    fn gated(benches: usize) -> (CompileQueue, Sender<()>, Arc<Mutex<Vec<Source>>>) {
        let (go, gate) = channel::<()>();
        let (gate, begun) = (Mutex::new(gate), Arc::<Mutex<Vec<Source>>>::default());
        let noted = begun.clone();
        let make = move |made| {
            noted.lock().unwrap().push(made);
            if made != special(EASY) {
                let _ = gate.lock().unwrap().recv();
            }
            Ok(Vec::new())
        };
        (CompileQueue::with(Arc::new(make), benches), go, begun)
    }

    fn until(begun: &Mutex<Vec<Source>>, count: usize) {
        while begun.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn no_more_than_so_many_are_made_at_a_time_and_none_is_begun_at_the_end() {
        let (queue, go, begun) = gated(3);
        (0..9).for_each(|size| queue.order(special(size)));
        (0..2).for_each(|_| go.send(()).unwrap());
        until(&begun, 5);
        queue.shelf.lock().closed = true;
        drop(go);
        drop(queue);
        assert_eq!(begun.lock().unwrap().len(), 5);
    }

    #[test]
    fn orders_are_made_in_turn_but_nobody_waits_for_those_before() {
        let (queue, go, begun) = gated(1);
        [0, 1, 2, EASY, 3].iter().for_each(|size| queue.order(special(*size)));
        until(&begun, 1);
        assert_eq!(queue.take(special(EASY)), Ok(Vec::new()));
        assert!(queue.is_busy() && queue.wait(Duration::ZERO));
        drop(go);
        while queue.wait(Duration::from_secs(60)) {}
        assert_eq!(*begun.lock().unwrap(), [0, EASY, 1, 2, 3].map(special));
    }

    #[test]
    fn what_may_come_last_does_but_nobody_waits_for_others_before_it() {
        let (queue, go, begun) = gated(1);
        queue.order(special(0));
        until(&begun, 1);
        [1, EASY, 2].iter().for_each(|size| queue.order_last(special(*size)));
        [3, 4].iter().for_each(|size| queue.order(special(*size)));
        assert_eq!(queue.take(special(EASY)), Ok(Vec::new()));
        drop(go);
        while queue.wait(Duration::from_secs(60)) {}
        assert_eq!(*begun.lock().unwrap(), [0, EASY, 3, 4, 1, 2].map(special));
    }

    #[test]
    fn what_cannot_be_made_says_why() {
        let queue = CompileQueue::with(Arc::new(|_| Err("no".to_owned())), 1);
        assert!(queue.is_made(special(1), Duration::from_secs(60)));
        assert_eq!(queue.take(special(1)), Err("no".to_owned()));
    }
}
