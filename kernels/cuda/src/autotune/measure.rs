//! Times the tactics of a problem and finds the fastest on this device.
//!
//! TacticCache are tried in turn, round after round, so that a clock that moves (a GPU throttles by power) moves for
//! all of them; medians count. Before each try the device's cache is overwritten: in a step, weights come from memory.
//! That also keeps the device busy while the host queues what follows, so that what is timed is the device's work and
//! not the host's.
//!
//! A [`Race`] takes one try at a time, so that whoever has something more urgent need not wait for its end.
//!
//! Two pieces of work that take long are timed by [`in_turn`].

use crate::runtime::context::{Event, Memory};
use crate::runtime::device::Device;

/// Rounds that are timed at most, after one that only loads code.
const ROUNDS: usize = 5;
/// Microseconds from which on rounds are fewer: longer work varies less.
const LONG: f64 = 500.0;
const ROUNDS_OF_LONG: usize = 3;
/// How often the cache is overwritten before a try.
const LEADS: usize = 5;
/// After one timed round, tactics this much slower than the fastest are given up.
const HOPELESS: f64 = 1.1;
/// What a tactic must be faster by to replace one before it: the first is what would be taken without measuring.
const MARGIN: f64 = 0.99;

/// What each tactic took.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Measured {
    /// The fastest tactic.
    pub(crate) best: usize,
    /// Median microseconds of each; of those given up, the first time; none where a tactic cannot be taken.
    pub(crate) micros: Vec<Option<f64>>,
}

impl Measured {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let times = self.micros.iter().map(|micros| micros.map_or("-".to_owned(), |micros| format!("{micros:.1}")));
        format!("tactic {} of, in microseconds: {}", self.best, times.collect::<Vec<_>>().join(" "))
    }
}

/// What a race does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Run this tactic, so that its code is there, and say whether it can be taken.
    Load(usize),
    /// Time this tactic.
    Time(usize),
}

/// TacticCache that are tried in turn.
#[derive(Debug)]
pub(crate) struct Race {
    /// Those of the round under tactic.
    possible: Vec<usize>,
    /// The next of them.
    at: usize,
    /// Rounds timed; none while tactics are loaded.
    rounds: Option<usize>,
    /// Of each tactic.
    times: Vec<Vec<f64>>,
}

impl Race {
    pub(crate) fn new(count: usize) -> Self {
        Self { possible: (0..count).collect(), at: 0, rounds: None, times: vec![Vec::new(); count] }
    }

    /// Absent once it is over.
    pub(crate) fn next(&self) -> Option<Turn> {
        let tactic = *self.possible.get(self.at)?;
        Some(if self.rounds.is_some() { Turn::Time(tactic) } else { Turn::Load(tactic) })
    }

    /// What came of the next turn: whether a tactic that was loaded can be taken, or the time of one that was timed
    /// (none: it cannot).
    pub(crate) fn took(&mut self, micros: Option<f64>) {
        let tactic = self.possible[self.at];
        match (micros, self.rounds) {
            (None, _) => {
                self.times[tactic].clear();
                self.possible.remove(self.at);
            }
            (Some(_), None) => self.at += 1,
            (Some(micros), Some(_)) => {
                self.times[tactic].push(micros);
                self.at += 1;
            }
        }
        if self.at == self.possible.len() {
            self.end_round();
        }
    }

    fn end_round(&mut self) {
        let rounds = self.rounds.map_or(0, |rounds| rounds + 1);
        (self.at, self.rounds) = (0, Some(rounds));
        let first = |tactic: &usize| self.times[*tactic].first().copied();
        let Some(least) = self.possible.iter().filter_map(first).min_by(f64::total_cmp) else { return };
        self.possible.retain(|tactic| self.times[*tactic][0] <= least * HOPELESS);
        if rounds >= if least < LONG { ROUNDS } else { ROUNDS_OF_LONG } {
            // Past the last one.
            self.at = self.possible.len();
        }
    }

    /// Of a race that is over; absent where no tactic can be taken.
    pub(crate) fn measured(mut self) -> Option<Measured> {
        let micros: Vec<Option<f64>> = self.times.iter_mut().map(|times| median(times)).collect();
        let best = least(&self.possible, &micros)?;
        Some(Measured { best, micros })
    }
}

/// Whether this device can measure at all, now: not while a step is recorded, nor with a driver too old to tell the
/// time.
pub(crate) fn is_possible(device: &Device) -> bool {
    !device.is_capturing() && device.fault().is_none() && device.context.tells_time()
}

