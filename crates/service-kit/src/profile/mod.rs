//! A profile of a process: what its threads did, and when, while somebody asks for it.
//!
//! Times are those of CLOCK_MONOTONIC, which all processes of a host share, so that spans of several processes lie on
//! one time line. While no profile runs, a [`Recorder::scope`] costs one relaxed load.

mod layer;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use proto::ProfileSpan;
use rustix::time::{ClockId, clock_gettime};

pub(crate) use layer::RequestSpans;

/// Spans that a process keeps; later ones are counted only.
const MOST: usize = 200_000;

/// Which steps a profile is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Steps to leave out at first.
    pub delay: u32,
    /// Steps to record after these; 0: all until the profile is stopped.
    pub most: u32,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPhase {
    /// It is left out.
    Skipped,
    /// It is recorded.
    Recorded,
}

/// What was recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The spans, by their ends.
    pub spans: Vec<ProfileSpan>,
    /// How many more there were than are kept.
    pub dropped: u64,
}

/// Records spans of this process while a profile runs; cloning shares.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    on: AtomicBool,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    steps: Steps,
    /// Steps so far.
    seen: u64,
    /// Spans of requests that have not ended, by their ids.
    open: HashMap<u64, ProfileSpan>,
    recorded: Recorded,
}

/// A part of a thread's time, from its making to its drop.
pub struct Scope {
    recorder: Recorder,
    name: &'static str,
    step: u64,
    begin_ns: u64,
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let now = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

impl Recorder {
    /// Begins to record, with nothing of what was recorded before.
    pub fn start(&self, steps: Steps) {
        *self.book() = Book { steps, ..Book::default() };
        self.shared.on.store(true, Ordering::Relaxed);
    }

    /// Ends recording, and returns what there is; spans of requests that go on end here.
    pub fn stop(&self) -> Recorded {
        let mut book = self.book();
        let is_open = book.is_open();
        let Book { open, mut recorded, .. } = std::mem::take(&mut *book);
        self.shared.on.store(false, Ordering::Relaxed);
        drop(book);
        let end_ns = now_ns();
        let open = open.into_values().filter(|_| is_open);
        recorded.spans.extend(open.map(|span| ProfileSpan { end_ns, ..span }));
        recorded
    }

    /// A request's span begins.
    fn open(&self, id: u64, span: ProfileSpan) {
        let mut book = self.book();
        if book.open.len() < MOST {
            book.open.insert(id, span);
        }
    }

    /// Its request is known.
    fn name_request(&self, id: u64, request_id: &str) {
        if let Some(span) = self.book().open.get_mut(&id) {
            request_id.clone_into(&mut span.request_id);
        }
    }

    /// It ends.
    fn close(&self, id: u64) {
        // Not in the match, where the book would stay locked.
        let closed = self.book().open.remove(&id);
        if let Some(span) = closed {
            self.add(ProfileSpan { end_ns: now_ns(), ..span });
        }
    }

    /// Whether a profile runs.
    pub fn is_on(&self) -> bool {
        self.shared.on.load(Ordering::Relaxed)
    }

    /// Counts a step; spans are recorded from the first that is not left out to the last that is wanted.
    pub fn step(&self) -> StepPhase {
        if !self.is_on() {
            return StepPhase::Skipped;
        }
        let mut book = self.book();
        book.seen += 1;
        if book.is_open() { StepPhase::Recorded } else { StepPhase::Skipped }
    }

    /// A span of this thread, until it is dropped; absent while no profile runs.
    pub fn scope(&self, name: &'static str) -> Option<Scope> {
        self.is_on().then(|| Scope { recorder: self.clone(), name, step: 0, begin_ns: now_ns() })
    }

    /// Adds a span, if it is of a step that is wanted.
    pub fn add(&self, span: ProfileSpan) {
        let mut book = self.book();
        if !self.is_on() || !book.is_open() {
            return;
        }
        let Recorded { spans, dropped } = &mut book.recorded;
        match spans.len() {
            MOST.. => *dropped += 1,
            _ => spans.push(span),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Whether the step under way is one of those that are wanted. Before the first step, and in processes without
    /// steps, that is so unless some are to be left out.
    fn is_open(&self) -> bool {
        let Steps { delay, most } = self.steps;
        let done = self.seen.saturating_sub(u64::from(delay));
        let has_begun = delay == 0 || self.seen > u64::from(delay);
        has_begun && (most == 0 || done <= u64::from(most))
    }
}

impl Scope {
    /// Names the step that it is part of.
    pub fn of_step(mut self, step: u64) -> Self {
        self.step = step;
        self
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        let span = ProfileSpan {
            name: self.name.to_owned(),
            track: this_thread(),
            begin_ns: self.begin_ns,
            end_ns: now_ns(),
            step: self.step,
            ..ProfileSpan::default()
        };
        self.recorder.add(span);
    }
}

/// The name of this thread.
fn this_thread() -> String {
    std::thread::current().name().unwrap_or("thread").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(steps: Steps, count: usize) -> Vec<u64> {
        let recorder = Recorder::default();
        recorder.start(steps);
        for step in 1..=count as u64 {
            recorder.step();
            drop(recorder.scope("step").map(|scope| scope.of_step(step)));
        }
        recorder.stop().spans.iter().map(|span| span.step).collect()
    }

    #[test]
    fn spans_are_kept_while_a_profile_runs() {
        let recorder = Recorder::default();
        assert!(recorder.scope("before").is_none());
        recorder.start(Steps::default());
        let outer = recorder.scope("outer");
        drop(recorder.scope("inner"));
        drop(outer);
        let Recorded { spans, dropped } = recorder.stop();
        let [inner, outer] = spans.as_slice() else { panic!("{spans:?}") };
        assert_eq!((inner.name.as_str(), outer.name.as_str(), dropped), ("inner", "outer", 0));
        assert!(outer.begin_ns <= inner.begin_ns && inner.end_ns <= outer.end_ns);
        assert!(recorder.stop().spans.is_empty(), "they are given once");
    }

    #[test]
    fn what_began_in_a_profile_that_ended_is_not_part_of_it() {
        let recorder = Recorder::default();
        recorder.start(Steps::default());
        let late = recorder.scope("late");
        assert!(recorder.stop().spans.is_empty());
        drop(late);
        assert!(recorder.stop().spans.is_empty());
    }

    #[test]
    fn steps_are_chosen() {
        assert_eq!(recorded(Steps::default(), 3), [1, 2, 3]);
        assert_eq!(recorded(Steps { delay: 2, most: 0 }, 4), [3, 4]);
        assert_eq!(recorded(Steps { delay: 1, most: 2 }, 5), [2, 3]);
        assert_eq!(recorded(Steps { delay: 0, most: 1 }, 5), [1]);
    }

    #[test]
    fn memory_is_bounded() {
        let recorder = Recorder::default();
        recorder.start(Steps::default());
        for _ in 0..MOST + 3 {
            recorder.add(ProfileSpan::default());
        }
        let Recorded { spans, dropped } = recorder.stop();
        assert_eq!((spans.len(), dropped), (MOST, 3));
    }
}
