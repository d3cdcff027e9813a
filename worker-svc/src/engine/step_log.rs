//! A log line for each step: what it computed, the time the host took to submit it, its run time, and how long the
//! device was idle before. Written with `--log-level info,worker_svc::step_log=trace`; otherwise it costs nothing.

use std::time::{Duration, Instant};

use proto::StepPlan;
use tracing::{Level, enabled, trace};

/// What a filter names, wherever this file is.
const TARGET: &str = "worker_svc::step_log";

/// The line of a step in flight.
#[derive(Debug)]
pub(crate) struct Note {
    step: u64,
    decodes: usize,
    /// Tokens that decodes attend to.
    context: u64,
    prompts: usize,
    prompt_tokens: u64,
    submit: Duration,
    idle: Duration,
}

impl Note {
    /// Absent if the log level leaves it out. `idle_since`: when the step before was finished, if none was in flight
    /// since.
    pub(crate) fn of(plan: &StepPlan, submitted: Instant, idle_since: Option<Instant>) -> Option<Self> {
        enabled!(target: TARGET, Level::TRACE).then(|| {
            let now = Instant::now();
            Self::new(plan, now - submitted, idle_since.map_or(Duration::ZERO, |since| now - since))
        })
    }

    fn new(plan: &StepPlan, submit: Duration, idle: Duration) -> Self {
        let mut note = Self { step: plan.step, decodes: 0, context: 0, prompts: 0, prompt_tokens: 0, submit, idle };
        for (start, tokens) in plan.start.iter().zip(&plan.num_tokens) {
            match tokens {
                1 => (note.decodes, note.context) = (note.decodes + 1, note.context + u64::from(*start) + 1),
                _ => (note.prompts, note.prompt_tokens) = (note.prompts + 1, note.prompt_tokens + u64::from(*tokens)),
            }
        }
        note
    }

    /// Writes the line. `took`: run time of the step, without its wait for the one before.
    pub(crate) fn finished(self, took: Duration) {
        let Self { step, decodes, context, prompts, prompt_tokens, submit, idle } = self;
        let [submit_us, idle_us, took_us] = [submit, idle, took].map(|time| time.as_micros() as u64);
        trace!(target: TARGET, step, decodes, context, prompts, prompt_tokens, submit_us, idle_us, took_us, "step");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_decodes_and_prompts_apart() {
        let plan = StepPlan { start: vec![9, 19, 0], num_tokens: vec![1, 1, 30], ..StepPlan::default() };
        let note = Note::new(&plan, Duration::from_micros(7), Duration::ZERO);
        assert_eq!((note.decodes, note.context, note.prompts, note.prompt_tokens), (2, 30, 1, 30));
        assert_eq!((note.submit, note.idle), (Duration::from_micros(7), Duration::ZERO));
    }
}
