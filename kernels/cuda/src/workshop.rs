//! Machine code made on threads beside the one that works with the device: what a model will need is ordered, and whoever needs it waits for no
//! more than what is left of its making.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::arch::Arch;
use super::compiler::Compiler;
use super::sources::Source;
use super::special::Special;

/// Kernels made at a time, at most: each compilation takes a core and some 100 MB.
const BENCHES: usize = 8;

/// Makes the code of one kernel.
type Make = dyn Fn(Special) -> Result<Vec<u8>, String> + Send + Sync;

/// Absent: under way.
type Made = HashMap<Special, Option<Result<Vec<u8>, String>>>;

/// Orders, and what became of them.
pub(crate) struct Workshop {
    make: Arc<Make>,
    shelf: Arc<Shelf>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shelf {
    made: Mutex<Made>,
    /// Something was finished.
    news: Condvar,
    /// Kernels that are being made; none will be begun once that is absent.
    busy: Mutex<Option<usize>>,
    /// One of them was finished, or none will be begun any more.
    free: Condvar,
}

impl Shelf {
    /// Waits until there is room to make one more; false once none is to be begun.
    fn begin(&self) -> bool {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = self.free.wait_while(busy, |busy| busy.is_some_and(|busy| busy >= BENCHES));
        let mut busy = busy.unwrap_or_else(PoisonError::into_inner);
        busy.as_mut().map(|busy| *busy += 1).is_some()
    }

    fn end(&self) {
        if let Some(busy) = self.busy.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            *busy -= 1;
        }
        self.free.notify_one();
    }

    fn close(&self) {
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.free.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workshop {
    pub(crate) fn new(compiler: Compiler, arch: Arch) -> Self {
        Self::with(Arc::new(move |special: Special| compiler.one(Source::of(special), arch).map(|(cubin, _)| cubin)))
    }

    fn with(make: Arc<Make>) -> Self {
        let shelf = Shelf { busy: Mutex::new(Some(0)), ..Shelf::default() };
        Self { make, shelf: Arc::new(shelf), threads: Mutex::default() }
    }

    /// Begins to make a kernel, if nobody has.
    pub(crate) fn order(&self, special: Special) {
        if let Entry::Vacant(place) = self.shelf.lock().entry(special) {
            place.insert(None);
        } else {
            return;
        }
        let (make, shelf) = (self.make.clone(), self.shelf.clone());
        let work = move || {
            if !shelf.begin() {
                return;
            }
            let made = make(special);
            shelf.end();
            shelf.lock().insert(special, Some(made));
            shelf.news.notify_all();
        };
        match std::thread::Builder::new().name("compile".to_owned()).spawn(work) {
            Ok(thread) => self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
            // Without a thread nobody makes it but who needs it.
            Err(_) => drop(self.shelf.lock().remove(&special)),
        }
    }

    /// Orders a kernel and waits so long at most; whether it is made, or cannot be.
    pub(crate) fn is_made(&self, special: Special, most: Duration) -> bool {
        self.order(special);
        let under_way = |made: &mut Made| matches!(made.get(&special), Some(None));
        let waited = self.shelf.news.wait_timeout_while(self.shelf.lock(), most, under_way);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// The code of a kernel, made now if it was not ordered.
    pub(crate) fn take(&self, special: Special) -> Result<Vec<u8>, String> {
        let under_way = |made: &mut Made| matches!(made.get(&special), Some(None));
        let made = self.shelf.news.wait_while(self.shelf.lock(), under_way);
        let found = made.unwrap_or_else(PoisonError::into_inner).remove(&special).flatten();
        found.unwrap_or_else(|| (self.make)(special))
    }
}

impl Drop for Workshop {
    /// Threads use the compiler, which may be unloaded when the process ends.
    fn drop(&mut self) {
        self.shelf.close();
        let threads = std::mem::take(self.threads.get_mut().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;
    use kernels::ops::DType;

    fn special(size: usize) -> Special {
        Special::new("matmul_few", DType::Bf16, &[("WARPS", size)])
    }

    #[test]
    fn what_was_ordered_is_made_once_and_waited_for() {
        let (go, gate) = channel::<()>();
        let (gate, count) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        let workshop = Workshop::with(Arc::new(move |special| {
            counted.fetch_add(1, Ordering::Relaxed);
            gate.lock().unwrap().recv().unwrap();
            Ok(format!("{special:?}").into_bytes())
        }));
        workshop.order(special(1));
        assert!(!workshop.is_made(special(1), Duration::ZERO));
        go.send(()).unwrap();
        assert_eq!(workshop.take(special(1)).unwrap(), format!("{:?}", special(1)).into_bytes());
        assert_eq!(count.load(Ordering::Relaxed), 1);
        // Not ordered: made by who takes it.
        go.send(()).unwrap();
        workshop.take(special(2)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 2);
        go.send(()).unwrap();
        assert!(workshop.is_made(special(3), Duration::from_secs(60)));
        workshop.take(special(3)).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn no_more_than_so_many_are_made_at_a_time_and_none_is_begun_at_the_end() {
        let (go, gate) = channel::<()>();
        let (gate, count) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
        let counted = count.clone();
        let workshop = Workshop::with(Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            // Ends with what could let it go.
            let _ = gate.lock().unwrap().recv();
            Ok(Vec::new())
        }));
        (0..3 * BENCHES).for_each(|size| workshop.order(special(size)));
        (0..2).for_each(|_| go.send(()).unwrap());
        while count.load(Ordering::Relaxed) < BENCHES + 2 {
            std::thread::yield_now();
        }
        workshop.shelf.close();
        drop(go);
        drop(workshop);
        assert_eq!(count.load(Ordering::Relaxed), BENCHES + 2);
    }

    #[test]
    fn what_cannot_be_made_says_why() {
        let workshop = Workshop::with(Arc::new(|_| Err("no".to_owned())));
        assert!(workshop.is_made(special(1), Duration::from_secs(60)));
        assert_eq!(workshop.take(special(1)), Err("no".to_owned()));
    }
}
