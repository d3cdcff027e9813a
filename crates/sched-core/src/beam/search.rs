//! Beam search over one prompt, as a state machine: candidates in, the next beams or the best texts out.
//!
//! The rules are those of Hugging Face's `generate` with `num_beams`. A step looks at the best candidates of all beams
//! together, by the sum of their log-probabilities. Of the `width` best ones, those that end are kept as hypotheses,
//! whose scores are divided by their length to the power of `length_penalty`. The `width` best that do not end are the
//! next beams. The search is over when no beam is left, or when `width` hypotheses are there and the best beam cannot
//! become better than the worst of them ([`EarlyStopping`] says how that is judged).
//!
//! A beam's sequence is a *record* of the scheduler, numbered `0 .. width`. The first continuation of a beam stays in
//! its record, others take records of beams that are not continued, then unused ones.

use proto::{EarlyStopping, TokenLogprobs};

/// "No token": the parent of first tokens.
const ROOT: u32 = u32::MAX;

/// What a search was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Beams, and hypotheses, at most.
    pub width: u32,
    /// Exponent of the length that scores are divided by.
    pub length_penalty: f64,
    pub early_stopping: EarlyStopping,
    /// Tokens of a hypothesis at most.
    pub max_tokens: u32,
    /// Candidates of all beams that a step looks at: enough that `width` of them go on, whatever ends.
    pub considered: u32,
    /// Most likely tokens to report beside a chosen one; absent: no log-probabilities.
    pub logprobs: Option<u32>,
}

/// Tokens that may continue a beam, most likely first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<f32>,
}

/// Why a hypothesis is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Its last token ends a text; it is shown if it is not the tokenizer's own end of text.
    Stop(Option<u32>),
    /// It has as many tokens as it may have.
    Length,
}

/// A beam of the next step: `record` continues what `from` had, with `token`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub record: u32,
    pub from: u32,
    pub token: u32,
}

impl Move {
    pub fn stays(&self) -> bool {
        self.record == self.from
    }
}

/// What a step led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The next beams, best first.
    GoesOn(Vec<Move>),
    /// [`Search::best`] has the texts.
    Over,
}

/// A complete text.
#[derive(Clone, Debug)]
pub(crate) struct Hypothesis {
    node: u32,
    score: f64,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug)]
struct Beam {
    record: u32,
    node: u32,
    /// Sum of log-probabilities.
    score: f64,
}

/// A chosen token. Texts share their beginnings, so they are kept as a tree.
#[derive(Clone, Debug)]
struct Node {
    parent: u32,
    token: u32,
    logprobs: Option<Box<TokenLogprobs>>,
}

/// A candidate of one of the beams.
#[derive(Clone, Copy, Debug)]
struct Continuation {
    beam: usize,
    /// Its place among the beam's candidates.
    at: usize,
    token: u32,
    score: f64,
}

/// The state of a search.
#[derive(Debug)]
pub(crate) struct Search {
    rules: Rules,
    beams: Vec<Beam>,
    /// Best first, `width` at most.
    hypotheses: Vec<Hypothesis>,
    nodes: Vec<Node>,
    /// Tokens of every beam.
    length: u32,
}

impl Search {
    /// One beam without a token, in record 0.
    pub fn new(rules: Rules) -> Self {
        let beams = vec![Beam { record: 0, node: ROOT, score: 0.0 }];
        Self { rules, beams, hypotheses: Vec::new(), nodes: Vec::new(), length: 0 }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Records of the beams, best first.
    pub fn records(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.beams.iter().map(|beam| beam.record)
    }

    /// A step. `of` gives a record's candidates, `ends` whether a token ends a text that is then this many tokens long.
    pub fn advance<'c>(
        &mut self,
        of: impl Fn(u32) -> &'c Candidates,
        ends: impl Fn(u32, u32) -> Option<Ending>,
    ) -> Outcome {
        let all: Vec<&Candidates> = self.beams.iter().map(|beam| of(beam.record)).collect();
        let best = self.best_continuations(&all);
        self.length += 1;
        let width = self.rules.width as usize;
        let mut next = Vec::with_capacity(width);
        for (rank, found) in best.into_iter().enumerate() {
            let at_limit = (self.length >= self.rules.max_tokens).then_some(Ending::Length);
            match ends(found.token, self.length).or(at_limit) {
                Some(ending) if rank < width => self.keep(&found, all[found.beam], ending),
                None if next.len() < width => next.push(found),
                _ => {}
            }
        }
        if self.is_over(next.first()) {
            self.beams.clear();
            return Outcome::Over;
        }
        Outcome::GoesOn(self.assign(next, &all))
    }

    /// The `n` best texts: their tokens with log-probabilities where asked for, and why each is complete.
    pub fn best(&self, n: usize) -> impl Iterator<Item = (Vec<ChosenToken<'_>>, Ending)> {
        self.hypotheses.iter().take(n).map(|hypothesis| (self.text(hypothesis.node), hypothesis.ending))
    }

