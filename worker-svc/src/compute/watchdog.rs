//! Whether the compute thread gets on. It says when it begins something and when it has nothing to do; the main thread
//! looks, long after it has handed over a job, when that was. An idle worker has no timer.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use kernels_cuda::Compilations;
use tokio::time::{Instant, sleep_until};

/// How long forming a group may take: longer than its ranks wait for each other.
const FORMING: Duration = Duration::from_secs(330);
/// How long something may take in all because kernels are being compiled.
const COMPILING: Duration = Duration::from_secs(600);
/// How long after its deadline the compute thread may come back. The scheduler has the same deadline, asks everybody
/// and hangs up within this, and a thread that only waited for other ranks then goes on; so does one whose process was
/// stopped for a while.
const GRACE: Duration = Duration::from_secs(5);

/// What the compute thread is at, told to other threads. Cloning shares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    busy: Option<Busy>,
    /// Of the device, once there is one.
    compilations: Compilations,
}

/// Something that was begun and is not over.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Busy {
    doing: Doing,
    since: Instant,
}

/// What takes time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doing {
    /// Meeting the other ranks.
    Forming,
    /// A step, or a piece of what is done while there is none.
    Step,
}

impl Activity {
    /// Something begins, or gets on.
    pub(crate) fn begins(&self, doing: Doing) {
        self.began(doing, Instant::now());
    }

    fn began(&self, doing: Doing, since: Instant) {
        self.lock().busy = Some(Busy { doing, since });
    }

    /// There is nothing to do.
    pub(crate) fn rests(&self) {
        self.lock().busy = None;
    }

    /// The device that is computed on compiles kernels, at times.
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
pub(crate) struct Watch {
    activity: Activity,
    /// How long a step of the present group may take; absent: any time.
    step_timeout: Option<Duration>,
    /// When to look next; absent: nothing was handed over.
    due: Option<Instant>,
    /// What was overdue when this looked last.
    suspect: Option<Busy>,
}

impl Watch {
    pub(crate) fn new(activity: Activity) -> Self {
        Self { activity, step_timeout: None, due: None, suspect: None }
    }

    /// What the compute thread says.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// A group forms, whose steps may take so long.
    pub(crate) fn set_step_timeout(&mut self, timeout: Duration) {
        self.step_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    }

    /// A job is handed over.
    pub(crate) fn handed_over(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now + self.limit(Doing::Step).min(self.limit(Doing::Forming)));
        }
    }

    /// Waits until [`Self::hung`] is to look again. Cancel-safe.
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
        let limit = self.limit(busy.doing);
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
        Some(match busy.doing {
            Doing::Forming => format!("the compute thread hangs: it has not joined its group within {seconds} s"),
            Doing::Step => format!("the compute thread hangs: it has not finished a step within {seconds} s"),
        })
    }

    fn limit(&self, doing: Doing) -> Duration {
        match doing {
            Doing::Forming => FORMING,
            // A year is for ever.
            Doing::Step => self.step_timeout.unwrap_or(Duration::from_secs(365 * 24 * 3600)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn watch() -> Watch {
        let mut watch = Watch::new(Activity::default());
        watch.set_step_timeout(LIMIT);
        watch
    }

    /// Looks when it is time to: why the compute thread counts as hung, and when that is.
    fn look(watch: &mut Watch) -> (Option<String>, Instant) {
        let due = watch.due.expect("it looks again");
        (watch.hung(due), due)
    }

    #[test]
    fn a_step_that_does_not_end_is_a_hang_after_its_deadline_and_some_grace() {
        let (mut watch, start) = (watch(), Instant::now());
        watch.handed_over(start);
        watch.activity.began(Doing::Step, start);
        assert_eq!(look(&mut watch), (None, start + LIMIT));
        let (reason, at) = look(&mut watch);
        assert_eq!(at, start + LIMIT + GRACE);
        assert!(reason.expect("it hangs").contains("has not finished a step within 60 s"));
    }

    #[test]
    fn steps_that_end_are_no_hang_and_an_idle_worker_has_no_timer() {
        let (mut watch, start) = (watch(), Instant::now());
        watch.handed_over(start);
        for step in 1..5 {
            watch.activity.began(Doing::Step, start + step * LIMIT / 2);
            let (hung, at) = look(&mut watch);
            assert!(hung.is_none() && at <= start + (step + 1) * LIMIT / 2 + LIMIT / 2);
        }
        // Stopped for a while, and back.
        let back = start + 9 * LIMIT;
        assert_eq!(watch.hung(back), None);
        watch.activity.began(Doing::Step, back);
        assert_eq!(look(&mut watch), (None, back + GRACE));
        assert_eq!(watch.due, Some(back + LIMIT));
        watch.activity.rests();
        assert_eq!(watch.hung(back + LIMIT), None);
        assert_eq!(watch.due, None);
    }

    #[test]
    fn groups_form_and_kernels_are_compiled_in_their_own_time() {
        let (mut watch, start) = (watch(), Instant::now());
        watch.handed_over(start);
        watch.activity.began(Doing::Forming, start);
        assert_eq!(look(&mut watch), (None, start + LIMIT));
        assert_eq!(watch.due, Some(start + FORMING));
        let compilations = Compilations::default();
        watch.activity.compiles(compilations.clone());
        watch.activity.began(Doing::Step, start);
        let compiling = compilations.begin();
        let hangs_at = loop {
            if let (Some(_), at) = look(&mut watch) {
                break at;
            }
        };
        // But not for ever.
        assert!(hangs_at >= start + COMPILING && hangs_at <= start + COMPILING + LIMIT + GRACE);
        drop(compiling);
    }

    #[test]
    fn without_a_deadline_steps_take_any_time() {
        let (mut watch, start) = (Watch::new(Activity::default()), Instant::now());
        watch.activity.began(Doing::Step, start);
        assert_eq!(watch.hung(start + 100 * FORMING), None);
    }
}
