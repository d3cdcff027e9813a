//! The watchdog finds a compute thread that hangs. The thread notes when it begins a task and when it is idle; the main
//! thread reads that note once the deadline of a job has passed. An idle worker has no timer.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kernels_cuda::Compilations;
use tokio::time::{Instant, sleep_until};

/// How long something may take in all because kernels are being compiled.
const COMPILING: Duration = Duration::from_secs(600);
/// How long after its deadline the compute thread may recover. The scheduler has the same deadline, pings every rank
/// and disconnects within this time, upon which a thread that only waited for other ranks goes on; so does one whose
/// process was stopped for a while.
const GRACE: Duration = Duration::from_secs(5);

/// The compute thread's present task, for other threads to read. Cloning shares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    busy: Option<Busy>,
    /// Jobs that were handed over and not taken yet.
    queued: u32,
    /// Of the device, once there is one.
    compilations: Compilations,
}

/// A task that was begun and has not ended.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Busy {
    task: Task,
    since: Instant,
}

/// Kinds of tasks, each with its time limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Task {
    /// Meeting the other ranks.
    Forming,
    /// A step, or an idle task.
    Step,
}

impl Activity {
    /// A task begins, or makes progress.
    pub(crate) fn begin(&self, task: Task) {
        self.began(task, Instant::now());
    }

    fn began(&self, task: Task, since: Instant) {
        self.lock().busy = Some(Busy { task, since });
    }

    /// A job is handed over: from now on the thread has something to do.
    pub(crate) fn queued(&self) {
        self.queued_at(Instant::now());
    }

    fn queued_at(&self, now: Instant) {
        let mut state = self.lock();
        state.queued += 1;
        state.busy.get_or_insert(Busy { task: Task::Step, since: now });
    }

    /// The thread has taken a job.
    pub(crate) fn taken(&self) {
        let mut state = self.lock();
        state.queued = state.queued.saturating_sub(1);
    }

    /// The thread has done all that it has taken.
    pub(crate) fn idle(&self) {
        let mut state = self.lock();
        state.busy = (state.queued > 0).then(|| Busy { task: Task::Step, since: Instant::now() });
    }

    /// Sets the device's count of compilations, which may delay steps.
    pub(crate) fn compiles(&self, compilations: Compilations) {
        self.lock().compilations = compilations;
    }

    /// Whether kernels are being compiled, which steps may wait for.
    pub(crate) fn is_compiling(&self) -> bool {
        self.lock().compilations.are_under_way()
    }

    fn busy(&self) -> Option<Busy> {
        self.lock().busy
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds a compute thread that hangs.
pub(crate) struct Watchdog {
    activity: Activity,
    /// Time limit of forming a group.
    forming: Duration,
    /// Time limit of the present group's steps; absent: none.
    step_timeout: Option<Duration>,
    /// When to check next; absent: no job was handed over.
    due: Option<Instant>,
    /// The task that was overdue at the last check.
    suspect: Option<Busy>,
}

impl Watchdog {
    /// Watches a thread that may take `forming` to join a group.
    pub(crate) fn new(activity: Activity, forming: Duration) -> Self {
        Self { activity, forming, step_timeout: None, due: None, suspect: None }
    }

    /// The compute thread's note.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Sets the time limit of steps for the group that forms; zero: none.
    pub(crate) fn set_step_timeout(&mut self, timeout: Duration) {
        self.step_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    }

    /// A job is handed over.
    pub(crate) fn handed_over(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + self.limit(Task::Step).min(self.limit(Task::Forming)));
        }
    }

    /// Waits until [`Self::hung`] is to be called again. Cancel-safe.
    pub(crate) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Why the compute thread counts as hung; absent when it does not.
    pub(crate) fn hung(&mut self, now: Instant) -> Option<String> {
        let Some(busy) = self.activity.busy() else {
            (self.due, self.suspect) = (None, None);
            return None;
        };
        let limit = self.limit(busy.task);
        let compiling = self.activity.is_compiling() && now < busy.since + COMPILING;
        let deadline = if compiling { now + limit } else { busy.since + limit };
        if now < deadline {
            (self.due, self.suspect) = (Some(deadline), None);
            return None;
        }
        if self.suspect != Some(busy) {
            (self.due, self.suspect) = (Some(now + GRACE), Some(busy));
            return None;
        }
        let seconds = limit.as_secs_f64();
        Some(match busy.task {
            Task::Forming => format!("the compute thread hangs: it has not joined its group within {seconds} s"),
            Task::Step => format!("the compute thread hangs: it has not finished a step within {seconds} s"),
        })
    }

