//! Sequences whose tokens are guided: by a constraint (structured output), by a budget of reasoning, or both.
//!
//! ```text
//! mask()           which tokens may come next: computed while the device runs the forward pass
//! accept(token)    the token that was sampled; the next mask depends on it, and is computed from it
//! take_forced()    what must follow the accepted token, where the grammar leaves one way
//! ```
//!
//! Every rank guides its sequences by itself: masks depend on the tokens alone, which all ranks have.

mod budget;
mod grammars;

use std::sync::{Arc, mpsc};

use grammar::{Compiler, Matcher, TokenMask};
use sampling::Allowed;

use self::budget::Budget;
pub(crate) use self::grammars::Grammars;

/// Forced tokens that come at once, with the sampled one: fewer would not save a step, since one runs ahead.
const FORCED: std::ops::RangeInclusive<usize> = 3..=1 + proto::MOST_FORCED_TOKENS as usize;

/// Masks that a thread computes at least: starting it takes as long as one of them.
const MASKS_A_THREAD: usize = 4;

/// What a sequence may say next.
pub(crate) struct Guide {
    state: State,
    mask: Mask,
    /// Tokens that came since the mask was computed.
    unseen: Vec<u32>,
    /// Forced tokens may come without being sampled.
    jumps: bool,
    /// Those that must follow the only token that may come next.
    forced: Vec<u32>,
    /// Why the sequence cannot go on; told once.
    failure: Option<String>,
    has_failed: bool,
}

enum State {
    /// It is being compiled.
    Waiting(mpsc::Receiver<Result<Ready, String>>),
    Ready(Box<Ready>),
    /// It cannot go on: nothing but its end may follow.
    Failed,
}

/// A guide's parts, behind all tokens so far.
struct Ready {
    matcher: Option<Matcher>,
    budget: Option<Budget>,
    compiler: Arc<Compiler>,
}

/// Which tokens may come next.
enum Mask {
    All,
    Some(TokenMask),
    Only(u32),
}

/// A guide on loan from its slot.
pub(crate) struct Lent {
    pub slot: u32,
    pub guide: Box<Guide>,
}

/// Computes masks, side by side where there are many.
pub(crate) fn compute_masks(guides: &mut [Lent], threads: usize) {
    let share = guides.len().div_ceil(threads.max(1)).max(MASKS_A_THREAD);
    if guides.len() <= share {
        return guides.iter_mut().for_each(|lent| lent.guide.compute_mask());
    }
    std::thread::scope(|scope| {
        for part in guides.chunks_mut(share) {
            scope.spawn(|| part.iter_mut().for_each(|lent| lent.guide.compute_mask()));
        }
    });
}

impl Guide {
    fn waiting(ready: mpsc::Receiver<Result<Ready, String>>) -> Self {
        Self {
            state: State::Waiting(ready),
            mask: Mask::All,
            unseen: Vec::new(),
            jumps: false,
            forced: Vec::new(),
            failure: None,
            has_failed: false,
        }
    }

    /// Finds tokens that must come, too, from its next mask on.
    pub(crate) fn jumping(self) -> Self {
        Self { jumps: true, ..self }
    }

    /// Computes which tokens may come next. Waits for the compiler where it is not done yet.
    pub(crate) fn compute_mask(&mut self) {
        if let State::Waiting(ready) = &self.state {
            let ready = ready.recv().unwrap_or_else(|_| Err("the compiler of constraints is gone".to_owned()));
            match ready {
                Ok(ready) => self.state = State::Ready(Box::new(ready)),
                Err(reason) => self.fail(reason),
            }
        }
        let State::Ready(ready) = &mut self.state else { return };
        let accepted = self.unseen.drain(..).try_for_each(|token| ready.accept(token));
        self.forced.clear();
        if self.jumps && accepted.is_ok() {
            self.forced = ready.forced();
        }
        let mask = match self.forced.first() {
            Some(first) => Ok(Mask::Only(*first)),
            None => accepted.and_then(|()| ready.mask()),
        };
        match mask {
            Ok(mask) => self.mask = mask,
            Err(reason) => self.fail(reason),
        }
    }

    /// What was computed last.
    pub(crate) fn allowed(&self) -> Allowed<'_> {
        match &self.mask {
            Mask::All => Allowed::All,
            Mask::Some(mask) => Allowed::Some(mask.words()),
            Mask::Only(token) => Allowed::Only(*token),
        }
    }

    /// A token was sampled. What it allows is found out with the next mask.
    pub(crate) fn accept(&mut self, token: u32) {
        self.unseen.push(token);
    }

    /// The tokens that must follow the one that was accepted last, and count as accepted now.
    pub(crate) fn take_forced(&mut self) -> Vec<u32> {
        let mut forced = std::mem::take(&mut self.forced);
        if forced.is_empty() || forced.first() != self.unseen.last() {
            return Vec::new();
        }
        forced.remove(0);
        self.unseen.extend_from_slice(&forced);
        forced
    }

    /// Why the sequence cannot go on, once.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    fn fail(&mut self, reason: String) {
        // The sequence is ended by the scheduler; until it is, it gets a token that is there.
        let end = match &self.state {
            State::Ready(ready) => ready.compiler.vocabulary().end_token(),
            State::Waiting(_) | State::Failed => 0,
        };
        (self.state, self.mask) = (State::Failed, Mask::Only(end));
        if !std::mem::replace(&mut self.has_failed, true) {
            self.failure = Some(reason);
        }
    }
}

impl Ready {
    fn mask(&mut self) -> Result<Mask, String> {
        if let Some(token) = self.budget.as_ref().and_then(Budget::forced) {
            return Ok(Mask::Only(token));
        }
        match &mut self.matcher {
            Some(matcher) => matcher.mask().map(Mask::Some).map_err(|error| error.to_string()),
            None => Ok(Mask::All),
        }
    }

    /// Tokens that must come next, if they are worth it.
    fn forced(&mut self) -> Vec<u32> {
        let Some(matcher) = self.matcher.as_mut().filter(|_| self.budget.is_none()) else { return Vec::new() };
        let mut forced = matcher.forced();
        forced.truncate(*FORCED.end());
        if FORCED.contains(&forced.len()) { forced } else { Vec::new() }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        if let Some(budget) = &mut self.budget {
            budget.accept(token, self.compiler.vocabulary().shown(token));
        }
        match &mut self.matcher {
            Some(matcher) => matcher.accept(token).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}
