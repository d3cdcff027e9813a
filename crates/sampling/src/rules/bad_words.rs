//! `bad_words`: token sequences that must not come to stand in the output.

use kernels::sample::SampleParams;

use super::{Request, Rewrite, forbid};
use crate::History;

struct BadWords {
    /// Each at least one token long.
    words: Vec<Vec<u32>>,
}

pub(super) fn compile(request: &Request<'_>) -> Option<Box<dyn Rewrite>> {
    let words: Vec<Vec<u32>> =
        request.sampling.bad_token_ids.iter().map(|word| word.ids.clone()).filter(|word| !word.is_empty()).collect();
    (!words.is_empty()).then(|| Box::new(BadWords { words }) as Box<dyn Rewrite>)
}

impl BadWords {
    /// Tokens that would complete a word now. As in vLLM, a word begins in the output, not in the prompt.
    fn completing<'a>(&'a self, history: &'a History) -> impl Iterator<Item = u32> + 'a {
        self.words.iter().filter_map(|word| {
            let (last, start) = word.split_last()?;
            history.output().ends_with(start).then_some(*last)
        })
    }
}

impl Rewrite for BadWords {
    fn acts(&self, history: &History) -> bool {
        self.completing(history).next().is_some()
    }

    fn apply(&self, row: &mut [f32], history: &History) {
        self.completing(history).for_each(|token| forbid(row, token));
    }

    /// Longer words depend on what came before, which only the host follows.
    fn describe(&self, params: &mut SampleParams) -> bool {
        params.forbidden.extend(self.words.iter().map(|word| word[word.len() - 1]));
        self.words.iter().all(|word| word.len() == 1)
    }
}

#[cfg(test)]
mod tests {
    use proto::{Sampling, TokenIds};

    use crate::rules::check::{MASKED, rewritten};

    #[test]
    fn masks_the_last_token_of_a_word() {
        let check = |words: &[&[u32]], output: &[u32], want: &[f32]| {
            let bad_token_ids = words.iter().map(|ids| TokenIds { ids: ids.to_vec() }).collect();
            let sampling = Sampling { bad_token_ids, ..Default::default() };
            assert_eq!(rewritten(&sampling, &[1, 2], output, &[1.0, 2.0, 3.0]), want);
        };
        check(&[&[1]], &[], &[1.0, MASKED, 3.0]);
        check(&[&[1, 2]], &[], &[1.0, 2.0, 3.0]); // the 1 in the prompt does not count
        check(&[&[1, 2]], &[0, 1], &[1.0, 2.0, MASKED]);
        check(&[&[1, 2]], &[1, 0], &[1.0, 2.0, 3.0]);
        check(&[&[1, 0, 2], &[0, 1], &[]], &[1, 0], &[1.0, MASKED, MASKED]);
        check(&[&[900]], &[], &[1.0, 2.0, 3.0]);
    }
}
