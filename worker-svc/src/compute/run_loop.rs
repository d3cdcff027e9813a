//! The compute thread's run loop: results come first, then plans, then adapters and idle tasks, one piece at a time.

use std::time::Duration;

use super::jobs::JobReceiver;

/// The engine, as the run loop sees it.
pub(crate) trait Work {
    /// Whether no plan is in flight.
    fn is_idle(&self) -> bool;
    /// Whether the oldest plan can be finished without waiting.
    fn is_done(&mut self) -> bool;
    /// Whether the oldest plan waits for masks, and all that they depend on is known.
    fn can_mask(&self) -> bool;
    /// Whether another plan may be submitted.
    fn has_room(&self) -> bool;
    /// Whether adapters are on their way to the device.
    fn has_adapters_coming(&self) -> bool;
    /// Whether a plan was submitted since one of them has come further: else plans might keep them from it for ever.
    fn is_adapter_due(&self) -> bool;
    /// Whether an idle task (CUDA graph capture, warm-up) is left.
    fn has_idle_task(&self) -> bool;
    /// How long idle tasks wait for a job that may follow the last one closely.
    fn quiet_left(&self) -> Duration;
}

/// The next thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next<J> {
    /// Finish the oldest plan.
    Finish,
    /// Compute the masks of the oldest plan, whose tokens are then sampled.
    Mask,
    /// Bring an adapter further by a piece.
    Adapter,
    /// Run a piece of an idle task: no plan is in flight, and no job waits.
    IdleTask,
    /// Do this job; absent: the process is ending.
    Job(Option<J>),
}

/// Results come first; then masks, which the device may wait for; then jobs, when there is room for them, and after
/// each a piece of an adapter; then more of adapters; then idle tasks.
///
/// While the device works this polls for all of them without sleeping: waking up takes longer than the rest of a short
/// step.
pub(crate) fn next<J>(work: &mut impl Work, jobs: &JobReceiver<J>) -> Next<J> {
    while !work.is_idle() || work.has_adapters_coming() {
        if !work.is_idle() && work.is_done() {
            return Next::Finish;
        }
        if work.can_mask() {
            return Next::Mask;
        }
        if work.is_adapter_due() {
            return Next::Adapter;
        }
        if work.has_room()
            && let Some(job) = jobs.arrived()
        {
            return Next::Job(job);
        }
        if work.has_adapters_coming() {
            return Next::Adapter;
        }
        std::thread::yield_now();
    }
    match work.has_idle_task() {
        true => jobs.arrived_within(work.quiet_left()).map_or(Next::IdleTask, Next::Job),
        false => Next::Job(jobs.recv()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{jobs::job_queue, watchdog::Activity};

    /// Finishes a plan when it has been polled twice.
    #[derive(Default)]
    struct FakeEngine {
        plans: usize,
        asked: usize,
        idle_tasks: usize,
        unmasked: bool,
        adapters: usize,
        adapter_due: bool,
        quiet: Duration,
    }

    impl Work for FakeEngine {
        fn is_idle(&self) -> bool {
            self.plans == 0
        }
        fn is_done(&mut self) -> bool {
            self.asked += 1;
            self.asked.is_multiple_of(2)
        }
        fn can_mask(&self) -> bool {
            self.unmasked
        }
        fn has_room(&self) -> bool {
            self.plans < 2
        }
        fn has_adapters_coming(&self) -> bool {
            self.adapters > 0
        }
        fn is_adapter_due(&self) -> bool {
            self.adapters > 0 && self.adapter_due
        }
        fn has_idle_task(&self) -> bool {
            self.idle_tasks > 0
        }
        fn quiet_left(&self) -> Duration {
            self.quiet
        }
    }

    #[test]
    fn a_job_is_taken_before_the_next_idle_task() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work = FakeEngine { idle_tasks: 3, ..FakeEngine::default() };
        for job in [1, 2] {
            assert_eq!(next(&mut work, &jobs), Next::IdleTask);
            work.idle_tasks -= 1;
            sender.try_send(job).unwrap();
            assert_eq!(next(&mut work, &jobs), Next::Job(Some(job)));
        }
        assert_eq!(next(&mut work, &jobs), Next::IdleTask);
        work.idle_tasks -= 1;
        // Now it waits.
        let late = std::thread::spawn(move || sender.try_send(3));
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(3)));
        late.join().unwrap().unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Job(None));
    }

    #[test]
    fn a_job_that_follows_closely_comes_before_idle_tasks() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work = FakeEngine { idle_tasks: 1, quiet: Duration::from_secs(60), ..FakeEngine::default() };
        let late = std::thread::spawn(move || sender.try_send(1));
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(1)));
        late.join().unwrap().unwrap();
        // The process is ending.
        assert_eq!(next(&mut work, &jobs), Next::Job(None));
    }

    #[test]
    fn no_idle_task_runs_while_plans_are_in_flight() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work = FakeEngine { plans: 1, idle_tasks: 9, ..FakeEngine::default() };
        sender.try_send(1).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(1)));
        work.plans = 2;
        sender.try_send(2).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        work.plans = 0;
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(2)));
        assert_eq!(next(&mut work, &jobs), Next::IdleTask);
        drop(sender);
        assert_eq!(next(&mut work, &jobs), Next::Job(None));
    }

    #[test]
    fn masks_come_after_results_and_before_plans() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work = FakeEngine { plans: 1, asked: 1, unmasked: true, ..FakeEngine::default() };
        sender.try_send(1).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        assert_eq!(next(&mut work, &jobs), Next::Mask);
        work.unmasked = false;
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(1)));
    }

    #[test]
    fn adapters_come_after_plans_and_before_idle_tasks() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work =
            FakeEngine { plans: 1, asked: 1, idle_tasks: 1, unmasked: true, adapters: 2, ..FakeEngine::default() };
        sender.try_send(1).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        assert_eq!(next(&mut work, &jobs), Next::Mask);
        work.unmasked = false;
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(1)));
        work.asked = 0;
        assert_eq!(next(&mut work, &jobs), Next::Adapter);
        work.plans = 0;
        sender.try_send(2).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(2)), "an idle device has room for a plan");
        work.adapter_due = true;
        sender.try_send(3).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Adapter, "plans that come without an end keep no adapter away");
        work.adapter_due = false;
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(3)));
        assert_eq!(next(&mut work, &jobs), Next::Adapter);
        work.adapters = 0;
        assert_eq!(next(&mut work, &jobs), Next::IdleTask);
    }
}
