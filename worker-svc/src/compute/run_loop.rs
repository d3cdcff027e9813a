//! What the compute thread does next: plans and their results come first, and what could wait for ever when nothing
//! else is to be done, a piece at a time.

use std::sync::mpsc::{Receiver, TryRecvError};

/// Who does it.
pub(crate) trait Work {
    /// Whether no plan is under way.
    fn is_idle(&self) -> bool;
    /// Whether the oldest plan could be finished without waiting.
    fn is_done(&mut self) -> bool;
    /// Whether another plan may be submitted.
    fn has_room(&self) -> bool;
    /// Whether something is left to be done while nothing runs.
    fn has_pastime(&self) -> bool;
}

/// What there is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next<J> {
    /// The oldest plan is done.
    Finish,
    /// Nobody asks for anything: a piece of what is left for such times.
    Pastime,
    /// Do this; absent: the process is ending.
    Job(Option<J>),
}

/// Results come first; then jobs, when there is room for them; then pastimes.
///
/// While the device works this looks for both without sleeping: being woken takes longer than what is left of a short
/// step.
pub(crate) fn next<J>(work: &mut impl Work, jobs: &Receiver<J>) -> Next<J> {
    while !work.is_idle() {
        if work.is_done() {
            return Next::Finish;
        }
        if work.has_room()
            && let Some(job) = arrived(jobs)
        {
            return Next::Job(job);
        }
        std::thread::yield_now();
    }
    match work.has_pastime() {
        true => arrived(jobs).map_or(Next::Pastime, Next::Job),
        false => Next::Job(jobs.recv().ok()),
    }
}

/// A job that is there by now, or the news that there will be none.
fn arrived<J>(jobs: &Receiver<J>) -> Option<Option<J>> {
    match jobs.try_recv() {
        Ok(job) => Some(Some(job)),
        Err(TryRecvError::Disconnected) => Some(None),
        Err(TryRecvError::Empty) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// A device that finishes a plan when it has been asked twice, and has so many pastimes.
    struct Pretended {
        plans: usize,
        asked: usize,
        pastimes: usize,
    }

    impl Work for Pretended {
        fn is_idle(&self) -> bool {
            self.plans == 0
        }
        fn is_done(&mut self) -> bool {
            self.asked += 1;
            self.asked.is_multiple_of(2)
        }
        fn has_room(&self) -> bool {
            self.plans < 2
        }
        fn has_pastime(&self) -> bool {
            self.pastimes > 0
        }
    }

    #[test]
    fn a_job_is_taken_before_the_next_piece_of_a_pastime() {
        let (sender, jobs) = sync_channel(4);
        let mut work = Pretended { plans: 0, asked: 0, pastimes: 3 };
        for job in [1, 2] {
            assert_eq!(next(&mut work, &jobs), Next::Pastime);
            work.pastimes -= 1;
            sender.send(job).unwrap();
            assert_eq!(next(&mut work, &jobs), Next::Job(Some(job)));
        }
        assert_eq!(next(&mut work, &jobs), Next::Pastime);
        work.pastimes -= 1;
        // Now it waits.
        let late = std::thread::spawn(move || sender.send(3));
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(3)));
        late.join().unwrap().unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Job(None));
    }

    #[test]
    fn there_are_no_pastimes_while_plans_are_under_way() {
        let (sender, jobs) = sync_channel(4);
        let mut work = Pretended { plans: 1, asked: 0, pastimes: 9 };
        sender.send(1).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(1)));
        work.plans = 2;
        sender.send(2).unwrap();
        assert_eq!(next(&mut work, &jobs), Next::Finish);
        work.plans = 0;
        assert_eq!(next(&mut work, &jobs), Next::Job(Some(2)));
        assert_eq!(next(&mut work, &jobs), Next::Pastime);
        drop(sender);
        assert_eq!(next(&mut work, &jobs), Next::Job(None));
    }
}
