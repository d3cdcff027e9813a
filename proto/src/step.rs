//! Plans of decode steps, shortened for the link.

use crate::{StepPlan, Want};

impl StepPlan {
    /// Leaves out what decode steps say of every row: that it has one token, and that one is sampled.
    pub fn shorten(&mut self) {
        if self.num_tokens.iter().all(|tokens| *tokens == 1) {
            self.num_tokens.clear();
        }
        if self.want.iter().all(|want| *want == Want::Sample as i32) {
            self.want.clear();
        }
    }

    /// Fills in what [`Self::shorten`] left out.
    pub fn restore(&mut self) {
        if self.num_tokens.is_empty() {
            self.num_tokens.resize(self.slot.len(), 1);
        }
        if self.want.is_empty() {
            self.want.resize(self.slot.len(), Want::Sample.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    fn plan(num_tokens: &[u32], want: &[Want]) -> StepPlan {
        let slot = (0..num_tokens.len() as u32).collect();
        let want = want.iter().map(|want| i32::from(*want)).collect();
        StepPlan { slot, num_tokens: num_tokens.to_vec(), want, ..StepPlan::default() }
    }

    #[test]
    fn shortened_plans_are_restored() {
        use Want::{None, Sample, Verify};
        let plans = [(plan(&[], &[]), 0), (plan(&[1; 3], &[Sample; 3]), 10), (plan(&[1, 2, 1], &[Sample; 3]), 5)];
        let others = [(plan(&[1; 2], &[None, Sample]), 4), (plan(&[2, 1], &[Verify, Sample]), 0)];
        for (whole, saved) in plans.into_iter().chain(others) {
            let mut sent = whole.clone();
            sent.shorten();
            assert_eq!(whole.encoded_len() - sent.encoded_len(), saved, "{whole:?}");
            sent.restore();
            assert_eq!(sent, whole);
        }
    }
}
