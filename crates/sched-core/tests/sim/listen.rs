//! What the scheduler says, checked word by word against the oracle.

use super::{
    oracle::{self, Ending},
    world::World,
};
use proto::{FinishReason, Pooled, TokenBatch, pooling::Tokens};

impl World<'_> {
    /// Takes the output, now and then in two helpings, and checks each word.
    pub(super) fn listen(&mut self) {
        self.scheduler.take_output(&mut self.batch);
        if self.source.chance(20) {
            self.plan();
            self.scheduler.take_output(&mut self.batch);
        }
        assert!(!self.scheduler.has_output());
        let batch = std::mem::take(&mut self.batch);
        batch.started.iter().for_each(|started| self.hear_started(started));
        self.hear_logprobs(&batch);
        batch.pooled.iter().for_each(|pooled| self.hear_pooled(pooled));
        for (sequence, token) in batch.sequence.iter().zip(&batch.token) {
            self.hear_token(*sequence, *token);
        }
        batch.finished.iter().for_each(|finished| self.hear_finished(finished));
        for failed in &batch.failed {
            let number = failed.key.as_ref().expect("a key").number;
            assert!(self.live.remove(&number).is_some(), "a failure of {number}, which is over");
            self.ended += 1;
        }
        self.forget_ended();
    }

    fn hear_started(&mut self, started: &proto::Started) {
        let number = started.key.as_ref().expect("a key").number;
        let tracked = self.live.get_mut(&number).expect("a started request is live");
        assert!(tracked.first_sequence.replace(started.first_sequence).is_none(), "started twice");
        assert_eq!((started.n, started.prompt_tokens), (tracked.n, tracked.prompt.len() as u32));
        assert!(tracked.prompt.ends_with(&started.prompt_ids));
        let most = (started.prompt_tokens - 1) / self.config.block_size * self.config.block_size;
        assert!(started.cached_tokens <= if self.config.enable_prefix_caching { most } else { 0 });
        let whole = tracked.sampling.prompt_logprobs.is_some() || tracked.pooling == Some(Tokens::All);
        assert!(!whole || started.cached_tokens == 0, "all of the prompt is needed");
        for choice in 0..started.n {
            self.handles.insert(started.first_sequence + u64::from(choice), (number, choice as usize));
        }
    }

    fn hear_logprobs(&mut self, batch: &TokenBatch) {
        let mut described = Vec::new();
        for logprobs in &batch.logprobs {
            let Some(sequence) = logprobs.prompt_of_sequence else {
                assert_eq!(batch.token[logprobs.index as usize], logprobs.token);
                described.push(logprobs.index as usize);
                continue;
            };
            let (number, choice) = self.handles[&sequence];
            let tracked = self.live.get_mut(&number).expect("live");
            assert_eq!(choice, 0);
            assert_eq!(logprobs.index, tracked.prompt_logprobs + 1, "each position once, in order");
            assert_eq!(logprobs.token, tracked.prompt[logprobs.index as usize]);
            tracked.prompt_logprobs += 1;
        }
        let wanted = batch.sequence.iter().enumerate().filter(|(_, sequence)| {
            let (number, _) = self.handles[sequence];
            self.live[&number].sampling.logprobs.is_some()
        });
        // Those of a search come before those of other rows.
        described.sort_unstable();
        assert!(wanted.map(|(index, _)| index).eq(described.into_iter()), "log-probabilities where asked for");
    }

    fn hear_token(&mut self, sequence: u64, token: u32) {
        let (number, at) = *self.handles.get(&sequence).expect("a token before its start");
        let tracked = self.live.get_mut(&number).expect("a token after the end");
        let all = tracked.prompt.len() as u32 - 1;
        assert!(at != 0 || tracked.sampling.prompt_logprobs.is_none() || tracked.prompt_logprobs == all);
        if tracked.beams.is_some() {
            self.hear_text(number, at, token);
            return;
        }
        let seeds = &self.seeds[&tracked.id];
        assert!(tracked.n > 1 || tracked.sampling.seed.is_none_or(|seed| seeds == &[seed]), "the request's own seed");
        let choice = &mut tracked.choices[at];
        assert!(!choice.over, "a token after the stop");
        let (expected, _) = choice.expected.get_or_insert_with(|| {
            oracle::answer(&tracked.context, &tracked.prompt, seeds[at], &tracked.sampling, tracked.limit)
        });
        assert_eq!(Some(&token), expected.get(choice.tokens.len()), "token {} of {}", choice.tokens.len(), tracked.id);
        choice.tokens.push(token);
    }

    /// The next token of one of the best texts of a search.
    fn hear_text(&mut self, number: u64, at: usize, token: u32) {
        let tracked = self.live.get_mut(&number).expect("live");
        tracked.expect_texts();
        let choice = &mut tracked.choices[at];
        assert!(!choice.over, "a token after the stop");
        let (expected, _) = choice.expected.as_ref().expect("a text");
        assert_eq!(Some(&token), expected.get(choice.tokens.len()), "token {} of {}", choice.tokens.len(), tracked.id);
        choice.tokens.push(token);
        self.searched += u64::from(choice.tokens.len() == 1);
    }

    fn hear_pooled(&mut self, pooled: &Pooled) {
        let (number, at) = *self.handles.get(&pooled.sequence).expect("an output before its start");
        let tracked = self.live.get_mut(&number).expect("an output after the end");
        let tokens = tracked.pooling.expect("a request to be pooled");
        let hidden = oracle::kv_chain(&tracked.context, &tracked.prompt);
        assert_eq!(pooled.values, oracle::pooled(&hidden, tokens), "pooled output of {}", tracked.id);
        assert!(!std::mem::replace(&mut tracked.choices[at].pooled, true), "pooled twice");
        self.pooled += 1;
    }

    fn hear_finished(&mut self, finished: &proto::Finished) {
        let (number, at) = *self.handles.get(&finished.sequence).expect("an end before its start");
        let tracked = self.live.get_mut(&number).expect("an end after the end");
        let choice = &mut tracked.choices[at];
        assert!(!choice.over, "ended twice");
        choice.over = true;
        if finished.reason() == FinishReason::Abort {
            assert!(tracked.aborted);
            return;
        }
        if tracked.pooling.is_some() {
            assert!(choice.pooled && choice.tokens.is_empty());
            assert_eq!((finished.reason(), finished.stop_token), (FinishReason::Stop, None));
            return;
        }
        if tracked.beams.is_some() {
            tracked.expect_texts();
        }
        let choice = &tracked.choices[at];
        let (expected, ending) = choice.expected.as_ref().expect("an end without a token");
        assert_eq!(&choice.tokens, expected);
        let said = match (finished.reason(), finished.stop_token) {
            (FinishReason::Stop, None) => Ending::Eos,
            (FinishReason::Stop, Some(token)) => Ending::StopToken(token),
            _ => Ending::Length,
        };
        assert_eq!(said, *ending);
    }

    pub(super) fn forget_ended(&mut self) {
        let before = self.live.len();
        self.live.retain(|_, tracked| tracked.choices.iter().any(|choice| !choice.over));
        self.ended += (before - self.live.len()) as u64;
    }
}
