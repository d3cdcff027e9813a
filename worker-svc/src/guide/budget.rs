//! A budget of reasoning: when it is spent, the marker that ends the reasoning is forced.

use proto::{Reasoning, reasoning::Start};

/// Counts the tokens of a sequence's reasoning.
pub(crate) struct Budget {
    tokens: u32,
    open: Vec<Vec<u8>>,
    close: Vec<Vec<u8>>,
    forced: Vec<u32>,
    /// The end of the text, as long as a marker can be.
    tail: Vec<u8>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It may begin.
    Before,
    /// So many tokens of it came.
    Inside(u32),
    /// It is being ended: this many tokens of the marker came.
    Ending(usize),
    Over,
}

impl Budget {
    /// Of a request's reasoning; absent: it may be of any length.
    pub(super) fn new(reasoning: Reasoning) -> Option<Self> {
        let bytes = |markers: &[String]| markers.iter().map(|marker| marker.trim().as_bytes().to_vec()).collect();
        let state = match reasoning.start() {
            Start::None => return None,
            Start::MayOpen => State::Before,
            Start::Open => State::Inside(0),
        };
        let (open, close) = (bytes(&reasoning.open), bytes(&reasoning.close));
        let forced = reasoning.forced.unwrap_or_default().ids;
        Some(Self { tokens: reasoning.budget?, open, close, forced, tail: Vec::new(), state })
    }

    /// The only token that may come next, where the budget is spent.
    pub(super) fn forced(&self) -> Option<u32> {
        match self.state {
            State::Inside(count) if count >= self.tokens => self.forced.first().copied(),
            State::Ending(at) => self.forced.get(at).copied(),
            _ => None,
        }
    }

    /// A token came, which shows as these bytes.
    pub(super) fn accept(&mut self, token: u32, shown: &[u8]) {
        if self.forced() == Some(token) {
            let at = if let State::Ending(at) = self.state { at + 1 } else { 1 };
            self.state = if at < self.forced.len() { State::Ending(at) } else { State::Over };
            return;
        }
        match self.state {
            State::Before => self.look_for_begin(shown),
            State::Inside(count) => {
                self.tail.extend_from_slice(shown);
                self.state = if self.holds(&self.close) { State::Over } else { State::Inside(count + 1) };
                let longest = self.close.iter().map(Vec::len).max().unwrap_or(0);
                let surplus = self.tail.len().saturating_sub(longest);
                self.tail.drain(..surplus);
            }
            State::Ending(_) | State::Over => {}
        }
    }

    /// Reasoning begins with a marker at the very beginning, or not at all.
    fn look_for_begin(&mut self, shown: &[u8]) {
        self.tail.extend_from_slice(shown.trim_ascii());
        if self.open.iter().any(|marker| !marker.is_empty() && self.tail.starts_with(marker)) {
            (self.state, self.tail) = (State::Inside(0), Vec::new());
        } else if !self.open.iter().any(|marker| marker.starts_with(&self.tail)) {
            self.state = State::Over;
        }
    }

    fn holds(&self, markers: &[Vec<u8>]) -> bool {
        let holds = |marker: &Vec<u8>| {
            !marker.is_empty() && self.tail.windows(marker.len()).any(|window| window == marker.as_slice())
        };
        markers.iter().any(holds)
    }
}

#[cfg(test)]
mod tests {
    use proto::TokenIds;

    use super::*;

    fn budget(start: Start, tokens: u32) -> Budget {
        let reasoning = Reasoning {
            start: start.into(),
            open: vec!["<think>".to_owned()],
            close: vec!["</think>".to_owned()],
            budget: Some(tokens),
            forced: Some(TokenIds { ids: vec![7, 8] }),
            ..Reasoning::default()
        };
        Budget::new(reasoning).expect("a budget")
    }

    #[test]
    fn the_marker_follows_the_last_token_of_the_budget() {
        let mut budget = budget(Start::Open, 2);
        for (token, forced) in [(1, None), (2, None), (7, Some(7)), (8, Some(8)), (9, None)] {
            assert_eq!(budget.forced(), forced);
            budget.accept(token, b"hm");
        }
        assert_eq!(budget.state, State::Over);
    }

    #[test]
    fn reasoning_that_ends_by_itself_is_not_ended_again() {
        let mut budget = budget(Start::Open, 3);
        for shown in [b"a <" as &[u8], b"/thi", b"nk> yes", b"b", b"c"] {
            assert_eq!(budget.forced(), None);
            budget.accept(1, shown);
        }
        assert_eq!(budget.state, State::Over);
    }

    #[test]
    fn it_counts_from_where_reasoning_begins() {
        let mut begun = budget(Start::MayOpen, 1);
        for shown in [b"\n" as &[u8], b"<th", b"ink>", b"hm"] {
            assert_eq!(begun.forced(), None);
            begun.accept(1, shown);
        }
        assert_eq!(begun.forced(), Some(7));
        let mut none = budget(Start::MayOpen, 0);
        none.accept(1, b"Hello <think>");
        assert_eq!((none.state, none.forced()), (State::Over, None));
        assert_eq!(budget(Start::Open, 0).forced(), Some(7));
    }
}
