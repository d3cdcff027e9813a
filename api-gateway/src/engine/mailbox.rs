//! The mailbox of one HTTP answer: events wait in it until the connection's task writes them. Waiting events are
//! merged, so a slow reader costs at most its own text.

use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use proto::{Admitted, Delta, DeltaDetails, Failure, FinishReason, TextLogprobs};

use super::timings::Timings;

/// What one choice grew by since it was last looked at.
#[derive(Debug, Default, PartialEq)]
pub struct ChoiceUpdate {
    /// New text.
    pub text: String,
    /// Tokens that the growth stands for.
    pub tokens: u32,
    /// Their ids, when asked for.
    pub token_ids: Vec<u32>,
    /// Why the choice ended, if it did.
    pub finish: Option<FinishReason>,
    /// What few updates have, apart so that the usual one, of which there are as many as writes, is small. Read it with
    /// [`Self::details`].
    pub details: Option<Box<DeltaDetails>>,
    /// Where its time went, once it ended.
    pub timings: Option<Box<Timings>>,
}

/// The details of an update without any.
static NO_DETAILS: DeltaDetails = DeltaDetails {
    logprobs: Vec::new(),
    prompt_logprobs: Vec::new(),
    stop_text: None,
    stop_token: None,
    pooled: Vec::new(),
};

impl ChoiceUpdate {
    /// Log-probabilities, what was pooled, what stopped it.
    pub fn details(&self) -> &DeltaDetails {
        self.details.as_deref().unwrap_or(&NO_DETAILS)
    }

    /// Takes the log-probabilities of the prompt, which come once, when asked for.
    pub fn take_prompt_logprobs(&mut self) -> Vec<TextLogprobs> {
        self.details.as_mut().map(|details| std::mem::take(&mut details.prompt_logprobs)).unwrap_or_default()
    }

    fn add(&mut self, delta: Delta) {
        let finish = delta.finish();
        if self.text.is_empty() {
            self.text = delta.text;
        } else {
            self.text.push_str(&delta.text);
        }
        self.tokens += delta.token_count;
        append(&mut self.token_ids, delta.token_ids);
        if finish != FinishReason::Unspecified {
            self.finish = Some(finish);
        }
        match (&mut self.details, delta.details) {
            (_, None) => {}
            (Some(held), Some(details)) => add_details(held, *details),
            (none, details) => *none = details,
        }
    }
}

fn add_details(held: &mut DeltaDetails, details: DeltaDetails) {
    let DeltaDetails { logprobs, prompt_logprobs, stop_text, stop_token, pooled } = details;
    append(&mut held.logprobs, logprobs);
    append(&mut held.prompt_logprobs, prompt_logprobs);
    append(&mut held.pooled, pooled);
    held.stop_text = stop_text.or(held.stop_text.take());
    held.stop_token = stop_token.or(held.stop_token);
}

fn append<T>(to: &mut Vec<T>, mut from: Vec<T>) {
    if to.is_empty() {
        *to = from;
    } else {
        to.append(&mut from);
    }
}

/// The result of a poll. Keep it and pass it again: its buffers are reused.
#[derive(Debug, Default)]
pub struct Update {
    /// Prompts that were admitted: which of the answer's, and the facts.
    pub admitted: Vec<(u32, Admitted)>,
    /// Choices that grew, with what they grew by.
    pub grown: Vec<(u32, ChoiceUpdate)>,
    /// How the answer ended, once it did.
    pub ending: Option<Ending>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// Every choice finished.
    Complete,
    /// A part of it failed, and the whole with it.
    Failed(Failure),
}

/// An event of one of the answer's requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// A prompt was admitted.
    Admitted {
        /// Which of the answer's prompts.
        prompt: u32,
        /// The facts.
        admitted: Box<Admitted>,
    },
    /// A choice grew; `choice` counts those of all prompts. Nothing follows for a choice that finished.
    Delta {
        /// What it grew by.
        delta: Delta,
        /// Where its time went, if it finished.
        timings: Option<Box<Timings>>,
    },
    /// A part of the answer failed.
    Failure(Failure),
}

/// When the writer wants to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeAt {
    /// At every event: it streams.
    Update,
    /// When all is there.
    Ending,
}

/// The events of one answer, from the link's task to the connection's.
pub struct Mailbox {
    inbox: Mutex<Inbox>,
}

struct Inbox {
    wake_at: WakeAt,
    waker: Option<Waker>,
    admitted: Vec<(u32, Admitted)>,
    growth: Vec<ChoiceUpdate>,
    /// Choices with growth, each once, in order of arrival; not those of which only the first parts of a delta came.
    grown: Vec<u32>,
    /// Whether a choice is one of them.
    is_grown: Vec<bool>,
    unfinished: u32,
    failure: Option<Failure>,
}

