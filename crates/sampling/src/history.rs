//! What a sequence has so far: its tokens, and the counts that penalties need, kept up to date token by token.

use std::collections::HashMap;

use crate::SamplingPlan;

/// A sequence's tokens: the prompt, then the output.
#[derive(Clone, Debug, Default)]
pub struct History {
    tokens: Vec<u32>,
    num_prompt: usize,
    /// Times each token occurs in the output; 0 for tokens of the prompt only. Kept only for plans with penalties.
    counts: Option<HashMap<u32, u32>>,
}

impl History {
    /// A sequence of `tokens`, the first `num_prompt` of which are prompt.
    pub fn new(tokens: Vec<u32>, num_prompt: usize, plan: &SamplingPlan) -> Self {
        let num_prompt = num_prompt.min(tokens.len());
        let counts = plan.needs_counts().then(|| count(&tokens, num_prompt));
        Self { tokens, num_prompt, counts }
    }

    /// Appends an output token.
    #[inline]
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        if self.counts.is_some() {
            self.count(token);
        }
    }

    fn count(&mut self, token: u32) {
        for counts in self.counts.iter_mut() {
            *counts.entry(token).or_insert(0) += 1;
        }
    }

    /// Prompt and output.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens are prompt.
    pub fn num_prompt(&self) -> usize {
        self.num_prompt
    }

    /// What the request came with.
    pub fn prompt(&self) -> &[u32] {
        &self.tokens[..self.num_prompt]
    }

    /// What was generated.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.num_prompt..]
    }

    /// (token, occurrences in the output) of every token of prompt and output, in no order; nothing unless the plan has
    /// penalties.
    pub fn counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.counts.iter().flatten().map(|(&token, &count)| (token, count))
    }
}

fn count(tokens: &[u32], num_prompt: usize) -> HashMap<u32, u32> {
    let (prompt, output) = tokens.split_at(num_prompt);
    let mut counts: HashMap<u32, u32> = prompt.iter().map(|&token| (token, 0)).collect();
    for &token in output {
        *counts.entry(token).or_insert(0) += 1;
    }
    counts
}