    /// Continuations of all beams, best first, as many as a step looks at. Among equals, those of better beams and of
    /// lower tokens come first.
    fn best_continuations(&self, all: &[&Candidates]) -> Vec<Continuation> {
        let mut found: Vec<Continuation> = Vec::with_capacity(all.iter().map(|one| one.tokens.len()).sum());
        for (beam, (state, candidates)) in self.beams.iter().zip(all).enumerate() {
            let scored = candidates.tokens.iter().zip(&candidates.logprobs).enumerate();
            found.extend(scored.map(|(at, (token, logprob))| Continuation {
                beam,
                at,
                token: *token,
                score: state.score + f64::from(*logprob),
            }));
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then((a.beam, a.token).cmp(&(b.beam, b.token))));
        found.truncate(self.rules.considered as usize);
        found
    }

    fn keep(&mut self, found: &Continuation, candidates: &Candidates, ending: Ending) {
        let score = self.score_at(found.score, self.length);
        let place = self.hypotheses.partition_point(|other| other.score >= score);
        if place < self.rules.width as usize {
            let node = self.add_node(found, candidates);
            self.hypotheses.insert(place, Hypothesis { node, score, ending });
            self.hypotheses.truncate(self.rules.width as usize);
        }
    }

    fn score_at(&self, sum: f64, length: u32) -> f64 {
        sum / f64::from(length).powf(self.rules.length_penalty)
    }

    fn is_over(&self, best: Option<&Continuation>) -> bool {
        let Some(best) = best else { return true };
        let worst = self.hypotheses.last().filter(|_| self.hypotheses.len() == self.rules.width as usize);
        let Some(worst) = worst else { return false };
        let length = match self.rules.early_stopping {
            EarlyStopping::WhenFull => return true,
            // A longer text may have the better score.
            EarlyStopping::Never if self.rules.length_penalty > 0.0 => self.rules.max_tokens,
            EarlyStopping::Never | EarlyStopping::Heuristic => self.length,
        };
        self.score_at(best.score, length) <= worst.score
    }

    /// Makes the continuations the beams.
    fn assign(&mut self, next: Vec<Continuation>, all: &[&Candidates]) -> Vec<Move> {
        let continued = |beam: usize| next.iter().any(|one| one.beam == beam);
        let dropped = self.beams.iter().enumerate().filter(|(beam, _)| !continued(*beam)).map(|(_, beam)| beam.record);
        let unused = (0..self.rules.width).filter(|record| self.records().all(|used| used != *record));
        let mut free = dropped.chain(unused).collect::<Vec<u32>>().into_iter();
        let mut stayed = vec![false; self.beams.len()];
        let before = self.beams.clone();
        let mut moves = Vec::with_capacity(next.len());
        self.beams.clear();
        for found in &next {
            let from = before[found.beam].record;
            let stays = !std::mem::replace(&mut stayed[found.beam], true);
            let record = if stays { from } else { free.next().expect("a record for each of `width` beams") };
            moves.push(Move { record, from, token: found.token });
            let node = self.add_node_after(before[found.beam].node, found, all[found.beam]);
            self.beams.push(Beam { record, node, score: found.score });
        }
        moves
    }

    fn add_node(&mut self, found: &Continuation, candidates: &Candidates) -> u32 {
        self.add_node_after(self.beams[found.beam].node, found, candidates)
    }

    fn add_node_after(&mut self, parent: u32, found: &Continuation, candidates: &Candidates) -> u32 {
        let logprobs = self.rules.logprobs.map(|top| {
            let top = (top as usize).min(candidates.tokens.len());
            Box::new(TokenLogprobs {
                logprob: candidates.logprobs[found.at],
                rank: found.at as u32 + 1,
                top_ids: candidates.tokens[..top].to_vec(),
                top_logprobs: candidates.logprobs[..top].to_vec(),
                token: found.token,
                ..TokenLogprobs::default()
            })
        });
        self.nodes.push(Node { parent, token: found.token, logprobs });
        self.nodes.len() as u32 - 1
    }

    fn text(&self, last: u32) -> Vec<ChosenToken<'_>> {
        let parent = |node: &&Node| self.nodes.get(node.parent as usize);
        let nodes = std::iter::successors(self.nodes.get(last as usize), parent);
        let mut text: Vec<_> =
            nodes.map(|node| ChosenToken { token: node.token, logprobs: node.logprobs.as_deref() }).collect();
        text.reverse();
        text
    }
}