impl Mailbox {
    /// A mailbox for `choices` choices.
    pub fn new(choices: u32, wake_at: WakeAt) -> Self {
        Self {
            inbox: Mutex::new(Inbox {
                wake_at,
                waker: None,
                admitted: Vec::new(),
                growth: (0..choices).map(|_| ChoiceUpdate::default()).collect(),
                grown: Vec::new(),
                is_grown: vec![false; choices as usize],
                unfinished: choices,
                failure: None,
            }),
        }
    }

    /// Takes an event of a request. Returns whom to wake.
    pub fn deliver(&self, delivery: Delivery) -> Option<Waker> {
        match delivery {
            Delivery::Admitted { prompt, admitted } => self.admit(prompt, *admitted),
            Delivery::Delta { delta, timings } => {
                if let Some(timings) = timings {
                    self.time(delta.choice, timings);
                }
                self.grow(delta.choice, delta)
            }
            Delivery::Failure(failure) => self.fail(failure),
        }
    }

    /// A prompt was admitted. Returns whom to wake.
    pub fn admit(&self, prompt: u32, admitted: Admitted) -> Option<Waker> {
        let mut inbox = self.inbox.lock();
        inbox.admitted.push((prompt, admitted));
        inbox.waker_for_news()
    }

    /// A choice grew. The caller never sends more for a choice that finished. Returns whom to wake.
    pub fn grow(&self, choice: u32, delta: Delta) -> Option<Waker> {
        let mut inbox = self.inbox.lock();
        let inbox = &mut *inbox;
        let (slot, is_grown) = inbox.growth.get_mut(choice as usize).zip(inbox.is_grown.get_mut(choice as usize))?;
        let more = delta.more;
        slot.add(delta);
        if more {
            return None;
        }
        let finished = slot.finish.is_some();
        if !slot.is_empty() && !std::mem::replace(is_grown, true) {
            inbox.grown.push(choice);
        }
        inbox.unfinished -= u32::from(finished);
        if inbox.unfinished == 0 { inbox.waker.take() } else { inbox.waker_for_news() }
    }

    fn time(&self, choice: u32, timings: Box<Timings>) {
        if let Some(slot) = self.inbox.lock().growth.get_mut(choice as usize) {
            slot.timings = Some(timings);
        }
    }

    /// A part of the answer failed; the first failure counts. Returns whom to wake.
    pub fn fail(&self, failure: Failure) -> Option<Waker> {
        let mut inbox = self.inbox.lock();
        if inbox.unfinished == 0 || inbox.failure.is_some() {
            return None;
        }
        inbox.failure = Some(failure);
        inbox.waker.take()
    }

