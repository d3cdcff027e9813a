//! A rank's turn counter in shared memory: "I have come this far", awaited by spinning briefly and then on a futex.
//!
//! One word holds the count of arrivals in its upper 31 bits and "given up" in the lowest. Giving up changes the word
//! that others sleep on, so no sleeper can miss it between its last look and its sleep.

use std::{
    hint,
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, SeqCst},
    },
    time::{Duration, Instant},
};

use rustix::thread::{Timespec, futex};

use crate::CollectiveError;

const ABORTED: u32 = 1;
const ONE: u32 = 2;

/// Looks before sleeping, about 20 microseconds: ranks mostly come within that, and a futex costs more.
const SPINS: u32 = 500;

/// One rank's counter, on a cache line of its own. All zero bytes is the initial state.
#[repr(C, align(64))]
pub(crate) struct Turn {
    word: AtomicU32,
    sleepers: AtomicU32,
}

impl Turn {
    /// Makes this rank's first arrival, unless somebody already did in its place.
    pub fn claim(&self) -> bool {
        let claimed = self.word.compare_exchange(0, ONE, SeqCst, SeqCst).is_ok();
        self.wake();
        claimed
    }

    /// One arrival more. What this rank wrote before is visible to whoever sees it.
    pub fn arrive(&self) {
        self.word.fetch_add(ONE, SeqCst);
        self.wake();
    }

    /// How often this rank has arrived, modulo 2^31.
    pub fn arrivals(&self) -> u32 {
        self.word.load(Acquire) / ONE
    }

    /// Ends all waits for this rank, now and later.
    pub fn abort(&self) {
        self.word.fetch_or(ABORTED, SeqCst);
        self.wake();
    }

    /// Waits until this rank has arrived `count` times (modulo 2^31).
    pub fn wait(&self, count: u32, timeout: Duration) -> Result<(), CollectiveError> {
        for _ in 0..SPINS {
            if reached(self.word.load(Acquire), count)? {
                return Ok(());
            }
            hint::spin_loop();
        }
        // Announced before the last look at the word; `wake` looks after changing it (both sequentially consistent), so
        // one sees the other.
        self.sleepers.fetch_add(1, SeqCst);
        let result = self.sleep(count, timeout);
        self.sleepers.fetch_sub(1, SeqCst);
        result
    }

    fn sleep(&self, count: u32, timeout: Duration) -> Result<(), CollectiveError> {
        let start = Instant::now();
        loop {
            let word = self.word.load(SeqCst);
            if reached(word, count)? {
                return Ok(());
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(CollectiveError::Deadline { deadline_ms: timeout.as_millis() as u64 });
            }
            let left = Timespec { tv_sec: left.as_secs().min(1 << 30) as i64, tv_nsec: left.subsec_nanos().into() };
            // Woken, changed, timed out, interrupted: all of them end in another look.
            let _ = futex::wait(&self.word, futex::Flags::empty(), word, Some(&left));
        }
    }

    fn wake(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            let _ = futex::wake(&self.word, futex::Flags::empty(), i32::MAX as u32);
        }
    }
}

/// Whether the word's rank has arrived `count` times. A rank that arrived and then left has done its part, so that is
/// asked first.
fn reached(word: u32, count: u32) -> Result<bool, CollectiveError> {
    // Distance on the 31-bit circle: at most half of it ahead.
    let ahead = (word & !ABORTED).wrapping_sub(count.wrapping_mul(ONE)) as i32;
    if ahead < 0 && word & ABORTED != 0 {
        return Err(CollectiveError::Aborted);
    }
    Ok(ahead >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(word: u32) -> Turn {
        Turn { word: AtomicU32::new(word), sleepers: AtomicU32::new(0) }
    }

    #[test]
    fn counts_wrap() {
        let check = |arrived: u32, count: u32, want: bool| {
            assert_eq!(reached(arrived.wrapping_mul(ONE), count).unwrap(), want, "{arrived} {count}");
        };
        check(5, 5, true);
        check(5, 6, false);
        check(u32::MAX >> 1, 3, false);
        check(1, u32::MAX >> 1, true);
    }

    #[test]
    fn aborting_outlives_arrivals() {
        let turn = turn(0);
        turn.abort();
        turn.arrive();
        assert!(turn.wait(1, Duration::ZERO).is_ok());
        assert!(matches!(turn.wait(2, Duration::ZERO), Err(CollectiveError::Aborted)));
        assert!(!turn.claim());
    }

    #[test]
    fn a_sleeper_is_woken() {
        let turn = turn(0);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| turn.wait(2, Duration::from_secs(60)));
            turn.arrive();
            turn.arrive();
            assert!(waiter.join().unwrap().is_ok());
            let waiter = scope.spawn(|| turn.wait(3, Duration::from_secs(60)));
            turn.abort();
            assert!(matches!(waiter.join().unwrap(), Err(CollectiveError::Aborted)));
        });
        assert_eq!(turn.sleepers.load(SeqCst), 0);
    }
}
