//! Which of several ways to do the same work is the fastest on this device.
//!
//! Ways are tried in turn, round after round, so that a clock that moves (a GPU throttles by power) moves for all of them; medians count.
//! Before each try the device's cache is overwritten: in a step, weights come from memory. That also keeps the device busy while the host queues
//! what follows, so that what is timed is the device's work and not the host's.

use super::context::{Event, Memory};
use super::device::Device;

/// Rounds that are timed at most, after one that only loads code.
const ROUNDS: usize = 5;
/// From so many microseconds on, fewer: longer work varies less.
const LONG: f64 = 500.0;
const ROUNDS_OF_LONG: usize = 3;
/// How often the cache is overwritten before a round, when the device has nothing else to do.
const LEADS: usize = 8;
/// After one timed round, ways this much slower than the fastest are given up.
const HOPELESS: f64 = 1.1;
/// What a way must be faster by to replace one before it: the first is what would be taken without measuring.
const MARGIN: f64 = 0.99;

/// What each way took.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Measured {
    /// The fastest way.
    pub(crate) best: usize,
    /// Median microseconds of each; of those given up, the first time; none where a way cannot be taken.
    pub(crate) micros: Vec<Option<f64>>,
}

impl Measured {
    /// For people.
    pub(crate) fn text(&self) -> String {
        let times = self.micros.iter().map(|micros| micros.map_or("-".to_owned(), |micros| format!("{micros:.1}")));
        format!("way {} of, in microseconds: {}", self.best, times.collect::<Vec<_>>().join(" "))
    }
}

/// Tries `count` ways, each of which `run` queues (false: it cannot be taken), and waits for them. `evict`: memory as large as the device's
/// cache, whose content does not matter. None where nothing can be measured: while a step is recorded, or with a driver too old to tell the time.
pub(crate) fn fastest(
    device: &mut Device,
    evict: &Memory,
    count: usize,
    mut run: impl FnMut(&mut Device, usize) -> bool,
) -> Option<Measured> {
    if device.is_recording() || device.fault().is_some() || !device.context.tells_time() {
        return None;
    }
    let mut possible: Vec<usize> = (0..count).filter(|way| run(device, *way)).collect();
    let mut times = vec![Vec::new(); count];
    let mut round = 0;
    loop {
        (0..LEADS).for_each(|_| device.clear(evict));
        let tries: Vec<(usize, Event, Event)> = possible
            .iter()
            .map(|&way| {
                device.clear(evict);
                let start = stamp(device)?;
                run(device, way);
                Some((way, start, stamp(device)?))
            })
            .collect::<Option<_>>()?;
        device.synchronize();
        for (way, start, end) in tries {
            times[way].push(device.attempt(|| "timing products".to_owned(), |_| end.micros_since(&start))?);
        }
        let least = possible.iter().map(|way| times[*way][0]).min_by(f64::total_cmp)?;
        possible.retain(|way| times[*way][0] <= least * HOPELESS);
        round += 1;
        if round >= if least < LONG { ROUNDS } else { ROUNDS_OF_LONG } {
            break;
        }
    }
    let micros: Vec<Option<f64>> = times.iter_mut().map(|times| median(times)).collect();
    let best = least(&possible, &micros)?;
    Some(Measured { best, micros })
}

fn stamp(device: &mut Device) -> Option<Event> {
    device.attempt(|| "timing products".to_owned(), Event::stamp)
}

fn median(times: &mut [f64]) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// The way of the least time, or one before it that is hardly slower.
fn least(possible: &[usize], micros: &[Option<f64>]) -> Option<usize> {
    let mut found: Option<(usize, f64)> = None;
    for &way in possible {
        let Some(time) = micros[way] else { continue };
        if found.is_none_or(|(_, least)| time < least * MARGIN) {
            found = Some((way, time));
        }
    }
    found.map(|(way, _)| way)
}

#[cfg(test)]
mod tests {
    use super::*;

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