    fn limit(&self, task: Task) -> Duration {
        match task {
            Task::Forming => self.forming,
            // A year is for ever.
            Task::Step => self.step_timeout.unwrap_or(Duration::from_secs(365 * 24 * 3600)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const FORMING: Duration = Duration::from_secs(90);

    fn watchdog() -> Watchdog {
        let mut watchdog = Watchdog::new(Activity::default(), FORMING);
        watchdog.set_step_timeout(LIMIT);
        watchdog
    }

    /// Checks when it is due: why the compute thread counts as hung, and when.
    fn look(watchdog: &mut Watchdog) -> (Option<String>, Instant) {
        let due = watchdog.due.expect("it checks again");
        (watchdog.hung(due), due)
    }

    #[test]
    fn a_step_that_does_not_end_is_a_hang_after_its_deadline_and_some_grace() {
        let (mut watchdog, start) = (watchdog(), Instant::now());
        watchdog.handed_over(start);
        watchdog.activity.began(Task::Step, start);
        assert_eq!(look(&mut watchdog), (None, start + LIMIT));
        let (reason, at) = look(&mut watchdog);
        assert_eq!(at, start + LIMIT + GRACE);
        assert!(reason.expect("it hangs").contains("has not finished a step within 60 s"));
    }

    #[test]
    fn steps_that_end_are_no_hang_and_an_idle_worker_has_no_timer() {
        let (mut watchdog, start) = (watchdog(), Instant::now());
        watchdog.handed_over(start);
        for step in 1..5 {
            watchdog.activity.began(Task::Step, start + step * LIMIT / 2);
            let (hung, at) = look(&mut watchdog);
            assert!(hung.is_none() && at <= start + (step + 1) * LIMIT / 2 + LIMIT / 2);
        }
        // Stopped for a while, and back.
        let back = start + 9 * LIMIT;
        assert_eq!(watchdog.hung(back), None);
        watchdog.activity.began(Task::Step, back);
        assert_eq!(look(&mut watchdog), (None, back + GRACE));
        assert_eq!(watchdog.due, Some(back + LIMIT));
        watchdog.activity.idle();
        assert_eq!(watchdog.hung(back + LIMIT), None);
        assert_eq!(watchdog.due, None);
    }

    #[test]
    fn a_thread_that_takes_no_job_hangs_too() {
        let (mut watchdog, start) = (watchdog(), Instant::now());
        watchdog.activity.idle();
        watchdog.activity.queued_at(start);
        watchdog.handed_over(start);
        assert_eq!(look(&mut watchdog), (None, start + LIMIT));
        assert!(look(&mut watchdog).0.is_some());
        // One more arrives while it works: then it is idle only when that is taken, too.
        let activity = watchdog.activity.clone();
        activity.taken();
        activity.queued_at(start);
        activity.idle();
        assert!(activity.busy().is_some());
        activity.taken();
        activity.idle();
        assert_eq!(activity.busy(), None);
    }

    #[test]
    fn groups_form_and_kernels_are_compiled_in_their_own_time() {
        let (mut watchdog, start) = (watchdog(), Instant::now());
        watchdog.handed_over(start);
        watchdog.activity.began(Task::Forming, start);
        assert_eq!(look(&mut watchdog), (None, start + LIMIT));
        assert_eq!(watchdog.due, Some(start + FORMING));
        let compilations = Compilations::default();
        watchdog.activity.compiles(compilations.clone());
        watchdog.activity.began(Task::Step, start);
        let compiling = compilations.begin();
        let hangs_at = loop {
            if let (Some(_), at) = look(&mut watchdog) {
                break at;
            }
        };
        // But not for ever.
        assert!(hangs_at >= start + COMPILING && hangs_at <= start + COMPILING + LIMIT + GRACE);
        drop(compiling);
    }

    #[test]
    fn without_a_deadline_steps_take_any_time() {
        let (mut watchdog, start) = (Watchdog::new(Activity::default(), FORMING), Instant::now());
        watchdog.activity.began(Task::Step, start);
        assert_eq!(watchdog.hung(start + 100 * FORMING), None);
    }
}
