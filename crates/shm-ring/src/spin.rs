//! A short spin before sleeping, where there are processors to spare.
//!
//! Waking a sleeper costs tens of microseconds on a virtual machine. Where more than four processors are available, a
//! waiter first looks a few times by itself. It learns from what happens: a spin that found something makes the next
//! one longer, one that found nothing halves it, so that an idle link soon sleeps at once.

use std::{sync::OnceLock, time::Instant};

/// Longest spin, in looks: about 25 us.
const MOST: u32 = 512;
/// A sleep shorter than this would have been better spun through, microseconds.
const SHORT_SLEEP_US: u128 = 40;

/// How long to spin, learnt per waiter.
#[derive(Debug)]
pub(crate) struct Spin {
    looks: u32,
    most: u32,
}

impl Spin {
    pub(crate) fn new() -> Self {
        static MOST_HERE: OnceLock<u32> = OnceLock::new();
        let most = *MOST_HERE.get_or_init(|| if available_processors() > 4 { MOST } else { 0 });
        Self { looks: 0, most }
    }

    /// Looks at most `looks` times whether `found`; true when it was.
    pub(crate) fn until<E>(&mut self, mut found: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
        for _ in 0..self.looks {
            if found()? {
                self.looks = (self.looks * 2).min(self.most);
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        self.looks /= 2;
        Ok(false)
    }

    /// Notes when a sleep begins; `None` where spinning is never worth it, so that no clock is read.
    pub(crate) fn sleeps(&self) -> Option<Instant> {
        (self.most > 0).then(Instant::now)
    }

    /// Learns from a sleep that a signal ended.
    pub(crate) fn woke(&mut self, since: Option<Instant>) {
        if since.is_some_and(|since| since.elapsed().as_micros() < SHORT_SLEEP_US) {
            self.looks = (self.looks * 2).clamp(64, self.most);
        }
    }
}

fn available_processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_spins_shrink_to_nothing_and_short_sleeps_bring_them_back() {
        let mut spin = Spin { looks: MOST, most: MOST };
        for _ in 0..20 {
            assert!(!spin.until(|| Ok::<_, ()>(false)).unwrap());
        }
        assert_eq!(spin.looks, 0);
        spin.woke(Some(Instant::now()));
        assert_eq!(spin.looks, 64);
        assert!(spin.until(|| Ok::<_, ()>(true)).unwrap());
        assert_eq!(spin.looks, 128);
    }

    #[test]
    fn few_processors_never_spin() {
        let mut spin = Spin { looks: 0, most: 0 };
        assert!(spin.sleeps().is_none());
        assert!(!spin.until(|| Ok::<_, ()>(true)).unwrap());
    }
}
