//! Times of one choice, as its answer tells them with `--enable-per-request-metrics`.

use std::time::Duration;

/// Where the time of a choice went, as this gateway saw it. The names are those of vLLM's `metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// From the request's arrival until the scheduler took it up.
    pub queue: Duration,
    /// From there to the first token: the prefill.
    pub first_token: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// Generated tokens.
    pub tokens: u32,
}

impl Timings {
    /// Mean time between tokens; none for fewer than two.
    pub fn mean_inter_token(&self) -> Option<Duration> {
        (self.tokens > 1).then(|| self.generation / (self.tokens - 1))
    }

    /// Generated tokens per second from the time that the scheduler took the request up; none if none passed.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let seconds = (self.first_token + self.generation).as_secs_f64();
        (seconds > 0.0).then(|| f64::from(self.tokens) / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_of_what_there_is() {
        let millis = Duration::from_millis;
        let timings = Timings { queue: millis(9), first_token: millis(10), generation: millis(30), tokens: 4 };
        assert_eq!(timings.mean_inter_token(), Some(millis(10)));
        assert_eq!(timings.tokens_per_second(), Some(100.0));
        let one = Timings { tokens: 1, first_token: millis(10), ..Timings::default() };
        assert_eq!((one.mean_inter_token(), one.tokens_per_second()), (None, Some(100.0)));
        assert_eq!(Timings::default().tokens_per_second(), None);
    }
}