    /// Moves what is new into `update` (emptied first), or registers the task to be woken when something is.
    pub fn poll(&self, context: &mut Context<'_>, update: &mut Update) -> Poll<()> {
        update.admitted.clear();
        update.grown.clear();
        update.ending = None;
        let mut inbox = self.inbox.lock();
        if !inbox.is_due() {
            match &mut inbox.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        let Inbox { admitted, growth, grown, is_grown, unfinished, failure, .. } = &mut *inbox;
        update.admitted.append(admitted);
        update.grown.extend(grown.drain(..).map(|choice| {
            is_grown[choice as usize] = false;
            (choice, std::mem::take(&mut growth[choice as usize]))
        }));
        update.ending = match failure.take() {
            Some(failure) => Some(Ending::Failed(failure)),
            None => (*unfinished == 0).then_some(Ending::Complete),
        };
        Poll::Ready(())
    }

    /// Whether [`Mailbox::poll`] would bring something; registers the task when not.
    pub fn poll_due(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inbox = self.inbox.lock();
        if inbox.is_due() {
            return Poll::Ready(());
        }
        inbox.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The failure, if the answer failed before anything else came of it.
    pub fn early_failure(&self) -> Option<Failure> {
        let inbox = self.inbox.lock();
        if inbox.grown.is_empty() { inbox.failure.clone() } else { None }
    }
}

impl ChoiceUpdate {
    /// Every delta stands for a token, or ends the choice, or brings text.
    fn is_empty(&self) -> bool {
        let nothing = self.tokens == 0 && self.finish.is_none() && self.text.is_empty();
        nothing && self.details().prompt_logprobs.is_empty()
    }
}

impl Inbox {
    fn is_due(&self) -> bool {
        let over = self.unfinished == 0 || self.failure.is_some();
        over || (self.wake_at == WakeAt::Update && !(self.grown.is_empty() && self.admitted.is_empty()))
    }

    fn waker_for_news(&mut self) -> Option<Waker> {
        if self.wake_at == WakeAt::Update { self.waker.take() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(text: &str, finish: FinishReason) -> Delta {
        Delta { text: text.into(), token_count: 1, finish: finish.into(), ..Delta::default() }
    }

    fn look(mailbox: &Mailbox) -> Option<Update> {
        let mut update = Update::default();
        let mut context = Context::from_waker(Waker::noop());
        mailbox.poll(&mut context, &mut update).is_ready().then_some(update)
    }

    #[test]
    fn what_waits_is_merged() {
        let mailbox = Mailbox::new(2, WakeAt::Update);
        assert!(look(&mailbox).is_none());
        mailbox.grow(1, delta("b", FinishReason::Unspecified));
        mailbox.grow(0, delta("x", FinishReason::Unspecified));
        mailbox.grow(1, delta("c", FinishReason::Length));
        let update = look(&mailbox).expect("update");
        assert_eq!(update.grown.len(), 2);
        let (choice, growth) = &update.grown[0];
        assert_eq!((*choice, growth.text.as_str(), growth.tokens), (1, "bc", 2));
        assert_eq!(growth.finish, Some(FinishReason::Length));
        assert_eq!(update.ending, None);
        mailbox.grow(0, delta("", FinishReason::Stop));
        assert_eq!(look(&mailbox).expect("update").ending, Some(Ending::Complete));
    }

    #[test]
    fn a_delta_in_parts_is_one() {
        let details = |offset| {
            let prompt_logprobs = vec![proto::TextLogprobs { text_offset: offset, ..Default::default() }];
            Some(DeltaDetails { prompt_logprobs, ..DeltaDetails::default() }.into())
        };
        let part = |offset| Delta { details: details(offset), more: true, ..Delta::default() };
        for wake_at in [WakeAt::Update, WakeAt::Ending] {
            let mailbox = Mailbox::new(2, wake_at);
            mailbox.grow(0, part(0));
            assert!(look(&mailbox).is_none(), "{wake_at:?}: a part is no update");
            mailbox.grow(0, part(1));
            mailbox.grow(1, delta("y", FinishReason::Length));
            mailbox.grow(0, Delta { more: true, ..delta("a", FinishReason::Unspecified) });
            mailbox.grow(0, Delta { details: details(2), ..delta("b", FinishReason::Stop) });
            let update = look(&mailbox).expect("update");
            let (_, whole) = update.grown.iter().find(|(choice, _)| *choice == 0).expect("the choice grew");
            let offsets: Vec<u32> = whole.details().prompt_logprobs.iter().map(|one| one.text_offset).collect();
            assert_eq!((whole.text.as_str(), whole.tokens, offsets), ("ab", 2, vec![0, 1, 2]));
            assert_eq!((update.grown.len(), update.ending), (2, Some(Ending::Complete)));
        }
    }

    #[test]
    fn a_writer_that_waits_for_the_end_sleeps_until_then() {
        let mailbox = Mailbox::new(1, WakeAt::Ending);
        let mut context = Context::from_waker(Waker::noop());
        assert!(mailbox.poll_due(&mut context).is_pending());
        assert!(mailbox.admit(0, Admitted::default()).is_none());
        assert!(mailbox.grow(0, delta("a", FinishReason::Unspecified)).is_none());
        assert!(mailbox.grow(0, delta("b", FinishReason::Stop)).is_some());
        let update = look(&mailbox).expect("update");
        assert_eq!(update.grown[0].1.text, "ab");
        assert_eq!(update.admitted.len(), 1);
    }

    #[test]
    fn a_failure_comes_after_the_text_and_only_once() {
        let mailbox = Mailbox::new(1, WakeAt::Update);
        mailbox.grow(0, delta("a", FinishReason::Unspecified));
        let failure = Failure { message: "lost".into(), ..Failure::default() };
        mailbox.fail(failure.clone());
        mailbox.fail(Failure::default());
        let update = look(&mailbox).expect("update");
        assert_eq!(update.grown[0].1.text, "a");
        assert_eq!(update.ending, Some(Ending::Failed(failure)));
    }

    #[test]
    fn a_failure_after_the_end_is_nothing() {
        let mailbox = Mailbox::new(1, WakeAt::Update);
        mailbox.grow(0, delta("a", FinishReason::Stop));
        mailbox.fail(Failure::default());
        assert_eq!(look(&mailbox).expect("update").ending, Some(Ending::Complete));
    }
}
