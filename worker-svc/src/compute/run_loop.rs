//! The compute thread's run loop: results come first, then plans, then idle tasks, one piece at a time.

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
    /// Whether an idle task (CUDA graph capture, warm-up) is left.
    fn has_idle_task(&self) -> bool;
}

/// The next thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next<J> {
    /// Finish the oldest plan.
    Finish,
    /// Compute the masks of the oldest plan, whose tokens are then sampled.
    Mask,
    /// Run a piece of an idle task: no plan is in flight, and no job waits.
    IdleTask,
    /// Do this job; absent: the process is ending.
    Job(Option<J>),
}

/// Results come first; then masks, which the device may wait for; then jobs, when there is room for them; then idle
/// tasks.
///
/// While the device works this polls for both without sleeping: waking up takes longer than the rest of a short step.
pub(crate) fn next<J>(work: &mut impl Work, jobs: &JobReceiver<J>) -> Next<J> {
    while !work.is_idle() {
        if work.is_done() {
            return Next::Finish;
        }
        if work.can_mask() {
            return Next::Mask;
        }
        if work.has_room()
            && let Some(job) = jobs.arrived()
        {
            return Next::Job(job);
        }
        std::thread::yield_now();
    }
    match work.has_idle_task() {
        true => jobs.arrived().map_or(Next::IdleTask, Next::Job),
        false => Next::Job(jobs.recv()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{jobs::job_queue, watchdog::Activity};

    /// Finishes a plan when it has been polled twice.
    struct FakeEngine {
        plans: usize,
        asked: usize,
        idle_tasks: usize,
        unmasked: bool,
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
        fn has_idle_task(&self) -> bool {
            self.idle_tasks > 0
        }
    }

    #[test]
    fn a_job_is_taken_before_the_next_idle_task() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work = FakeEngine { plans: 0, asked: 0, idle_tasks: 3, unmasked: false };
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
    fn no_idle_task_runs_while_plans_are_in_flight() {
        let (sender, jobs) = job_queue(4, &Activity::default());
        let mut work = FakeEngine { plans: 1, asked: 0, idle_tasks: 9, unmasked: false };
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
        let mut work = FakeEngine { plans: 1, asked: 1, idle_tasks: 0, unmasked: true };
        sender.try_send(1).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        assert_eq!(next(&mut work, &jobs), Next::Mask);
        work.unmasked = false;
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(1)));
    }
}