/// Does a race's next turn and waits for it; `run` queues a tactic (false: it cannot be taken). `evict`: memory as
/// large as the device's cache, whose content does not matter. False once the race is over, or the device has failed.
pub(crate) fn turn(
    device: &mut Device,
    evict: &Memory,
    race: &mut Race,
    run: &mut dyn FnMut(&mut Device, usize) -> bool,
) -> bool {
    let Some(turn) = race.next().filter(|_| device.fault().is_none()) else { return false };
    let micros = match turn {
        Turn::Load(tactic) => run(device, tactic).then_some(0.0),
        Turn::Time(tactic) => time(device, evict, |device| run(device, tactic)),
    };
    race.took(micros);
    true
}

fn time(device: &mut Device, evict: &Memory, run: impl FnOnce(&mut Device) -> bool) -> Option<f64> {
    (0..LEADS).for_each(|_| device.clear(evict));
    let start = stamp(device)?;
    let ran = run(device);
    let end = stamp(device)?;
    device.synchronize();
    device.attempt(|| "timing".to_owned(), |_| end.micros_since(&start)).filter(|_| ran)
}

/// The microseconds that each of two pieces of work takes; none where they cannot be timed. All is queued at once,
/// behind one that does not count, so that the device need not wait for the host between two stamps. Whatever else the
/// device or the host is busy with makes some times longer and none shorter: the least of several count.
pub(crate) fn in_turn(device: &mut Device, work: [&dyn Fn(&mut Device); 2]) -> Option<[f64; 2]> {
    if !is_possible(device) {
        return None;
    }
    work[1](device);
    let start = stamp(device)?;
    work[0](device);
    let middle = stamp(device)?;
    work[1](device);
    let end = stamp(device)?;
    device.synchronize();
    let mut micros = |from: &Event, to: &Event| device.attempt(|| "timing".to_owned(), |_| to.micros_since(from));
    Some([micros(&start, &middle)?, micros(&middle, &end)?])
}

fn stamp(device: &mut Device) -> Option<Event> {
    device.attempt(|| "timing".to_owned(), Event::stamp)
}

fn median(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// The tactic of the least time, or one before it that is hardly slower.
fn least(possible: &[usize], micros: &[Option<f64>]) -> Option<usize> {
    let mut found: Option<(usize, f64)> = None;
    for &tactic in possible {
        let Some(time) = micros[tactic] else { continue };
        if found.is_none_or(|(_, least)| time < least * MARGIN) {
            found = Some((tactic, time));
        }
    }
    found.map(|(tactic, _)| tactic)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a race of tactics that take so long, none where one cannot be taken; which turns there were, and what came
    /// of them.
    fn run(micros: &[Option<f64>]) -> (Vec<Turn>, Option<Measured>) {
        let (mut race, mut turns) = (Race::new(micros.len()), Vec::new());
        while let Some(turn) = race.next() {
            let (Turn::Load(tactic) | Turn::Time(tactic)) = turn;
            turns.push(turn);
            race.took(micros[tactic]);
        }
        (turns, race.measured())
    }

    #[test]
    fn ways_are_loaded_then_timed_by_turns_and_slow_ones_given_up() {
        let (turns, measured) = run(&[Some(100.0), None, Some(90.0), Some(300.0)]);
        let (loads, times) = turns.split_at(4);
        assert_eq!(loads, [0, 1, 2, 3].map(Turn::Load));
        // Both 0 and 2 go on; 0 is 11 % slower.
        assert_eq!(times[..3], [0, 2, 3].map(Turn::Time));
        assert_eq!(times[3..], [Turn::Time(2); ROUNDS - 1]);
        assert_eq!(measured.as_ref().map(|measured| measured.best), Some(2));
        assert_eq!(measured.map(|measured| measured.micros), Some(vec![Some(100.0), None, Some(90.0), Some(300.0)]));
    }

    #[test]
    fn long_work_is_tried_less_often_and_without_a_way_there_is_no_result() {
        let (turns, measured) = run(&[Some(2000.0)]);
        assert_eq!(turns.len(), 1 + ROUNDS_OF_LONG);
        assert_eq!(measured.map(|measured| measured.best), Some(0));
        assert_eq!(run(&[None, None]), ([0, 1].map(Turn::Load).to_vec(), None));
        assert_eq!(run(&[]), (vec![], None));
    }

    #[test]
    fn a_way_replaces_one_before_it_only_if_it_is_clearly_faster() {
        let micros = [Some(100.0), Some(99.5), None, Some(90.0), Some(89.9)];
        assert_eq!(least(&[0, 1], &micros), Some(0));
        assert_eq!(least(&[0, 1, 3, 4], &micros), Some(3));
        assert_eq!(least(&[2], &micros), None);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 9.0]), Some(3.0));
        assert_eq!(median(&mut []), None);
    }
}
