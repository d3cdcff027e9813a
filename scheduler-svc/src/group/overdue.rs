//! What takes too long: a step, or the forming of a group. All workers are asked, and those that hold it up are named.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{Group, Member, claims::ANSWER};

/// How long something may take in all because kernels are being compiled.
const COMPILING: Duration = Duration::from_secs(600);

/// Something that workers do together, and by when it must be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    what: What,
    began: Instant,
    limit: Duration,
    /// When to look at it again.
    due: Instant,
    /// The ping that asks everybody, once the limit has passed.
    asked: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Forming,
    Step(u64),
}

impl Overdue {
    /// A step that all ranks have been sent.
    pub(crate) fn step(number: u64, limit: Duration) -> Self {
        Self::new(What::Step(number), limit)
    }

    /// A group that forms.
    pub(crate) fn forming(limit: Duration) -> Self {
        Self::new(What::Forming, limit)
    }

    fn new(what: What, limit: Duration) -> Self {
        let began = Instant::now();
        Self { what, began, limit, due: began + limit, asked: None }
    }

    /// When [`Group::hung`] has something to say.
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// How far a worker is.
    fn progress(&self, member: &Member) -> u64 {
        match self.what {
            What::Forming => member.formed.into(),
            What::Step(_) => member.acknowledged,
        }
    }
}

impl Group {
    /// Why the group counts as hung; absent while there is hope. Past the limit every worker is asked: while one of
    /// them compiles kernels the others wait for it, and so does this.
    pub(crate) fn hung(&mut self, overdue: &mut Overdue, now: Instant) -> Option<String> {
        match overdue.asked {
            None if now < overdue.due => None,
            None => {
                self.pings += 1;
                let ping = self.pings;
                self.ranks.iter_mut().flatten().for_each(|member| member.ping(ping));
                (overdue.asked, overdue.due) = (Some(ping), now + ANSWER);
                None
            }
            Some(ping) if now < overdue.due && !self.have_answered(ping) => None,
            Some(ping) => {
                let compiling =
                    self.ranks.iter().flatten().any(|member| member.pong.number >= ping && member.pong.compiling);
                if compiling && now < overdue.began + COMPILING {
                    (overdue.asked, overdue.due) = (None, now + overdue.limit);
                    return None;
                }
                Some(self.blame(overdue, ping))
            }
        }
    }

    fn have_answered(&self, ping: u64) -> bool {
        self.ranks.iter().flatten().all(|member| member.pong.number >= ping)
    }

    /// Who holds it up: processes that do not answer; else those that others say they wait for; else those that are
    /// furthest behind.
    fn blame(&self, overdue: &Overdue, ping: u64) -> String {
        let ranks = |is_to_blame: &dyn Fn(&Member) -> bool| -> BTreeSet<u32> {
            self.ranks.iter().flatten().filter(|member| is_to_blame(member)).map(|member| member.peer.rank).collect()
        };
        let limit = overdue.limit.as_secs_f64();
        let (still, late) = match overdue.what {
            What::Forming => ("the group is not formed".to_owned(), format!("joined the group within {limit} s")),
            What::Step(number) => {
                (format!("step {number} is not done"), format!("finished step {number} within {limit} s"))
            }
        };
        let silent = ranks(&|member| member.pong.number < ping);
        if !silent.is_empty() {
            return format!("{} not answer, and {still} after {limit} s", subject(&silent, "does", "do"));
        }
        let answers = || self.ranks.iter().flatten().map(|member| &member.pong);
        let awaited: BTreeSet<u32> = answers().flat_map(|pong| pong.waits_for.iter().copied()).collect();
        let least = self.ranks.iter().flatten().map(|member| overdue.progress(member)).min();
        let behind = || ranks(&|member| Some(overdue.progress(member)) == least);
        let late_ones = if awaited.is_empty() { behind() } else { awaited };
        format!("{} not {late}", subject(&late_ones, "has", "have"))
    }
}

/// "worker 1 has", "workers 0, 1 and 2 have".
fn subject(ranks: &BTreeSet<u32>, one: &str, many: &str) -> String {
    let numbers: Vec<String> = ranks.iter().map(u32::to_string).collect();
    match numbers.as_slice() {
        [rank] => format!("worker {rank} {one}"),
        [ranks @ .., last] => format!("workers {} and {last} {many}", ranks.join(", ")),
        [] => format!("a worker {one}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_as_people_write_lists() {
        let has = |ranks: &[u32]| subject(&ranks.iter().copied().collect(), "has", "have");
        assert_eq!(has(&[2]), "worker 2 has");
        assert_eq!(has(&[1, 0]), "workers 0 and 1 have");
        assert_eq!(has(&[0, 1, 2, 7]), "workers 0, 1, 2 and 7 have");
    }
}
