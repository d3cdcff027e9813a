//! When a process that died is started again, and when trying is over.

use std::time::Duration;

/// Deaths after which a process that was never ready is not started again.
const ATTEMPTS: u32 = 5;
/// A process that worked for this long starts with a clean slate.
const STEADY: Duration = Duration::from_secs(10);
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The deaths of one process.
#[derive(Debug, Default)]
pub struct Backoff {
    deaths: u32,
    has_been_ready: bool,
}

impl Backoff {
    /// The process died; how long to wait before it is started again, or `None` to give up.
    ///
    /// The first death of a working process costs no wait. One that was ready once is restarted for ever: its settings
    /// work, and what it lacks now (a GPU that was lost, memory that somebody else holds) may come back.
    pub fn died(&mut self, was_ready: bool, lived: Duration) -> Option<Duration> {
        if was_ready && lived >= STEADY {
            self.deaths = 0;
        }
        self.has_been_ready |= was_ready;
        if !self.has_been_ready && self.deaths + 1 >= ATTEMPTS {
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
    }

    #[test]
    fn one_that_was_ready_once_is_tried_for_ever() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.died(true, STEADY), Some(Duration::ZERO));
        let waits: Vec<_> = (0..100).map(|_| backoff.died(false, SHORT)).collect();
        assert!(waits.iter().all(Option::is_some));
        assert_eq!(waits.last(), Some(&Some(LONGEST)));
        // Back for good, it starts with a clean slate.
        assert_eq!(backoff.died(true, STEADY), Some(Duration::ZERO));
    }
}
