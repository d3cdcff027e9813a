//! When a process that died is started again, and when trying is over.

use std::time::Duration;

/// A process that never became ready this often in a row is given up.
const ATTEMPTS: u32 = 5;
/// A process that worked for this long starts with a clean slate.
const STEADY: Duration = Duration::from_secs(10);
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The deaths of one process.
#[derive(Debug, Default)]
pub struct Backoff {
    deaths: u32,
    never_ready: u32,
}

impl Backoff {
    /// The process died; how long to wait before it is started again, or `None` to give up.
    ///
    /// The first death of a working process costs no wait. One that becomes ready each time is restarted for ever: its service
    /// may be worth having between two deaths.
    pub fn died(&mut self, was_ready: bool, lived: Duration) -> Option<Duration> {
        if was_ready && lived >= STEADY {
            *self = Self::default();
        }
        self.never_ready = if was_ready { 0 } else { self.never_ready + 1 };
        if self.never_ready >= ATTEMPTS {
            return None;
        }
        let wait = if self.deaths == 0 { Duration::ZERO } else { FIRST * (1 << (self.deaths - 1).min(10)) };
        self.deaths += 1;
        Some(wait.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(1);

    #[test]
    fn waits_grow_to_a_bound() {
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..20).map(|_| backoff.died(true, SHORT).unwrap().as_millis()).collect();
        assert_eq!(waits[..8], [0, 100, 200, 400, 800, 1600, 3200, 5000]);
        assert!(waits[8..].iter().all(|wait| *wait == 5000));
        assert_eq!(backoff.died(true, STEADY), Some(Duration::ZERO));
    }

    #[test]
    fn a_process_that_never_gets_ready_is_given_up() {
        let mut backoff = Backoff::default();
        let given_up = (0..10).position(|_| backoff.died(false, SHORT).is_none());
        assert_eq!(given_up, Some(ATTEMPTS as usize - 1));
        let mut backoff = Backoff::default();
        for _ in 0..30 {
            assert!(backoff.died(false, SHORT).is_some());
            assert!(backoff.died(true, SHORT).is_some());
        }
    }
}