/// A token of a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChosenToken<'s> {
    pub token: u32,
    pub logprobs: Option<&'s TokenLogprobs>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 0;

    fn rules(width: u32, early_stopping: EarlyStopping) -> Rules {
        let considered = 2 * width;
        Rules { width, length_penalty: 1.0, early_stopping, max_tokens: 3, considered, logprobs: None }
    }

    fn candidates(of: &[(u32, f32)]) -> Candidates {
        let (tokens, logprobs) = of.iter().copied().unzip();
        Candidates { tokens, logprobs }
    }

    fn step(search: &mut Search, by_record: &[&[(u32, f32)]]) -> Outcome {
        let all: Vec<Candidates> = by_record.iter().map(|one| candidates(one)).collect();
        let none = Candidates::default();
        let of = |record: u32| all.get(record as usize).unwrap_or(&none);
        search.advance(of, |token, _| (token == END).then_some(Ending::Stop(None)))
    }

    fn moves(of: &[(u32, u32, u32)]) -> Outcome {
        Outcome::GoesOn(of.iter().map(|&(record, from, token)| Move { record, from, token }).collect())
    }

    fn texts(search: &Search) -> Vec<(Vec<u32>, Ending)> {
        let text = |(tokens, ending): (Vec<ChosenToken<'_>>, Ending)| {
            (tokens.iter().map(|chosen| chosen.token).collect(), ending)
        };
        search.best(9).map(text).collect()
    }

    #[test]
    fn beams_fork_and_give_way() {
        let mut search = Search::new(rules(2, EarlyStopping::Heuristic));
        let first: &[(u32, f32)] = &[(5, -0.5), (6, -1.0), (7, -3.0), (8, -4.0)];
        assert_eq!(step(&mut search, &[first]), moves(&[(0, 0, 5), (1, 0, 6)]));
        // Both best ones continue the second beam: the first gives its record away.
        let (poor, good): (&[_], &[_]) = (&[(1, -3.0), (2, -4.0)], &[(3, -0.1), (4, -0.2)]);
        assert_eq!(step(&mut search, &[poor, good]), moves(&[(1, 1, 3), (0, 1, 4)]));
        assert_eq!(step(&mut search, &[&[(1, -0.1)], &[(2, -0.1)]]), Outcome::Over);
        assert_eq!(texts(&search), [(vec![6, 3, 2], Ending::Length), (vec![6, 4, 1], Ending::Length)]);
    }

    /// Only what ends among the `width` best is kept, and the worst gives way to better ones.
    #[test]
    fn hypotheses_are_the_best_that_end() {
        let mut search = Search::new(rules(2, EarlyStopping::Heuristic));
        let first: &[(u32, f32)] = &[(END, -1.0), (5, -1.1), (6, -1.2), (7, -1.3)];
        assert_eq!(step(&mut search, &[first]), moves(&[(0, 0, 5), (1, 0, 6)]));
        // Beam 0 ends at -1.6 / 2, its other ending is third and does not count.
        let outcome = step(&mut search, &[&[(END, -0.5), (9, -0.6)], &[(9, -0.6), (END, -0.9)]]);
        assert_eq!(outcome, moves(&[(0, 0, 9), (1, 1, 9)]));
        // -1.71 / 3 is better than both, so the first one is forgotten.
        assert_eq!(step(&mut search, &[&[(8, -0.01)], &[(8, -5.0)]]), Outcome::Over);
        assert_eq!(texts(&search), [(vec![5, 9, 8], Ending::Length), (vec![5, END], Ending::Stop(None))]);
    }

    #[test]
    fn early_stopping_has_three_ways() {
        let check = |early_stopping, ends_after: u32| {
            let mut search = Search::new(Rules { max_tokens: 9, ..rules(1, early_stopping) });
            let ends: &[(u32, f32)] = &[(END, -0.3), (5, -0.4)];
            let goes_on: &[(u32, f32)] = &[(5, -0.05), (END, -9.0)];
            let mut steps = 1;
            let mut outcome = step(&mut search, &[ends]);
            while outcome != Outcome::Over {
                (outcome, steps) = (step(&mut search, &[goes_on]), steps + 1);
            }
            assert_eq!(steps, ends_after, "{early_stopping:?}");
        };
        check(EarlyStopping::WhenFull, 1);
        // -0.4 of one token is worse than -0.3.
        check(EarlyStopping::Heuristic, 1);
        // -0.4 of up to nine tokens may be better, and is.
        check(EarlyStopping::Never, 9);
    }

    #[test]
    fn beams_may_be_fewer_and_more_again() {
        let mut search = Search::new(Rules { max_tokens: 9, ..rules(3, EarlyStopping::Heuristic) });
        assert_eq!(step(&mut search, &[&[(5, -1.0), (6, -2.0)]]), moves(&[(0, 0, 5), (1, 0, 6)]));
        assert_eq!(step(&mut search, &[&[], &[(4, -1.0)]]), moves(&[(1, 1, 4)]));
        let all: &[(u32, f32)] = &[(1, -1.0), (2, -1.0), (3, -1.0), (4, -1.0)];
        assert_eq!(step(&mut search, &[&[], all]), moves(&[(1, 1, 1), (0, 1, 2), (2, 1, 3)]));
        assert_eq!(search.records().collect::<Vec<_>>(), [1, 0, 2]);
        assert_eq!(step(&mut search, &[&[], &[], &[]]), Outcome::Over, "nothing may follow");
        assert_eq!(texts(&search), []);
    }
}
